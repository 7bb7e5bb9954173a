"""Who is connected: how many clients are let in, how each is reached, and how their connections are ended."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from beanlite import log
from beanlite.core.job import Job
from beanlite.core.queues import Outcome
from beanlite.core.tube import Client
from beanlite.errors import place_of, spares_others
from beanlite.net.addresses import Addresses
from beanlite.net.connection import Connection
from beanlite.net.operators import Operators
from beanlite.net.refusals import Refusals, is_rare

# How long a client that is done has to close its side.
FAREWELL_S: Final = 2.0
# When the server stops, one that has sent nothing for so long is not waited for.
QUIET_S: Final = 0.02
# So many connections are looked at in one go when there are other operators.
SLICE: Final = 500


class Roster:
    """All connections of a server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_connections: int,
        addresses: Addresses,
        operators: Operators,
        refusals: Refusals,
    ) -> None:
        self.connections: dict[Client, Connection] = {}
        self._loop = loop
        self._max = max_connections
        self._addresses = addresses
        self._operators = operators
        self._refusals = refusals
        self._farewells: dict[Client, Farewell] = {}
        """Of clients that are done, the one parted from first at the front."""
        self._closed = False
        self._empty: asyncio.Event | None = None
        """At the stop: set when no socket is open any more."""
        self._bugs: dict[str, int] = {}
        """How often clients have met bugs of ours, by the place of each."""

    def __len__(self) -> int:
        """How many sockets are open."""
        return len(self.connections) + len(self._farewells)

    def admit(self, connection: Connection, transport: asyncio.BaseTransport) -> bool:
        """Take a new connection, if there is room for one more and the server is not stopping."""
        if self._closed:
            return False
        if len(self) >= self._max and not self._make_room():
            self._refusals.note("connections")
            return False
        peer = transport.get_extra_info("peername")
        address = self._addresses.address_of(peer)
        if self._addresses.is_full(address) and not self._make_room(address):
            self._refusals.note("connections-per-address")
            return False
        connection.session.operator = self._operators.include(peer)
        client = connection.session.client
        self._addresses.add(client, address)
        self.connections[client] = connection
        return True

    async def change(self, max_connections: int, operators: Operators) -> None:
        """Other limits hold from now on: fewer connections for those to come, other operators for those that are there.

        Of these, some are looked at in one go.
        """
        self._max = max_connections
        self._operators = operators
        for number, connection in enumerate(list(self.connections.values())):
            connection.session.operator = operators.include(connection.transport.get_extra_info("peername"))
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)

    def forget(self, client: Client) -> None:
        """Its connection is closed."""
        self.connections.pop(client, None)
        self._addresses.drop(client)
        self._tell_if_empty()

    def wake(self, client: Client, outcome: Job | Outcome, now_ns: int) -> None:
        """Tell a client what has ended its wait, unless it has just gone, and the job with it."""
        connection = self.connections.get(client)
        if connection is not None:
            connection.wake(outcome, now_ns)

    def part(self, client: Client, transport: asyncio.Transport) -> None:
        """Close the connection of a client that is done, without losing what it has not read yet."""
        self.connections.pop(client, None)
        quiet_s = QUIET_S if self._closed else FAREWELL_S
        self._farewells[client] = Farewell(self, client, transport, self._loop, quiet_s)

    def parted(self, client: Client) -> None:
        """The farewell is over."""
        self._farewells.pop(client, None)
        self._addresses.drop(client)
        self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if self._empty is not None and not len(self):
            self._empty.set()

    def _make_room(self, address: bytes | None = None) -> bool:
        """Cut short the oldest farewell that has nothing left to send, if there is one: new clients matter more.

        With an address, one that it has.
        """
        for client, farewell in self._farewells.items():
            if (address is None or self._addresses.has(client, address)) and farewell.cut_short():
                self.parted(client)
                return True
        return False

    def spare_others(self, bug: Exception) -> None:
        """Log a bug that one client has met, and that has left alone what others share; raise any other."""
        if not spares_others(bug):
            raise bug
        place = place_of(bug)
        times = self._bugs[place] = self._bugs.get(place, 0) + 1
        if is_rare(times):
            met = "a lack of memory" if isinstance(bug, MemoryError) else "a bug of ours"
            log.error(f"a client has met {met}, and is closed", exc=bug, place=place, times=times)

    # -- the end

    def close(self) -> None:
        """Let nobody in any more, and take no more commands: what there is to store might never end otherwise."""
        self._closed = True
        for connection in self.connections.values():
            connection.listen_no_more()

    async def part_from_all(self) -> None:
        """Close all connections once what has been answered is sent; returns when they are, or after FAREWELL_S."""
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
    """What follows the last reply: the server sends no more, and reads on until the client has closed its side, too.

    If a socket is closed while there is something to read in it, the client's kernel is told RESET instead of the end,
    and replies on their way are lost. What the client sends after ``quit`` is read and thrown away for that reason.
    """

    __slots__ = ("_client", "_heard", "_loop", "_quiet_s", "_roster", "_timer", "_transport", "_until_s")

    def __init__(
        self,
        roster: Roster,
        client: Client,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        quiet_s: float,
    ) -> None:
        """``quiet_s``: how long the client must have been quiet not to be waited for; FAREWELL_S at most."""
        self._roster = roster
        self._client = client
        self._transport = transport
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

    def data_received(self, _data: bytes) -> None:
        """The client still sends."""
        self._heard = True

    def eof_received(self) -> bool:
        """The client has closed its side."""
        return False  # the transport closes itself

    def connection_lost(self, _exc: Exception | None) -> None:
        """The socket is closed."""
        self._timer.cancel()
        self._roster.parted(self._client)

    def _on_timer(self) -> None:
        # In the turn after the next: if the process was halted, there may be something to read by now.
        self._loop.call_soon(self._loop.call_soon, self._end_if_quiet)

    def _end_if_quiet(self) -> None:
        if self._heard and self._loop.time() < self._until_s:
            self._heard = False
            self._timer = self._loop.call_later(self._quiet_s, self._on_timer)
        else:
            self._transport.close()

    def cut_short(self) -> bool:
        """Wait no longer for the client, unless there is something left to send; returns whether that is so."""
        if self._transport.get_write_buffer_size():
            return False
        self._transport.close()
        return True
