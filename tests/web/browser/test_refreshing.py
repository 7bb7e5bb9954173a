"""What a page that refreshes itself keeps, and what it says while it can't: of its server, its title and its focus."""

import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire, until
from tests.web.browser.conftest import stop_clock

HIDE = "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})"
SHOW = "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"
ROW = "document.activeElement.closest('tr').querySelector('.body').textContent"


@pytest.fixture
def lost(tmp_path):
    """A server with a job that is killed, the page of it, and what starts it again."""
    with start_beanlite(tmp_path) as server, Web(f"127.0.0.1:{server.port}") as web, Wire(server.connect()) as wire:
        wire.put(b"job")
        started = []

        def start():
            place = ("-l", "127.0.0.1", "-p", str(server.port), "--db", tmp_path / "queue.db")
            started.append(subprocess.Popen([sys.executable, "-m", "beanlite", "serve", *place]))

        yield server, web, start
        for again in started:
            again.terminate()
            again.wait()


@pytest.mark.parametrize(("path", "title"), [("/", "Overview"), ("/policies", "Policies"), ("/job/1", "Job 1")])
def test_page_that_tells_of_a_lost_server_loads_by_itself(lost, visit, path, title):
    server, web, start = lost
    server.kill()
    page = visit(web, path)
    page.evaluate("refresh()")
    expect(page.get_by_role("heading", level=1)).to_have_text("The server can't be reached")
    expect(page.get_by_role("alert")).to_have_count(1)
    start()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(f"^{title}"))
    expect(page).to_have_title(re.compile(f"^{title}"))


def test_page_says_since_when_and_why_it_is_old(lost, visit):
    server, web, start = lost
    page = visit(web, "/")
    server.kill()
    page.evaluate("refresh()")
    said = page.get_by_role("alert")
    expect(said).to_have_text(re.compile(r"^Not updated since \d\d:\d\d: .*refused"))
    expect(said).to_be_in_viewport()
    expect(page).to_have_title(re.compile("^Not updated: Overview"))
    expect(page.locator(".numbers .ready dd")).to_have_text("1")
    page.evaluate("window.line = document.querySelector('[role=alert] time')")
    page.evaluate("refresh()")
    assert page.evaluate("window.line.isConnected")  # it is not told twice
    start()
    expect(said).to_have_count(0)
    expect(page).to_have_title(re.compile("^Overview"))
    expect(page.locator(".stale")).to_have_count(0)


def test_page_of_a_tube_that_has_gone_says_so(web, wire, visit):
    wire.ask("use gone")
    job_id = wire.put(b"job")
    page = visit(web, "/tube/gone")
    wire.ask(f"delete {job_id}")
    wire.ask("use default")
    page.evaluate("refresh()")
    said = re.compile(r"^Not updated since \d\d:\d\d: There is no such tube now")
    expect(page.get_by_role("alert")).to_have_text(said)


def test_page_says_that_an_answer_does_not_come(web, visit):
    page = visit(web, "/clients")
    stop_clock(page, "/clients")
    held = []

    def hold(route):  # Playwright takes no method of a list
        held.append(route)

    page.route("**/clients", hold)
    page.evaluate("void refresh()")
    until(lambda: held or page.wait_for_timeout(10))
    assert page.get_by_role("alert").count() == 0
    page.clock.run_for(11_000)
    expect(page.get_by_role("alert")).to_have_text(re.compile("^Not updated since .*: there is no answer yet$"))
    held[0].continue_()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_hidden_tab_asks_seldom_and_only_for_its_title(tmp_path, visit):
    with start_beanlite(tmp_path, "--no-journal") as server, Wire(server.connect()) as wire:
        wire.ask("use deadly")
        wire.put(b"job")
        with Web(f"127.0.0.1:{server.port}") as web:
            page = visit(web, "/clients")
            stop_clock(page, "/")
            ready = page.locator(".numbers .ready dd")
            page.evaluate(HIDE)
            for _ in range(6):
                with Wire(server.connect()) as worker:
                    worker.ask("watch deadly")
                    assert worker.ask("reserve").startswith("RESERVED")
                until(lambda: wire.stats("stats-tube deadly")["current-jobs-ready"] == "1")
            wire.put(b"job")
            until(lambda: page.evaluate("refresh()") or page.title().startswith("(1) Overview"))
            assert ready.inner_text() == "1"
            asked = []
            # The browser may ask for an icon at any time.
            page.on("request", lambda request: asked.append(request.url) if "/static/" not in request.url else None)
            page.clock.run_for(14_000)
            assert asked == []
            page.clock.run_for(2000)
            assert len(asked) == 1
            page.evaluate("refresh()")
            page.evaluate(SHOW)
            expect(ready).to_have_text("2")
            page.goto("/jobs")
            page.evaluate(HIDE)
            asked.clear()
            page.evaluate("refresh()")
            assert asked == []  # its title tells nothing that changes


def test_focus_stays_with_the_undo_that_it_was_on(web, wire, visit):
    for tube in ("undo-a", "undo-b"):
        wire.ask(f"use {tube}")
        wire.put(b"job")
    web.post("/pause", {"tube": "undo-a", "for": "1h", "back": "/changes"})
    page = visit(web, "/changes")
    page.locator("#entries").get_by_role("button").first.focus()
    assert "undo-a" in page.evaluate(ROW)
    web.post("/pause", {"tube": "undo-b", "for": "1h", "back": "/changes"})
    page.evaluate("refresh()")
    expect(page.locator("#entries .body").first).to_contain_text("undo-b")
    assert "undo-a" in page.evaluate(ROW)
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("undo-a")


def test_focus_stays_with_a_tube_that_moves(web, wire, visit):
    for tube, jobs in (("order-a", 1), ("order-b", 2)):
        wire.ask(f"use {tube}")
        for _ in range(jobs):
            wire.put(b"job")
    page = visit(web, "/?like=order-*&sort=ready")
    names = page.locator("#list tbody .lead a")
    assert names.all_inner_texts() == ["order-b", "order-a"]
    names.first.focus()
    wire.ask("use order-a")
    for _ in range(2):
        wire.put(b"job")
    until(lambda: page.evaluate("refresh()") or names.all_inner_texts() == ["order-a", "order-b"])
    expect(names.last).to_be_focused()


def test_field_that_is_left_with_the_cursor_in_it_halts_nothing(web, wire, visit):
    page = visit(web, "/clients")
    stop_clock(page, "/?like=left-*")
    field = page.get_by_label("Name")
    field.press_sequentially("mail")
    wire.ask("use left-alone")
    wire.put(b"job")
    found = page.get_by_role("link", name="left-alone")
    page.clock.run_for(9000)
    page.evaluate("refresh()")
    assert found.count() == 0
    page.clock.run_for(2000)
    until(lambda: page.evaluate("refresh()") or found.count() == 1)
    expect(field).to_be_focused()
    expect(field).to_have_value("mailleft-*")
