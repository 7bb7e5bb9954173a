"""The pictures of docs/web.md: ``python -m tests.web.browser.screenshots`` makes them, of real pages."""

import contextlib
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, ViewportSize, expect, sync_playwright

from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire
from tests.web.browser.shop import fail, fill, make_older, trade

IMAGES = Path(__file__).parents[3] / "docs/images"
# Name, path, width, height and colours of each; {} is a buried job.
PICTURES: tuple[tuple[str, str, int, int, Literal["light", "dark"]], ...] = (
    ("web-overview", "/?span=day", 1440, 1000, "light"),
    ("web-tube", "/tube/mail?state=buried&span=day", 1440, 1300, "light"),
    ("web-groups", "/jobs?q=state:buried+tube:web*&group=error.type", 1440, 560, "light"),
    ("web-job", "/job/{}", 1440, 900, "dark"),
)


def main(images: Path = IMAGES) -> None:
    """Make all of them."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with start_beanlite(folder, "--history", "7d") as server, Wire(server.connect()) as wire:
            job_id = fill(wire)
            fail(wire)
        make_older(folder / "queue.db")
        with (
            start_beanlite(folder, "--history", "7d") as server,
            Web(f"127.0.0.1:{server.port}", "--db", folder / "queue.db") as web,
            trade(server),
            sync_playwright() as playwright,
            playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"]) as browser,
        ):
            for name, path, width, height, colours in PICTURES:
                viewport: ViewportSize = {"width": width, "height": height}
                page = browser.new_page(viewport=viewport, color_scheme=colours, locale="en-GB")
                page.goto(f"http://{web.where}{path.format(job_id)}")
                if path.startswith("/?"):  # until something has happened
                    expect(page.locator(".rate dd").first).to_have_text(re.compile("[1-9]"), timeout=20_000)
                page.screenshot(path=images / f"{name}.png")
                page.close()
            take_several(folder, browser, images)


def take_several(folder: Path, browser: Browser, images: Path) -> None:
    """Make the picture of the page of several servers, one of which does not answer."""
    with contextlib.ExitStack() as stack:
        flags = []
        servers = {}
        for name in ("one", "two", "three", "four"):
            server = servers[name] = stack.enter_context(start_beanlite(folder / name))
            with Wire(server.connect()) as wire:
                fill(wire)
                if name == "two":
                    fail(wire)
            if name != "three":
                stack.enter_context(trade(server))
            flags += ["--connect", f"{name}={server.host}:{server.port}"]
        page = browser.new_page(viewport={"width": 1440, "height": 1000}, color_scheme="light", locale="en-GB")
        page.goto(f"http://{stack.enter_context(Web(None, *flags)).where}/")
        expect(page.locator(".rate dd").first).to_have_text(re.compile("[1-9]"), timeout=20_000)
        servers["three"].signal(signal.SIGSTOP)
        stack.callback(servers["three"].signal, signal.SIGCONT)
        expect(page.get_by_text("it does not answer").first).to_be_visible(timeout=20_000)
        page.screenshot(path=images / "web-servers.png")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
