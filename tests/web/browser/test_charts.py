"""The chart: its values under the pointer and by keys, while it moves."""

import re

import pytest
from playwright.sync_api import expect

from tests.support.wire import Wire
from tests.web.browser.shop import trade

pytestmark = pytest.mark.usefixtures("busy")

PATHS = ["/?span=5min", "/tube/mail?span=5min"]
# The value of the tip, and the text for those that don't see it, of the same moment.
VALUE_AND_TEXT = "[document.querySelector('.tip .key.in b').textContent, document.querySelector('.over').ariaValueText]"
NO_SCROLL = {"width": 390, "height": 800}


@pytest.fixture
def busy(server):
    """Jobs that come and go, and one that will."""
    with Wire(server.connect()) as wire, trade(server):
        wire.ask("use mail")
        wire.put(b"later", delay_s=30)
        yield


def texts(page):
    """The texts of the rows of the table."""
    return page.locator("#values tr").all_text_contents()


@pytest.mark.parametrize("path", PATHS)
def test_values_are_shown_by_the_arrow_keys(web, visit, path):
    page = visit(web, path)
    expect(page.locator("#values tr").nth(13)).to_be_attached()
    moment = page.get_by_role("slider", name="Moment")
    tip = page.locator(".tip")
    expect(tip).to_be_hidden()
    for _ in range(60):  # past the links before it
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.over')"):
            break
    expect(moment).to_be_focused()
    page.keyboard.press("End")  # delayed jobs
    expect(tip.locator(".key")).to_have_count(1)
    due = page.locator("#values tr:nth-last-child(12)")
    earlier = due.locator("time").get_attribute("datetime")
    expect(due.locator("time")).not_to_have_attribute("datetime", earlier)
    expect(tip.locator(".key")).to_have_count(1)  # it stays with its place
    expect(tip).to_be_visible()
    page.keyboard.press("Home")
    expect(tip).to_be_visible()
    expect(moment).to_have_attribute("aria-valuenow", "0")
    first = tip.locator(".when").inner_text()
    page.keyboard.press("ArrowRight")
    expect(moment).to_have_attribute("aria-valuenow", "1")
    expect(tip.locator(".when")).not_to_have_text(first)
    expect(moment).to_have_attribute("aria-valuetext", re.compile(r"Until .*, In / s [\d.]+, Out / s [\d.]+, .*Ready"))
    value, text = page.evaluate(VALUE_AND_TEXT)
    assert f"In / s {value}" in text
    before = texts(page)
    expect(page.locator("#values")).not_to_have_text("".join(before))
    expect(moment).to_be_focused()
    expect(tip).to_be_visible()  # it stays with its moment
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_values_are_shown_under_the_pointer(web, visit):
    page = visit(web, PATHS[0])
    expect(page.locator("#values tr").nth(14)).to_be_attached()
    box = page.locator(".over").bounding_box()
    now = float(page.locator(".lines line.now").first.get_attribute("x1").rstrip("%")) / 100
    page.mouse.move(box["x"] + box["width"] * (now - 0.01), box["y"] + 40)
    expect(page.locator(".tip .key")).to_have_count(4)
    expect(page.locator(".cross .dot")).to_have_count(4)
    page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + 40)
    expect(page.locator(".tip .key")).to_have_count(1)
    page.mouse.move(5, 5)
    expect(page.locator(".tip")).to_be_hidden()


def test_chart_moves_without_a_reload_and_its_table_stays_open(web, visit):
    page = visit(web, PATHS[1])
    page.evaluate("window.isTheSame = true")
    page.get_by_text("Values as a table").click()
    line = page.locator("path.line.in").first
    seen = line.get_attribute("d")
    expect(line).not_to_have_attribute("d", seen)
    expect(page.get_by_role("region", name="Values of the chart")).to_be_visible()
    assert page.evaluate("window.isTheSame")


def test_chart_is_there_without_scripts(web, visit):
    page = visit(web, "/", java_script_enabled=False, viewport=NO_SCROLL)
    page.get_by_role("link", name="5 min").click()
    expect(page.get_by_role("img", name=re.compile("Jobs a second: in now"))).to_be_visible()
    expect(page.locator(".x text").first).to_have_text(re.compile(r"^\d\d:\d\d$"))
    page.get_by_text("Values as a table").click()
    expect(page.locator("#values tr").first).to_be_visible()
    assert page.get_by_role("slider").count() == 0


def test_times_of_the_chart_are_those_of_the_reader(web, visit):
    page = visit(web, "/?span=hour", timezone_id="Asia/Kolkata", locale="en-GB")
    ticks = page.locator(".x tspan").all_text_contents()
    moments = page.locator(".x tspan").evaluate_all("ticks => ticks.map(tick => tick.getAttribute('datetime'))")
    assert {int(text[3:]) % 10 for text in ticks} == {0}
    assert all(int(text[3:]) == (int(moment[14:16]) + 30) % 60 for text, moment in zip(ticks, moments, strict=True))
