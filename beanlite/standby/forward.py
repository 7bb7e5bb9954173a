"""Forwards clients of a standby: their bytes go to the active server, and its replies come back.

The bytes are not examined, except for whether there is a line. Clients that have not sent one wait; while no server is
active all clients wait, either accepted or in the kernel's backlog. What a client sends stays in its socket until the
active server takes it, so all of it reaches whichever server is active next, which may be this one. Once the active
server has taken something from a client, losing the server closes the client's connection, too: nobody can know whether
a command without a reply was carried out.
"""

import asyncio
import contextlib
import socket
from functools import partial
from typing import Final

from beanlite.host import log
from beanlite.host.places import host_and_port, is_place
from beanlite.net.addresses import Addresses
from beanlite.net.listener import Listener, advertised, room_for
from beanlite.net.operators import Operators
from beanlite.net.refusals import Refusals
from beanlite.settings.config import Settings
from beanlite.standby.ends import End, Guest, ServerEnd, connect

# How long the active server may take to accept a connection, and how long after a failure to try again.
CONNECT_S: Final = 2.0
AGAIN_S: Final = 0.1
# How long the stop waits for replies to what clients have sent.
STOP_S: Final = 2.0
# How much is read at once, and the most that is buffered for each direction of a connection.
CHUNK_BYTES: Final = 1 << 14


def make_forwarder(settings: Settings, listener: Listener) -> "Forwarder | None":
    """Make what looks after clients while another server is active; None if the settings don't have them forwarded."""
    if settings.database is None or settings.standby == "refuse":
        return None
    most = room_for(2 * settings.max_connections) // 2  # each client takes two file descriptors
    per_address = settings.connections_per_address
    addresses = Addresses(per_address, spare_local=settings.max_connections_per_address is None)
    refusals = Refusals()
    refusals.limits |= {"connections": most, "connections-per-address": per_address}
    own = advertised(settings, listener)
    return Forwarder(listener, own, most, addresses, Operators(settings.operators), refusals)


class Forwarder:
    """Looks after clients while this server is a standby."""

    def __init__(
        self, listener: Listener, own: str, most: int, addresses: Addresses, operators: Operators, refusals: Refusals
    ) -> None:
        """``own`` is the address of this server for others; ``most`` is how many clients it serves at a time."""
        self._listener = listener
        self._own = own
        self._most = most
        self._addresses = addresses
        self._operators = operators
        self._refusals = refusals
        self._oddities = log.Seldom()
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._active: str | None = None
        self._accepts = False
        self._timer: asyncio.TimerHandle | None = None
        self._silent: dict[socket.socket, Guest] = {}
        """Clients that have not sent a line yet."""
        self._waiting: dict[socket.socket, Guest] = {}
        """Clients that have sent a line but are not connected to the active server yet, the earliest first."""
        self._served: dict[socket.socket, Guest] = {}
        self._own_ends: set[tuple[object, object]] = set()
        """The local and remote addresses of our own connections to the active server."""
        self._empty: asyncio.Event | None = None
        """At the stop: set when no client is connected to the active server."""

    @property
    def forwards_to(self) -> str | None:
        """The address of the active server while clients are forwarded to it."""
        return self._active if self._accepts else None

    def stand_by(self, active: str | None) -> None:
        """Forward clients to the active server at this address, from now on; None: this server is active."""
        self._let_go()
        self._cut_off()
        self._active = active
        if active == self._own:
            log.warning("the active server advertises the address of this one: clients wait", advertise=active)
        elif active is not None and not is_place(active):
            log.warning("clients refused: the active server advertises no address", address=active)
            self._listener.refuse(refuses=True)
        else:
            self._listener.refuse(refuses=False)
            if active is not None:
                log.info("forwarding clients", to=active)
                self._try()

    def hand_over(self) -> list[socket.socket]:
        """Give up the clients that still wait; return their sockets, to be served by this server itself, or closed."""
        loop = asyncio.get_running_loop()
        for sock in self._silent:
            loop.remove_reader(sock)
        waiting = [*self._waiting.values(), *self._silent.values()]
        for guest in waiting:
            guest.await_bytes(1)  # others take it over
            self._leave(guest.sock)
        return [guest.sock for guest in waiting]

    async def close(self) -> None:
        """Accept no more clients, and wait up to STOP_S for replies to what has been sent."""
        self._let_go()
        for sock in self.hand_over():
            sock.close()
        for guest in list(self._served.values()):
            guest.client.hear_no_more()
        if self._served:
            self._empty = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._empty.wait()
        self._cut_off()

    # -- accepting clients

    def _let_go(self) -> None:
        """Stop accepting and connecting clients for now."""
        self._accept(accepts=False)
        for guest in self._waiting.values():
            if guest.task is not None:
                guest.task.cancel()
                guest.task = None

    def _cut_off(self) -> None:
        for guest in list(self._served.values()):
            guest.cut_off()

    def _turn_away(self) -> None:
        """Refuse all clients, because they can't be forwarded to this active server."""
        self._let_go()
        self._cut_off()
        self._listener.refuse(refuses=True)
        for sock in self.hand_over():
            sock.close()

    def _accept(self, *, accepts: bool) -> None:
        """Accept clients, or leave them in the kernel's backlog for now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if accepts == self._accepts:
            return
        self._accepts = accepts
        loop = asyncio.get_running_loop()
        for sock in self._listener.sockets:
            if accepts:
                sock.setblocking(False)  # noqa: FBT003 - as it is declared
                loop.add_reader(sock, self._on_client, sock)
            else:
                loop.remove_reader(sock)

    def _try(self) -> None:
        """Connect the first waiting client to the active server; if there is none, accept clients."""
        self._timer = None
        for guest in self._waiting.values():
            if guest.task is None:
                self._start(guest)
                return
        self._accept(accepts=True)

    def _try_later(self) -> None:
        self._accept(accepts=False)
        self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._try)

    def _on_client(self, listening: socket.socket) -> None:
        try:
            sock, peer = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # there are no file descriptors left
            self._oddities.warning("could not accept a client", error=error)
            self._try_later()
            return
        address = self._addresses.address_of(peer)
        if len(self._silent) + len(self._waiting) + len(self._served) >= self._most:
            self._refusals.note("connections")
        elif self._addresses.is_full(address):
            self._refusals.note("connections-per-address")
        else:
            sock.setblocking(False)  # noqa: FBT003 - as above
            self._addresses.add(sock, address)
            self._silent[sock] = Guest(sock, peer, End(self._chunk, partial(self._leave, sock)))
            asyncio.get_running_loop().add_reader(sock, self._on_words, sock)
            return
        sock.close()

    def _on_words(self, sock: socket.socket) -> None:
        loop, guest = asyncio.get_running_loop(), self._silent[sock]
        try:
            has_asked = guest.has_asked()
        except OSError:
            loop.remove_reader(sock)
            self._dismiss(sock)
            return
        if has_asked:
            loop.remove_reader(sock)
            self._waiting[sock] = self._silent.pop(sock)
            if self._accepts:
                self._start(guest)

    def _dismiss(self, sock: socket.socket) -> None:
        self._leave(sock)
        sock.close()

    # -- connecting clients

    def _start(self, guest: Guest) -> None:
        assert self._active is not None
        guest.task = asyncio.get_running_loop().create_task(self._forward(guest, self._active))
        guest.task.add_done_callback(lambda task: None if task.cancelled() else task.result())  # a bug is raised

    async def _forward(self, guest: Guest, active: str) -> None:
        """Connect a client to the active server."""
        host, port = host_and_port(active)
        problem = ""
        try:
            async with asyncio.timeout(CONNECT_S):
                server = await connect(host, port, self._chunk, partial(self._leave, guest.sock))
        except OSError as error:
            problem = str(error) or "no answer in time"
        if problem:
            guest.task = None
            self._oddities.warning("could not connect to the active server", address=active, error=problem)
            self._try_later()
            return
        for other in self._waiting.values():  # the active server accepts connections
            if other.task is None:
                self._start(other)
        self._accept(accepts=True)
        guest.task = None
        if self._is_let_through(guest, server):
            if guest.pass_on(server, CHUNK_BYTES):
                self._served[guest.sock] = self._waiting.pop(guest.sock)
                await guest.tie(server)
                return
            self._try_later()
        elif guest.sock in self._waiting:
            self._dismiss(guest.sock)
        self._own_ends.discard(server.names)
        server.sock.close()

    def _is_let_through(self, guest: Guest, server: ServerEnd) -> bool:
        """Whether a client may be joined with this connection to the active server."""
        name = server.names[0]
        self._own_ends.add(server.names)
        # Compare both ends: the kernel may give a client the same local port, if it connects to a different address.
        if (guest.peer, guest.sock.getsockname()) in self._own_ends:
            log.error(
                "clients refused: forwarded connections come back; advertise must lead to one server",
                to=self._active,
            )
            self._turn_away()
            return False
        if self._operators.include(name) and not self._operators.include(guest.peer):
            self._oddities.warning("clients refused: the active server would take them for operators", by=name)
            return False
        return True

    def _leave(self, sock: socket.socket) -> None:
        """Forget a client, which is gone, or is looked after by others."""
        guest = self._silent.pop(sock, None) or self._waiting.pop(sock, None) or self._served.pop(sock)
        if guest.server is not None:
            guest.client.other = guest.server.other = None  # they would be a reference cycle
            self._own_ends.discard(guest.server.names)
        self._addresses.drop(sock)
        if self._empty is not None and not self._served:
            self._empty.set()
