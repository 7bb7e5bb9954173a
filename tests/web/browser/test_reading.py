"""How an operator reads the pages: on a phone, while numbers move, and to take a body along."""

import json
import re

from playwright.sync_api import expect

from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire, put_bytes, until

PHONE = {"width": 390, "height": 800}
SCREEN = {"width": 1440, "height": 1000}


def is_below(cell, lead):
    """Whether a cell is below the one that leads its card, and as a whole in the page."""
    place = cell.bounding_box()
    return place["x"] + place["width"] <= PHONE["width"] and place["y"] > lead.bounding_box()["y"]


def test_tube_is_a_card_on_a_phone(web, wire, visit):
    wire.ask("use carded")
    wire.put(b"job")
    page = visit(web, "/?like=carded", viewport=PHONE)
    ready = page.locator("tbody td[data-label=Ready]")
    expect(ready).to_be_visible()
    assert is_below(ready, page.locator("tbody td.lead"))
    expect(page.locator("tbody td[data-label=Buried]")).to_be_hidden()  # a zero
    page.get_by_role("link", name="Buried", exact=True).click()
    page.wait_for_url("**sort=buried")


def test_client_is_a_card_on_a_phone(web, wire, visit):
    wire.ask("name web-1/mailer/17")
    page = visit(web, "/clients", viewport=PHONE)
    card = page.locator("tr", has_text="web-1/mailer/17")
    assert is_below(card.locator("td[data-label=Watches]"), card.locator(".lead"))


def test_refreshes_are_halted_and_go_on(web, wire, visit):
    wire.ask("use halted")
    page = visit(web, "/tube/halted")
    ready = page.locator(".numbers .ready dd")
    wire.put(b"job")
    expect(ready).to_have_text("1")
    page.keyboard.press("r")
    expect(page.get_by_role("button", name="Halted")).to_be_in_viewport()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    wire.put(b"job")
    page.evaluate("refresh()")
    assert (ready.inner_text(), asked) == ("1", [])
    page.keyboard.press("r")
    expect(ready).to_have_text("2")


def test_body_is_copied(web, wire, visit):
    job_id = wire.put(b'{"customer": 4711}')
    page = visit(web, f"/job/{job_id}")
    page.get_by_role("button", name="copy").click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    page.goto("/put")
    page.get_by_label("Body").focus()
    page.keyboard.press("Control+V")
    assert json.loads(page.get_by_label("Body").input_value()) == {"customer": 4711}


def test_title_tells_how_many_findings_are_urgent(server, web, wire, visit):
    wire.ask("use deadly")
    wire.put(b"job")
    page = visit(web, "/")
    assert not page.title().startswith("(")
    for _ in range(6):
        with Wire(server.connect()) as worker:
            worker.ask("watch deadly")
            assert worker.ask("reserve").startswith("RESERVED")
        until(lambda: wire.stats("stats-tube deadly")["current-jobs-ready"] == "1")
    expect(page).to_have_title(re.compile(r"^\(1\) Overview"))


def test_more_findings_are_opened_by_keyboard_and_stay_open(tmp_path, visit):
    with start_beanlite(tmp_path, "--no-journal") as server, Wire(server.connect()) as wire:
        for tube in ("deadly", "full", "late", "spoilt"):
            wire.ask(f"use {tube}")
            wire.put(b"job")
        for _ in range(6):
            with Wire(server.connect()) as worker:
                worker.ask("watch deadly")
                assert worker.ask("reserve").startswith("RESERVED")
            until(lambda: wire.stats("stats-tube deadly")["current-jobs-ready"] == "1")
        wire.ask("watch spoilt")
        assert wire.ask(f"bury {wire.ask('reserve').split()[1]} 0") == "BURIED"
        wire.ask("pause-tube late 3600")
        wire.request("set-policy", pattern="full", set={"max_jobs": 1}, by="ann")
        wire.ask("use full")
        wire.send(put_bytes(b"job"))
        wire.reply()
        with Web(f"127.0.0.1:{server.port}") as web:
            page = visit(web, "/")
            folded = page.locator(".rest li").first
            expect(page.locator(".findings > li:visible")).to_have_count(3)
            summary = page.locator(".rest summary")
            expect(summary).to_have_text(re.compile("^[0-9] more, of "))
            summary.focus()
            page.keyboard.press("Enter")
            expect(folded).to_be_visible()
            wire.ask("use other")
            wire.put(b"job")
            expect(page.get_by_role("link", name="other", exact=True)).to_be_visible()  # it was refreshed
            expect(folded).to_be_visible()
            page.set_viewport_size(SCREEN)
            summary.click()
            expect(page.locator("#list tbody tr").first).to_be_in_viewport()


def test_long_waits_and_notes_leave_room(web, wire, visit):
    wire.ask("use roomy")
    wire.ask("watch roomy")
    job_id = wire.put(json.dumps({"tenant": "initech", "customer": 2077, "order": 28531}).encode())
    assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
    wire.request("change-jobs", do="note", ids=[job_id], note="timeout: payments.example.com did not answer in 30 s")
    wire.ask(f"bury {job_id} 0")
    page = visit(web, "/tube/roomy?state=buried")
    page.set_viewport_size(SCREEN)
    note, body = (page.locator(f"#list tbody td.{name}").last.bounding_box() for name in ("note", "body"))
    assert body["width"] > note["width"] >= 180
    next_waits = page.locator(".numbers dd").nth(4)
    next_waits.evaluate("each => each.textContent = '53 min 44 s'")
    assert next_waits.evaluate("each => each.scrollWidth <= each.clientWidth")
