"""The page of several servers in the browser: for everybody, and while one of them is away."""

import re
import signal
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from tests.support.needs import need
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire
from tests.web.browser.test_accessible import AXE, OF_COLOURS, RUN, WIDTHS

PATHS = ("/", "/?server=two&sort=ready", "/?like=nothing", "/jobs?q=state:buried", "/jobs?group=state", "/on/two/jobs")
# Within this the screen has to say that a server is away; a slow machine takes several times as long as another one.
AWAY_MS = 15_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        servers = {name: stack.enter_context(start_beanlite(folder / name)) for name in ("one", "two", "three", "four")}
        for name, server in servers.items():
            with Wire(server.connect()) as wire:
                wire.ask(f"use mail.{name}")
                wire.put(b"welcome")
                wire.ask(f"watch mail.{name}")
                wire.ask("reserve-with-timeout 0")
                wire.ask("bury 1 0")
                wire.put(b"welcome")
        yield servers


@pytest.fixture(scope="module")
def page_of_all(servers):
    flags = [text for name, server in servers.items() for text in ("--connect", f"{name}={server.host}:{server.port}")]
    with Web(None, *flags) as web:
        yield web


@pytest.fixture
def halted(servers):
    servers["three"].signal(signal.SIGSTOP)
    yield
    servers["three"].signal(signal.SIGCONT)


@pytest.mark.usefixtures("halted")
def test_page_of_all_servers_breaks_no_rule_of_axe(page_of_all, visit):
    need(AXE.exists(), "axe-core is not installed: npm install --prefix tests/web/browser")
    page = visit(page_of_all, "/", bypass_csp=True, reduced_motion="reduce")
    wrong = {}
    for path in PATHS:
        page.goto(path)
        page.evaluate(AXE.read_text(encoding="utf-8"))
        for colours, rules in (("light", {}), ("dark", {"runOnly": OF_COLOURS})):
            page.emulate_media(color_scheme=colours)
            if found := page.evaluate(RUN, rules):
                wrong[path, colours] = found
        for width in (*WIDTHS, 320):
            page.set_viewport_size({"width": width, "height": 700})
            if (found := page.evaluate("document.documentElement.scrollWidth")) != width:
                wrong[path, str(width)] = found
    assert wrong == {}


def test_screen_says_by_itself_that_a_server_is_away(page_of_all, visit, servers):
    page = visit(page_of_all, "/")
    row = page.get_by_role("region", name="Table of servers").get_by_role("row")
    expect(row).to_have_count(5)
    page.wait_for_timeout(2500)  # it has refreshed itself at least once
    servers["two"].signal(signal.SIGSTOP)
    try:
        expect(row.nth(2)).to_contain_text("away for", timeout=AWAY_MS)
        expect(row.nth(1)).to_contain_text("serves")
        expect(page).to_have_title("(1) All servers · beanlite all servers")
        page.get_by_role("link", name="four", exact=True).first.click()
        expect(page.get_by_role("heading", name="Tubes")).to_be_visible()
        expect(page).to_have_url(re.compile(r"/on/four/$"))
    finally:
        servers["two"].signal(signal.SIGCONT)


def test_job_of_one_of_several_servers_is_kicked_and_undone(page_of_all, visit):
    page = visit(page_of_all, "/jobs?q=state:buried")
    page.get_by_role("link", name="four:1", exact=True).click()
    page.get_by_role("button", name="Kick", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("kicked")
    expect(page).to_have_url(re.compile(r"/on/four/job/1$"))
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("status")).to_contain_text("brought back")
    page.goto("/jobs?q=state:buried")
    expect(page.get_by_role("link", name="four:1", exact=True)).to_be_visible()
