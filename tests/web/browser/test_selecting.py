"""How an operator selects jobs in a table that refreshes itself, changes them, and undoes it."""

import re

from playwright.sync_api import expect

from tests.web.browser.conftest import stop_clock


def put(wire, tube, number):
    wire.ask(f"use {tube}")
    wire.ask(f"watch {tube}")
    return [wire.put(b"job %d" % each) for each in range(number)]


def bury(wire, job_id):
    assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
    assert wire.ask(f"bury {job_id} 0") == "BURIED"


def states(wire, ids):
    return [wire.stats(f"stats-job {job_id}")["state"] for job_id in ids]


def box(page, job_id):
    return page.get_by_label(f"Job {job_id}", exact=True)


def link_of(page, job_id):
    """The link to a job; a count of jobs may be a link with the same text."""
    return page.locator(f'a[href="/job/{job_id}"]')


def button(page, name):
    return page.locator(".bar").get_by_role("button", name=name, exact=True)


def test_shift_click_selects_a_range_and_undo_brings_it_back(web, wire, visit):
    ids = put(wire, "range", 6)
    bury(wire, ids[0])
    page = visit(web, "/tube/range")
    expect(page.locator(".bar")).to_contain_text("0 selected")
    expect(page.locator("#matching")).to_have_text("all 6 that match")
    expect(button(page, "Bury")).to_be_disabled()
    expect(page.get_by_text("Select jobs, or all that match.")).to_be_visible()
    expect(page.locator("td[data-label='In state'] time").first).to_have_attribute("title", re.compile("since .*day"))
    box(page, ids[1]).click()
    expect(page.get_by_text("Select jobs, or all that match.")).to_be_hidden()
    box(page, ids[4]).click(modifiers=["Shift"])
    expect(page.locator(".bar")).to_contain_text("4 selected")
    expect(button(page, "Kick")).to_be_hidden()
    box(page, ids[0]).click()
    expect(button(page, "Kick")).to_be_visible()
    box(page, ids[0]).click()
    button(page, "Bury").click()
    expect(page.get_by_role("status")).to_have_text("4 jobs buried.")
    assert states(wire, ids) == ["buried"] * 5 + ["ready"]
    expect(page).not_to_have_url(re.compile("done="))  # which a script removes
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("status")).to_have_text("4 jobs brought back.")
    assert states(wire, ids) == ["buried"] + ["ready"] * 5
    page.reload()
    expect(page.locator(".bar")).to_be_visible()
    expect(page.get_by_role("status")).to_have_count(0)


def test_jobs_are_chosen_changed_and_brought_back_by_keys(web, wire, visit):
    ids = put(wire, "by-keys", 4)
    page = visit(web, "/tube/by-keys")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next job")
    page.keyboard.press("Escape")
    for key in "jjxjxk":
        page.keyboard.press(key)
    expect(link_of(page, ids[1])).to_be_focused()
    expect(page.locator(".bar")).to_contain_text("2 selected")
    page.keyboard.press("b")
    expect(page.get_by_role("status")).to_have_text("2 jobs buried.")
    assert states(wire, ids) == ["ready", "buried", "buried", "ready"]
    page.wait_for_load_state()  # or the script that hears the key may be missing
    page.keyboard.press("u")
    expect(page.get_by_role("status")).to_have_text("2 jobs brought back.")
    page.wait_for_load_state()
    assert states(wire, ids) == ["ready"] * 4
    for key in "jd":
        page.keyboard.press(key)
    expect(page.get_by_role("heading", name="Delete 1 job?")).to_be_visible()
    page.go_back()
    for key in "*m":
        page.keyboard.press(key)
    page.keyboard.type("elsewhere")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("4 jobs moved.")


def test_a_table_refreshes_and_keeps_selection_and_focus(web, wire, visit):
    ids = put(wire, "moving", 5)
    page = visit(web, "/tube/moving?state=ready")
    box(page, ids[1]).check()
    box(page, ids[2]).check()
    link_of(page, ids[2]).focus()
    page.evaluate("window.scrollTo(0, 200)")
    at = page.evaluate("window.scrollY")
    bury(wire, ids[0])
    bury(wire, ids[1])
    (new,) = put(wire, "moving", 1)
    expect(link_of(page, new)).to_be_visible()
    expect(page.locator("#list tr[data-id]")).to_have_count(4)
    expect(box(page, ids[2])).to_be_checked()
    expect(page.locator("tr.selected")).to_have_count(1)
    expect(page.locator(".bar")).to_contain_text("1 selected")
    expect(link_of(page, ids[2])).to_be_focused()
    assert page.evaluate("window.scrollY") == at


def test_nothing_refreshes_while_something_is_typed(web, wire, visit):
    put(wire, "typing", 2)
    page = visit(web, "/clients")
    stop_clock(page, "/tube/typing")
    asked = []
    page.on("request", lambda request: asked.append(request.headers.get("beanlite-live")))
    page.evaluate("refresh()")
    assert "1" in asked
    page.get_by_label("Pause for").fill("so")
    asked.clear()
    page.evaluate("refresh()")
    page.get_by_label("Pause for").press_sequentially("on")
    assert asked == []
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("alert")).to_have_text(re.compile("'soon' is not a length of time"))
    expect(page.get_by_label("Pause for")).to_have_value("soon")
    expect(page.get_by_label("Pause for")).to_be_focused()


def test_job_is_a_card_on_a_phone(web, wire, visit):
    wire.ask("use cards")
    job_id = wire.put(b"a body that is seen")
    page = visit(web, "/tube/cards", viewport={"width": 390, "height": 800})
    body = page.locator("td.body")
    expect(body).to_have_text("a body that is seen")
    place, box_of_id = body.bounding_box(), link_of(page, job_id).bounding_box()
    assert 0 <= place["x"] <= place["x"] + place["width"] <= 390
    assert place["y"] > box_of_id["y"]
    assert page.locator(".bar").bounding_box()["height"] < 130
    assert page.evaluate("(wide => wide.scrollWidth <= wide.clientWidth)(document.querySelector('#list .wide'))")
    expect(page.locator("#list thead")).not_to_be_in_viewport(ratio=0.5)


def test_bar_stays_in_view(web, wire, visit):
    put(wire, "long", 50)
    page = visit(web, "/tube/long")
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    expect(page.locator(".bar")).to_be_in_viewport(ratio=1)
    page.locator("tbody input").last.check()
    button(page, "Bury").click()
    expect(page.get_by_role("status")).to_have_text("1 job buried.")
    expect(page.get_by_role("button", name="Undo")).to_be_in_viewport()
    expect(page.locator(".bar")).to_be_in_viewport(ratio=1)
