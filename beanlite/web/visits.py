"""The connections of browsers: none is kept for a request that does not come, and such ones make room for others."""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

# Connections at a time; for a further one the one is closed that has kept us waiting longest.
CONNECTIONS_MAX: Final = 200
# How long a request, or the next one on the same connection, may take to arrive.
REQUEST_S: Final = 30.0


class Visit(H11Protocol):
    """A connection. uvicorn itself waits for the rest of a request for ever, and then serves nobody else."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*args, **kwargs)
        self._since_s = 0.0
        """Since when the present request has been waited for."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make room for the connection, and wait for its first request."""
        if len(self.connections) >= CONNECTIONS_MAX:
            self._make_room()
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._wait()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._since_s = self.loop.time()
        self._timer = self.loop.call_later(REQUEST_S, self._be_late)

    def _be_late(self) -> None:
        if self._waits_for_request():
            self.cut_off()

    def _waits_for_request(self) -> bool:
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
