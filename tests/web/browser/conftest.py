"""Debian's Chromium, and pages in which any error fails the test."""

import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.support.needs import need
from tests.support.servers import RunningServer, start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire

WITHIN_MS = 60_000  # the time limit for every wait, while other tests keep the cores busy
# A function that opens a page of a site, in a context with the given options.
Visit = Callable[..., Page]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    need(program, "Debian's chromium is not installed")
    expect.set_options(timeout=WITHIN_MS)
    with (
        sync_playwright() as playwright,
        # Its sandbox does not work as root or in a container; and it opens only our own pages.
        playwright.chromium.launch(executable_path=program, args=["--no-sandbox"]) as browser,
    ):
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_beanlite(tmp_path_factory.mktemp("browser"), "--history", "1d") as server:
        yield server


@pytest.fixture(scope="module")
def web(server: RunningServer) -> Iterator[Web]:
    with Web(f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db") as web:
        yield web


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Wire]:
    with Wire(server.connect()) as wire:
        yield wire


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Visit]:
    """Opens pages; the browser must report no error, and send no request to another site."""
    wrong: list[str] = []
    contexts = []

    def opened(web: Web, path: str, **options: Any) -> Page:
        site = f"http://{web.where}"
        context = chromium.new_context(base_url=site, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WITHIN_MS)
        page.on("console", lambda message: None if _is_no_fault(page, message) else wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(f"{site}/") else wrong.append(request.url))
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def stop_clock(page: Page, path: str) -> None:
    """Open a page in which time stands still but for what a test lets pass, and which refreshes itself at no other."""
    page.clock.install(time=0)
    page.goto(path)
    page.clock.pause_at(60)
    page.evaluate("refresh()")


def _is_no_fault(page: Page, message: ConsoleMessage) -> bool:
    """Return whether it reports only that the page was answered with 404, or 503, or that keys came very early."""
    if message.text.startswith("Autofocus processing was blocked because a document already has a focused element"):
        return True
    return message.location["url"] == page.url and bool(re.search("responded with a status of (4|503)", message.text))
