"""Tests the web page without a browser: a real ``beanlite web`` process, and its responses."""

import asyncio
import base64
import html
import http.client
import os
import re
import ssl
import urllib.parse
from pathlib import Path
from typing import NamedTuple, Self

from starlette.types import Message

from beanlite.console.live import Live
from beanlite.web.app import make_app
from beanlite.web.site import Site
from tests.support.forks import fork
from tests.support.servers import RunningServer
from tests.support.wire import until


class Page(NamedTuple):
    """A response."""

    path: str
    status: int
    headers: http.client.HTTPMessage
    html: str

    @property
    def text(self) -> str:
        """The visible text."""
        return text_of(self.html)

    @property
    def fields(self) -> dict[str, str]:
        """The hidden fields of its forms."""
        found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', self.html)
        return {html.unescape(name): html.unescape(value) for name, value in found}


def ask_over_tls(where: str, ca: Path) -> tuple[int, http.client.HTTPMessage, object]:
    """Return the status and the headers of a page that encrypts, and the serial number of its certificate."""
    connection = http.client.HTTPSConnection(where, timeout=30, context=ssl.create_default_context(cafile=ca))
    try:
        connection.request("GET", "/")
        serial = (connection.sock.getpeercert() or {}).get("serialNumber")
        response = connection.getresponse()
        return response.status, response.headers, serial
    finally:
        connection.close()


def page_of(server: RunningServer, number: int = 1) -> tuple[str, int]:
    """Wait for the page that a server has started as the first, the second, ...; return its address and process id."""
    until(lambda: len(_pages_of(server)) >= number)
    return _pages_of(server)[number - 1]


def _pages_of(server: RunningServer) -> list[tuple[str, int]]:
    found = re.findall(r"serving the web page at=http://(\S+)/ pid=(\d+)", server.log_text())
    return [(where, int(pid)) for where, pid in found]


def ask(where, path="/", login="", **headers):
    """Return a page's response, to a user given as NAME:PASSWORD; None if there is none."""
    connection = http.client.HTTPConnection(where, timeout=30)
    try:
        connection.request("GET", path, headers=headers | (sign_in(login) if login else {}))
        response = connection.getresponse()
        return response.status, response.read().decode()
    except ConnectionError:
        return None
    finally:
        connection.close()


class Web:
    """``beanlite web`` for a server, or for those that flags name. Leaving its ``with`` stops it."""

    def __init__(self, connect: str | None, *flags: str | Path, user: str | None = None) -> None:
        place = [] if connect is None else ["--connect", connect]
        listen = [] if "--listen" in flags else ["--listen", "127.0.0.1:0"]
        args = ["web", *place, *listen, *map(str, flags)]
        read, write = os.pipe()
        with os.fdopen(write, "wb") as output:
            self.process = fork(args, Path.cwd(), os.environ, output)
        self._output = os.fdopen(read)
        line = self._output.readline()
        found = re.fullmatch(r"beanlite: http://(.*)/ shows .+\n", line)
        assert found, line
        self.where: str = found[1]
        self.headers = {} if user is None else sign_in(user)
        self.warnings = ""
        """What is logged after the start, once it has stopped."""

    def get(self, path: str, **headers: str) -> Page:
        """Get a page."""
        return self._ask("GET", path, None, headers)

    def post(self, path: str, fields: dict[str, object], **headers: str) -> Page:
        """Submit a form of ours with these fields; return the resulting page, after a redirect."""
        body = urllib.parse.urlencode(fields, doseq=True)
        given = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
        page = self._ask("POST", path, body, given | {key.replace("_", "-"): value for key, value in headers.items()})
        return page if page.status != 303 else self.get(page.headers["location"])

    def _ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Page:
        connection = http.client.HTTPConnection(self.where, timeout=30)
        try:
            connection.request(method, path, body, self.headers | headers)
            response = connection.getresponse()
            return Page(path, response.status, response.headers, response.read().decode())
        finally:
            connection.close()

    def ended(self) -> str:
        """Wait until it has ended, and return what it has printed since its start."""
        with self._output:
            said = self._output.read()
        self.process.wait(20)
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.terminate()
        self.warnings = self.ended()
        unexpected = [line for line in self.warnings.splitlines() if " WARNING beanlite: " not in line]
        assert (self.process.returncode, unexpected) == (0, []), self.warnings


def ended(web: Web, page: Page) -> Page:
    """Return the page that a change leads to; under load this is that of its progress."""
    while "so far" in page.text:
        page = web.get(page.path)
    return page


def tubes_on(page: Page) -> list[str]:
    """Return the names in a page's table of tubes."""
    return re.findall('<td class="name lead"[^>]*><a href="/tube/[^"]*">([^<]*)<', page.html)


def sign_in(user: str) -> dict[str, str]:
    """Return the header that a browser sends after a user has entered NAME:PASSWORD."""
    return {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


def made_by(site: Site[Live], target: str, form: dict[str, object] | None = None, **state: object) -> str:
    """Return a page, as the application makes it in this process; the site is closed then.

    With a ``form``, the response to that.
    """
    body = urllib.parse.urlencode(form or {}).encode()
    headers = {"host": "localhost", "sec-fetch-site": "same-origin", "content-length": str(len(body))}

    async def make() -> str:
        path, _, query = target.encode().partition(b"?")
        scope = {
            "type": "http", "method": "GET" if form is None else "POST", "path": path.decode(), "raw_path": path,
            "query_string": query, "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            "client": None, "server": None, "scheme": "http", "root_path": "", "state": state,
        }  # fmt: skip
        sent: list[bytes] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message.get("body", b""))

        await make_app(site)(scope, receive, send)
        await site.close()
        return b"".join(sent).decode()

    return asyncio.run(make())


def text_of(page: str) -> str:
    """Return the visible text of a page: without tags, and with runs of white space as one blank."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
