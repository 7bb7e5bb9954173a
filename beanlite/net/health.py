"""The HTTP endpoints for monitoring the server: whether it is alive, whether it is ready, and its metrics.

They speak as much of HTTP as a probe or Prometheus needs: GET or HEAD without a body, one request per connection.

Over the loopback interface they are served under no name with a dot in it. Such a name is that of some site, whose page
had its name lead to this machine so that the browser lets it read what is here (DNS rebinding). Over other interfaces
any name may be that of this machine, and all who reach it may read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Final, cast

from beanlite.host import log
from beanlite.net.listener import tcp_sockets
from beanlite.settings.values import is_loopback

# Connections served at a time; for a further one the one is closed that has kept us waiting longest.
CONNECTIONS_MAX: Final = 8
# The most bytes of a request.
REQUEST_MAX: Final = 8192
# How long a connection may last, whether the request arrives slowly or the response is read slowly.
LASTS_S: Final = 10.0

PLAIN: Final = "text/plain; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Health:
    """The HTTP listener of a server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        readiness: Callable[[], tuple[bool, str]],
        page: Callable[[], Awaitable[bytes]],
        page_type: str,
    ) -> None:
        """``readiness`` returns whether clients are served, and how or why not; ``page`` makes the page of metrics."""
        self.loop = loop
        self.readiness = readiness
        self.page = page
        self.page_type = page_type
        self.connections: dict[Probe, None] = {}
        """The connections, the earliest first."""
        self._servers: list[asyncio.Server] = []
        self._floods = log.Seldom()

    async def open(self, host: str, port: int) -> None:
        """Start listening. ListenError: that fails."""
        backlog = 2 * CONNECTIONS_MAX
        sockets = tcp_sockets(host, port, backlog, ", for --health")
        self._servers = [
            await self.loop.create_server(lambda: Probe(self), sock=sock, backlog=backlog) for sock in sockets
        ]
        bound = sockets[0].getsockname()
        log.info("serving health and metrics", host=bound[0], port=bound[1])

    def make_room(self) -> bool:
        """Close the connection that waits longest for its client; return whether there is one.

        The first to go are those that have not sent a request: probes send theirs at once.
        """
        waiting = [visit for visit in self.connections if not visit.is_busy]
        if not waiting:
            return False
        self._floods.warning("health connection closed in favour of a newer one", at_most=CONNECTIONS_MAX)
        min(waiting, key=lambda visit: visit.is_answered).cut_off()
        return True

    def close(self) -> None:
        """Stop listening, and close all connections."""
        for server in self._servers:
            server.close()
        for visit in list(self.connections):
            visit.cut_off()


def is_local_name(place: str) -> bool:
    """Whether a host, with or without a port, is an address, localhost, or a name that no site can have."""
    host = place if place.endswith("]") else place.rpartition(":")[0] or place
    with contextlib.suppress(ValueError):
        return bool(ip_address(host.removeprefix("[").removesuffix("]")))
    name = host.lower().removesuffix(".")
    return "." not in name or name.endswith(".localhost")


class Probe(asyncio.Protocol):
    """One connection: a request and its response."""

    __slots__ = ("_health", "_received", "_task", "_timer", "_transport")

    def __init__(self, health: Health) -> None:
        self._health = health
        self._received = b""
        self._task: asyncio.Task[None] | None = None
        """Makes the response, if that takes a while."""
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection's timeout; close the connection at once if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        connections = self._health.connections
        if len(connections) >= CONNECTIONS_MAX and not self._health.make_room():
            self._transport.abort()
            return
        connections[self] = None
        self._timer = self._health.loop.call_later(LASTS_S, self.cut_off)

    def data_received(self, data: bytes) -> None:
        """Gather a request and answer it; whatever follows the request is ignored."""
        if self._transport is None or self._transport.is_closing() or self._task is not None:
            return
        self._received += data
        head, end, _ = self._received[:REQUEST_MAX].partition(b"\r\n\r\n")
        if end:
            self._answer(*head.decode("latin-1").split("\r\n"))
        elif len(self._received) > REQUEST_MAX:
            self._send(400, "the request is too long\n")

    def eof_received(self) -> bool:
        """Keep the connection open for a response that is still being made."""
        return self._task is not None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """Forget the connection."""
        self._health.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._transport = None

    def cut_off(self) -> None:
        """Close the connection at once."""
        self._health.connections.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_busy(self) -> bool:
        """Whether the response is being made."""
        return self._task is not None

    @property
    def is_answered(self) -> bool:
        """Whether the response has been made, and is being read."""
        return self._transport is None or self._transport.is_closing()

    def _answer(self, line: str, *fields: str) -> None:
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._send(400, "this is not HTTP/1\n")
            return
        if not self._is_own_host(fields):
            self._send(421, "this is not served under this name on this machine; ask for localhost\n")
            return
        method, target, _ = words
        path = target.partition("?")[0]
        head = method == "HEAD"
        if path not in {"/healthz", "/readyz", "/metrics"}:
            self._send(404, "there are /healthz, /readyz and /metrics\n", head=head)
        elif method not in {"GET", "HEAD"}:
            self._send(405, "only GET and HEAD\n")
        elif path == "/healthz":
            self._send(200, "alive\n", head=head)
        elif path == "/readyz":
            is_ready, how = self._health.readiness()
            self._send(200 if is_ready else 503, f"{how}\n", head=head)
        else:
            self._task = self._health.loop.create_task(self._send_page(head=head))

    def _is_own_host(self, fields: tuple[str, ...]) -> bool:
        """Whether the request is for a host that may be this one. Browsers always name one, probes not always."""
        assert self._transport is not None
        named = [
            value.strip() for name, _, value in (field.partition(":") for field in fields) if name.lower() == "host"
        ]
        return not is_loopback(self._transport.get_extra_info("sockname")[0]) or all(map(is_local_name, named))

    async def _send_page(self, *, head: bool) -> None:
        try:
            page = await self._health.page()
        except Exception as bug:  # noqa: BLE001 - the queue is served all the same
            log.error("could not make the metrics", exc=bug)
            self._send(500, "could not make the metrics; see the log\n", head=head)
        else:
            self._send_bytes(200, page, self._health.page_type, head=head)
        finally:
            self._task = None

    def _send(self, status: int, text: str, *, head: bool = False) -> None:
        self._send_bytes(status, text.encode(), PLAIN, head=head)

    def _send_bytes(self, status: int, body: bytes, content_type: str, *, head: bool) -> None:
        if self._transport is None:
            return
        allow = "Allow: GET, HEAD\r\n" if status == 405 else ""
        start = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            f"{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        ).encode()
        self._transport.write(start if head else start + body)
        self._transport.close()
