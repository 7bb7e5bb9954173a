"""The connected clients: admits them within the limits, finds the connection of each, and ends connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from beanlite.core.job import Job
from beanlite.core.queues import Outcome
from beanlite.core.tube import Client
from beanlite.errors import place_of
from beanlite.host import log
from beanlite.net.addresses import Addresses
from beanlite.net.allowed import Access
from beanlite.net.connection import Connection
from beanlite.net.gate import ClientGate
from beanlite.net.operators import Operators
from beanlite.net.refusals import Refusals
from beanlite.net.unread import unread_bytes

# How long a client that is done may take to close its side, or to read anything of what it has not read yet.
FAREWELL_S: Final = 2.0
# At the stop, the server does not wait for a client that has sent nothing for this long.
QUIET_S: Final = 0.02
# How long connections are examined in one go when rights have changed: what one takes is up to the rules.
TURN_S: Final = 0.002


class Roster:
    """All connections of a server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_connections: int,
        addresses: Addresses,
        gate: ClientGate,
        refusals: Refusals,
        spares_others: Callable[[Exception], bool],
    ) -> None:
        """``spares_others`` says of a bug that a client has met that it can't have harmed what clients share."""
        self.connections: dict[Client, Connection] = {}
        self._loop = loop
        self._max = max_connections
        self._addresses = addresses
        self._gate = gate
        self._refusals = refusals
        self._spares_others = spares_others
        self._farewells: dict[Client, Farewell] = {}
        """The farewells of clients that are done, the earliest first."""
        self._closed = False
        self._empty: asyncio.Event | None = None
        """At the stop: set when no socket is open."""
        self._bugs: dict[str, int] = {}
        """How often clients have met each bug in the server, by its file and line."""

    def __len__(self) -> int:
        """Return the number of open sockets."""
        return len(self.connections) + len(self._farewells)

    def admit(self, connection: Connection, transport: asyncio.BaseTransport) -> bool:
        """Add a new connection and return True, unless a limit is reached or the server is stopping.

        A client that has reset its connection already is not admitted either: its address, on which limits and the
        rights of operators depend, is unknown, and uvloop would still deliver what it has sent.
        """
        peer = transport.get_extra_info("peername")
        if self._closed or peer is None:
            return False
        if len(self) >= self._max and not self._make_room():
            self._refusals.note("connections")
            return False
        address = self._addresses.address_of(peer)
        if self._addresses.is_full(address) and not self._make_room(address):
            self._refusals.note("connections-per-address")
            return False
        self._gate.admit(connection, transport)
        client = connection.session.client
        self._addresses.add(client, address)
        self.connections[client] = connection
        return True

    async def change(
        self, max_connections: int, most_pending: int, operators: Operators, access: Access | None
    ) -> None:
        """Apply changed limits to new connections, and changed rights to existing connections as well.

        Existing connections are examined in slices. ``most_pending`` may be without rights.
        """
        self._max = max_connections
        self._gate.change(operators, access, most_pending)
        until_s = self._loop.time() + TURN_S
        for connection in list(self.connections.values()):
            if not connection.ending.leaving:
                self._gate.look_again(connection)
            if self._loop.time() > until_s:
                await asyncio.sleep(0)
                until_s = self._loop.time() + TURN_S

    def act_for(self, client: Client, person: str) -> None:
        """Give a client the rights of a person, and no others."""
        self._gate.act_for(self.connections[client], person)

    def relay_for(self, client: Client, address: str, names: list[str], is_private: bool) -> bool:  # noqa: FBT001
        """Have the connection of a router be that of its client; returns False if it is one's already."""
        return self._gate.relay_for(self.connections[client], address, names, is_private=is_private)

    def forget(self, client: Client) -> None:
        """Remove a client, whose connection is closed."""
        connection = self.connections.pop(client, None)
        if connection is not None:
            self._gate.forget(connection)
        self._addresses.drop(client)
        self._tell_if_empty()

    def wake(self, client: Client, outcome: Job | Outcome) -> None:
        """Pass on the outcome of a client's wait, unless the client is just gone, so that its job goes back."""
        connection = self.connections.get(client)
        if connection is not None:
            connection.wake(outcome)

    def part(self, connection: Connection) -> None:
        """Close the connection of a client that is done, without losing replies that it has not read yet."""
        client = connection.session.client
        self.connections.pop(client, None)
        self._gate.forget(connection)
        quiet_s = QUIET_S if self._closed else FAREWELL_S
        self._farewells[client] = Farewell(self, connection, self._loop, quiet_s)

    def parted(self, client: Client) -> None:
        """Remove a client whose farewell is over."""
        self._farewells.pop(client, None)
        self._addresses.drop(client)
        self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if self._empty is not None and not len(self):
            self._empty.set()

    def _make_room(self, address: bytes | None = None) -> bool:
        """Cut short the oldest farewell that has nothing left to send, to make room for a new client.

        If an address is given, only farewells of its clients count. Returns whether there was one.
        """
        for client, farewell in self._farewells.items():
            if (address is None or self._addresses.has(client, address)) and farewell.cut_short():
                self.parted(client)
                return True
        return False

    def spare_others(self, bug: Exception) -> None:
        """Log a bug that one client has met, if it can't have harmed what clients share; raise any other."""
        if not self._spares_others(bug):
            raise bug
        place = place_of(bug)
        times = self._bugs[place] = self._bugs.get(place, 0) + 1
        if log.is_rare(times):
            met = "a lack of memory" if isinstance(bug, MemoryError) else "a bug of ours"
            log.error(f"a client has met {met}, and is closed", exc=bug, place=place, times=times)

    # -- the stop

    def close(self) -> None:
        """Admit no more clients, and carry out no more commands: otherwise there might always be more to store."""
        self._closed = True
        for connection in self.connections.values():
            connection.listen_no_more()

    async def part_from_all(self) -> None:
        """Close all connections once their replies are sent; return when all are closed, or after FAREWELL_S."""
        for farewell in self._farewells.values():
            farewell.cut_short()
        for connection in list(self.connections.values()):
            connection.part()
        if len(self):
            self._empty = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await self._empty.wait()


class Farewell(asyncio.Protocol):
    """What follows the last reply: the server half-closes, and reads on until the client has closed its side, too.

    If a socket is closed with unread data in it, the kernel sends RST instead of FIN, and replies in flight are lost.
    That is why everything that the client sends after ``quit`` is read and discarded.

    A client that reads, however slowly, gets all its replies. One that reads nothing is cut off: it holds a place.
    """

    __slots__ = ("_connection", "_heard", "_loop", "_quiet_s", "_roster", "_timer", "_transport", "_unread", "_until_s")

    def __init__(
        self,
        roster: Roster,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        quiet_s: float,
    ) -> None:
        """``quiet_s``: a client that has sent nothing for this long is not waited for; FAREWELL_S at most.

        That is for one to which everything has been sent.
        """
        self._roster = roster
        self._connection = connection
        self._transport = transport = connection.transport
        self._loop = loop
        self._quiet_s = quiet_s
        self._heard = False
        self._until_s = loop.time() + FAREWELL_S
        self._timer = loop.call_later(quiet_s, self._on_timer)
        transport.set_protocol(self)
        try:
            transport.write_eof()
            transport.resume_reading()
        except OSError:  # the client has closed both sides already
            transport.abort()
        self._unread = unread_bytes(transport)

    def data_received(self, _data: bytes) -> None:
        """Discard the data, but note that the client still sends."""
        self._heard = True

    def eof_received(self) -> bool:
        """Let the transport close itself, because the client has closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the farewell."""
        self._timer.cancel()
        self._roster.parted(self._connection.session.client)
        self._connection.connection_lost(exc)

    def _on_timer(self) -> None:
        # Check in the turn after the next: if the process was suspended, there may be something to read by then.
        self._loop.call_soon(self._loop.call_soon, self._end_if_quiet)

    def _end_if_quiet(self) -> None:
        unread, now_s = unread_bytes(self._transport), self._loop.time()
        if unread < self._unread:
            self._until_s = now_s + FAREWELL_S
        self._unread = unread
        if (unread or self._heard) and now_s < self._until_s:
            self._heard = False
            self._timer = self._loop.call_later(self._quiet_s, self._on_timer)
        elif unread:
            self._transport.abort()  # to close it would wait for the client
        else:
            self._transport.close()

    def cut_short(self) -> bool:
        """Close the connection without waiting for the client and return True, unless replies are left to send."""
        if self._transport.get_write_buffer_size():
            return False
        self._transport.close()
        return True
