"""How an operator sets a schedule by keys, and mends a mistake in it."""

from playwright.sync_api import expect

from tests.support.wire import Wire


def test_schedule_is_set_and_mended_by_keys(server, web, visit):
    page = visit(web, "/policies")
    page.get_by_text("Set a schedule").focus()
    page.keyboard.press("Enter")
    for text in ("nightly", "0 25 * * *", "Europe/Berlin", "reports"):
        page.keyboard.press("Tab")
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("refused set-schedule")
    expect(page.get_by_label("When")).to_be_focused()
    expect(page.get_by_label("Zone")).to_have_value("Europe/Berlin")
    page.keyboard.press("Control+a")
    page.keyboard.type("0 3 * * *")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("The schedule nightly was set.")
    with Wire(server.connect()) as wire:
        (schedule,) = wire.request("list-schedules")["schedules"]
    assert (schedule["when"], schedule["zone"], schedule["tube"]) == ("0 3 * * *", "Europe/Berlin", "reports")
