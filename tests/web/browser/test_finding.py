"""How an operator finds jobs: with one line, which is completed, with columns and with groups."""

import re

import pytest
from playwright.sync_api import expect

from tests.support.wire import Wire
from tests.web.browser.shop import fail


@pytest.fixture(scope="module", autouse=True)
def failed(server):
    with Wire(server.connect()) as wire:
        fail(wire)


def line_of(page):
    return page.get_by_label("Filter")


def options(page):
    return page.get_by_role("listbox").get_by_role("option")


def test_line_is_typed_and_completed_by_keys_alone(web, visit):
    page = visit(web, "/jobs")
    page.keyboard.press("/")
    expect(line_of(page)).to_be_focused()
    page.keyboard.type("sta")
    expect(options(page)).to_have_text([re.compile("^state:")])
    page.keyboard.press("Tab")
    expect(line_of(page)).to_have_value("state:")
    expect(options(page)).to_have_count(4)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(options(page).last).to_have_attribute("aria-selected", "true")
    expect(line_of(page)).to_have_attribute("aria-activedescendant", "completion-3")
    page.keyboard.press("Enter")
    expect(line_of(page)).to_have_value("state:buried ")
    page.keyboard.type("tube:web.o")
    expect(options(page)).to_have_text(["tube:web.orders"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type("error.type:Timeout")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?q=state%3Aburied+tube%3Aweb.orders+error.type%3ATimeout&**")
    expect(page.locator("tbody tr").first).to_contain_text("Timeout")
    assert all("Timeout" in row for row in page.locator("tbody tr").all_inner_texts())


@pytest.mark.parametrize("before", ['error.type:"a b" ', '"a b" "c d" ', 'x:"say \\"a b\\" "  ', "a" * 20_000 + " "])
def test_word_behind_a_quoted_one_is_completed(web, visit, before):
    page = visit(web, "/jobs")
    line_of(page).fill(before)
    line_of(page).press("End")
    page.keyboard.type("stat")
    expect(options(page)).to_have_text([re.compile("^state:")])
    page.keyboard.press("Tab")
    expect(line_of(page)).to_have_value(f"{before}state:")


def test_escape_closes_completions_and_enter_sends_the_line(web, visit):
    page = visit(web, "/jobs")
    line = line_of(page)
    line.focus()
    page.keyboard.type("tri")
    expect(options(page)).to_have_count(1)
    expect(line).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).to_be_hidden()
    expect(line).to_have_attribute("aria-expanded", "false")
    expect(line).to_have_value("tri")
    page.keyboard.type("e")
    expect(options(page)).to_have_count(1)
    page.keyboard.press("Enter")  # nothing is chosen, and so the line is sent as it is
    page.wait_for_url("**/jobs?q=trie&**")


def test_word_in_the_middle_of_the_line_is_completed_by_a_click(web, visit):
    page = visit(web, "/jobs?q=st+error.type:Timeout")
    line_of(page).click()
    page.keyboard.press("Home")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    options(page).first.click()
    expect(line_of(page)).to_have_value("state: error.type:Timeout")
    expect(line_of(page)).to_be_focused()


def test_top_errors_lead_to_their_jobs(web, visit):
    page = visit(web, "/jobs?q=tube:web*")
    page.get_by_label("Group by").fill("error.type")
    page.keyboard.press("Enter")
    rows = page.locator("tbody tr")
    expect(rows.first).to_contain_text("Timeout")
    expect(rows.last).to_contain_text("no value")
    number = rows.nth(1).locator("td.n").first.inner_text()
    page.get_by_role("link", name="ConnectionRefused").click()
    expect(line_of(page)).to_have_value("tube:web* error.type:ConnectionRefused")
    expect(page.locator("#matching")).to_have_text(f"all {number} that match")


def test_columns_stay_with_the_tabs(web, visit):
    page = visit(web, "/tube/web.orders")
    page.get_by_label("Columns").fill("customer, error.type")
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="error.type")).to_be_visible()
    page.get_by_role("link", name="Buried", exact=True).click()
    expect(line_of(page)).to_have_value("state:buried")
    expect(page.get_by_role("columnheader", name="customer")).to_be_visible()


def test_line_groups_and_mistakes_do_without_scripts(web, visit):
    page = visit(web, "/jobs", java_script_enabled=False)
    line_of(page).fill("state:burried")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("alert")).to_have_text("state:burried: did you mean state:buried?")
    expect(line_of(page)).to_have_attribute("aria-invalid", "true")
    line_of(page).fill("state:buried")
    page.get_by_label("Group by").fill("tube")
    page.get_by_role("button", name="Find").click()
    page.get_by_role("link", name="web.orders", exact=True).click()
    expect(line_of(page)).to_have_value("state:buried tube:web.orders")


def test_times_in_a_filter_are_those_of_the_reader(web, visit):
    page = visit(web, "/jobs", timezone_id="Asia/Tokyo")
    line_of(page).fill("since:02:00")
    line_of(page).press("Enter")
    page.wait_for_url("**zone=Asia%2FTokyo**")
    expect(page.get_by_text("Its moments are times in Asia/Tokyo.")).to_be_visible()
