"""The connections of browsers: none is kept for a request that does not come, and such ones make room for others.

What is under way for a browser that has gone ends, and so does a response that is not read.
"""

import asyncio
import ssl
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from beanlite.net.addresses import Addresses
from beanlite.net.pace import Pace
from beanlite.net.tls import Tls

# Connections at a time, and as many whose handshake is not over; for a further one the one is closed that has kept us
# waiting longest.
CONNECTIONS_MAX: Final = 200
# How long a handshake, the head of a request, its body, or the next head on the same connection, may take; and in which
# time this much of a response has to be read, if there is so much.
REQUEST_S: Final = 30.0
READ_MIN: Final = 1 << 20
# How many handshakes of one address there may be.
HANDSHAKES_MAX: Final = 20


class Visit(H11Protocol):
    """A connection. uvicorn itself waits for the rest of a request for ever, and then serves nobody else."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*args, **kwargs)
        self._since_s = 0.0
        """Since when the present request has been waited for."""
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        """While the client has to read."""
        self._task: asyncio.Task[Any] | None = None
        """What answers the last request."""
        self.app = self._answer

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - likewise
        """Answer a request, for whose body there is time from now on."""
        self._wait()
        cycle, self._task = self.cycle, asyncio.current_task()
        scope["state"]["has_gone"] = lambda: cycle.disconnected
        try:
            await self.config.loaded_app(scope, receive, send)
        except asyncio.CancelledError:
            if not cycle.disconnected:
                raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make room for the connection, and wait for its first request."""
        if len(self.connections) >= CONNECTIONS_MAX:
            self._make_room()
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and end what only looks."""
        for timer in (self._timer, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        if self._task is not None and self.cycle.disconnected and self.cycle.scope["method"] in {"GET", "HEAD"}:
            self._task.cancel()

    def eof_received(self) -> None:
        """Close the connection, which may stay half-open under TLS."""
        self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._wait()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._have_read()

    def resume_writing(self) -> None:
        """Go on, since the client has read; if that was all of the response, wait for the next request from now on."""
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
        self._wait()

    def _have_read(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(REQUEST_S, self._be_slow, unread)

    def _be_slow(self, unread: int) -> None:
        """Close the connection if the client has read little of what it had not read a while ago."""
        if self.transport.get_write_buffer_size() > unread - READ_MIN:
            self.cut_off()
        else:
            self._have_read()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._since_s = self.loop.time()
        self._timer = self.loop.call_later(REQUEST_S, self._be_late)

    def _be_late(self) -> None:
        if self._waits_for_request():
            self.cut_off()

    def _waits_for_request(self) -> bool:
        if self.flow.write_paused:  # a response is complete once it is written, however much of it is unread
            return False
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _make_room(self) -> None:
        """Close the connection whose client has been waited for longest: for its request or, if none is, to read."""
        visits = [visit for visit in self.connections if isinstance(visit, Visit)]
        waiting = [visit for visit in visits if visit._waits_for_request()] or [  # noqa: SLF001 - of the same class
            visit for visit in visits if visit.flow.write_paused
        ]
        if waiting:
            min(waiting, key=lambda visit: visit._since_s).cut_off()  # noqa: SLF001 - likewise

    def cut_off(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()


class Door:
    """The handshakes of browsers. uvicorn's own are not bounded in number."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.pace = Pace()
        self._given: dict[str, Any] = {}
        self._addresses = Addresses(HANDSHAKES_MAX, spare_local=True)
        self._pending: dict[Tls, asyncio.TimerHandle] = {}
        """The end of the time of each connection, the earliest first."""

    def __call__(self, **given: Any) -> Tls:  # noqa: ANN401 - uvicorn's own, and the same each time
        """Make the protocol of a new connection."""
        self._given = given
        return Tls(self)

    def begin(self, tls: Tls) -> None:
        """Give a new connection some time, unless its address has many; if there are too many, close the earliest."""
        address = self._addresses.address_of(tls.get_extra_info("peername"))
        if self._addresses.is_full(address):
            tls.abort()
            return
        if len(self._pending) >= CONNECTIONS_MAX:
            earliest = next(iter(self._pending))
            self._forget(earliest)
            earliest.abort()
        self._addresses.add(tls, address)
        self._pending[tls] = asyncio.get_running_loop().call_later(REQUEST_S, tls.abort)

    def new_session(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Make what encrypts and decrypts for a connection."""
        return self._context.wrap_bio(incoming, outgoing, server_side=True)

    def go_on(self, tls: Tls) -> None:
        """Go on with the handshake of a connection soon."""
        asyncio.get_running_loop().call_soon(tls.shake)

    def keep(self, tls: Tls, size: int) -> None:
        """Count nothing: connections are few."""

    def admit(self, tls: Tls, *, is_kept: bool) -> Visit:  # noqa: ARG002 - as for the queue
        """Return the protocol of a browser whose handshake is over."""
        self._forget(tls)
        return Visit(**self._given)

    def refuse(self, tls: Tls, reason: str) -> None:  # noqa: ARG002 - likewise
        """Close a connection before its handshake is over."""
        self._forget(tls)
        tls.close()

    def refuse_for(self, tls: Tls, error: ssl.SSLError) -> None:
        """Close a connection whose handshake has failed."""
        self.refuse(tls, str(error))

    def end(self, tls: Tls, *, has_session: bool) -> None:  # noqa: ARG002 - likewise
        """Forget a connection that is closed."""
        self._forget(tls)

    def _forget(self, tls: Tls) -> None:
        timer = self._pending.pop(tls, None)
        if timer is not None:
            timer.cancel()
            self._addresses.drop(tls)
