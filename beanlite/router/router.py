"""The router: its start, its file of servers, its signals, and its stop."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import signal
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from beanlite import __version__
from beanlite.beanstalk.client import Server, parse_server
from beanlite.beanstalk.over_tls import OverTls, context_for, mark_of
from beanlite.errors import ConfigError
from beanlite.fleet.servers import Fleet
from beanlite.host import log, signals, systemd
from beanlite.net.certificates import Certificates
from beanlite.net.handshakes import Handshakes, most_pending
from beanlite.net.listener import BACKLOG, Listener, room_for
from beanlite.net.refusals import Refusals
from beanlite.router.known import Map
from beanlite.router.parting import Partings
from beanlite.router.router_host import RouterHost
from beanlite.router.sides import ClientSide
from beanlite.router.upstream import PROBES, Upstream

# How often the file of servers is looked at.
LOOK_S: Final = 1.0
# How long the stop waits for replies to what has been sent.
STOP_S: Final = 2.0
# So many clients are served at a time, if the limit of open files allows it.
CLIENTS_MAX: Final = 10_000


class Files(NamedTuple):
    """The files of a router: that of servers, and what it needs to connect to those at tls://."""

    servers: Path
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class TlsClients:
    """How many clients use TLS."""

    def __init__(self) -> None:
        self.tls_clients = 0


class Router:
    """A router in a running event loop."""

    def __init__(
        self, files: Files, listener: Listener, read_tls: Callable[[], ssl.SSLContext | None], *, relays: bool = False
    ) -> None:
        """``read_tls`` returns what encrypts for clients, if anything. ``relays``: servers are told for whom it asks.

        ConfigError: a file is wrong, or the limit of open files too low.
        """
        self._files = files
        self._listener = listener
        self._read_tls = read_tls
        self._tls = read_tls()
        self._handshakes: Handshakes | None = None
        self._loop = asyncio.get_running_loop()
        self._mark = mark_of(files.servers)
        self._contexts: dict[OverTls, ssl.SSLContext] = {}
        self._clients: set[ClientSide] = set()
        self._partings = Partings()
        self._refusals = Refusals()
        self._most = CLIENTS_MAX
        fleet = Fleet.load(files.servers)
        self._make_room(fleet)
        self._map = Map(fleet)
        self._stopped = asyncio.Event()
        self._looks = asyncio.Event()
        self._began_s = time.monotonic()
        self._instance = secrets.token_hex(8)
        self._host = RouterHost(self._map, {}, self._own_stats, self._admit, self._forget, relays, self._partings)
        self._connect_to(self._addresses_of(fleet))

    async def serve(self) -> None:
        """Run from start to stop, which may come before all servers have been looked for."""
        self._loop.set_exception_handler(_on_loop_error)
        for signum in signals.STOPS:
            self._loop.add_signal_handler(signum, self._stopped.set)
        self._loop.add_signal_handler(signals.RELOADS, self._looks.set)
        signal.signal(signals.DRAINS, signal.SIG_IGN)
        signals.hear()
        await self._look_for_servers()
        if not self._stopped.is_set():
            await self._route()
        await self._part()
        log.info("stopped")

    async def _look_for_servers(self) -> None:
        """Wait until each server was reached or could not be, or until the stop."""
        looked = asyncio.gather(*(upstream.looked.wait() for upstream in self._host.upstreams.values()))
        stopped = asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait((looked, stopped), return_when=asyncio.FIRST_COMPLETED)
        looked.cancel()
        stopped.cancel()

    async def _route(self) -> None:
        """Accept clients until the stop."""
        handshakes = None
        new = self._new
        if self._tls is not None:
            certificates = Certificates(self._tls, {}, {})
            handshakes = Handshakes(self._loop, certificates, most_pending(self._most), self._refusals, TlsClients())
            handshakes.open(self._new)
            self._handshakes = handshakes
        servers = [
            await self._loop.create_server(new if handshakes is None else handshakes.new, sock=sock, backlog=4)
            for sock in self._listener.sockets
        ]
        for sock in self._listener.sockets:
            sock.listen(BACKLOG)
        log.info(
            "routing",
            version=__version__,
            address=self._listener.address,
            servers=len(self._map.servers),
            map_version=self._map.fleet.version,
        )
        systemd.tell("READY=1")
        looking = self._loop.create_task(self._look())
        await self._stopped.wait()
        systemd.tell("STOPPING=1", "STATUS=Stopping")
        looking.cancel()
        for server in servers:
            server.close()
        if handshakes is not None:
            handshakes.close()

    async def _part(self) -> None:
        """Carry out no more commands, and wait for replies to those that have been sent."""
        for client in self._clients:
            client.end_commands()
        until_s = self._loop.time() + STOP_S
        while any(client.owes for client in self._clients) and self._loop.time() < until_s:  # noqa: ASYNC110 - clients come and go
            await asyncio.sleep(0.01)
        for client in list(self._clients):
            client.close()
        for upstream in self._host.upstreams.values():
            upstream.close()
        await asyncio.sleep(0)

    # -- clients

    def _new(self) -> ClientSide:
        return ClientSide(self._host)

    def _admit(self, client: ClientSide) -> bool:
        if len(self._clients) + len(self._partings) >= self._most and not self._partings.make_room():
            self._refusals.note("connections")
            return False
        self._clients.add(client)
        return True

    def _make_room(self, fleet: Fleet) -> None:
        """Serve as many clients as the limit of open files allows. ConfigError: none."""
        servers = len(fleet.members)
        each = 1 + servers
        there = sum(client.descriptors for client in self._clients) + len(self._partings)
        # One descriptor is left at least; the others of a first client are counted apart, so that there is room for it.

        def clients(descriptors: int) -> int:
            return (descriptors + servers) // each

        def others(descriptors: int) -> int:
            return servers * PROBES + servers + (0 if self._tls is None else most_pending(clients(descriptors)))

        room = clients(room_for(CLIENTS_MAX * each, there, others))
        if room not in {CLIENTS_MAX, self._most}:
            log.warning("the limit of open files allows fewer clients", max_clients=CLIENTS_MAX, room=room)
        self._most = self._refusals.limits["connections"] = room

    def _forget(self, client: ClientSide) -> None:
        self._clients.discard(client)

    def _own_stats(self) -> Mapping[str, str]:
        system = platform.uname()
        return {
            "pid": str(os.getpid()),
            "version": f'"{__version__}"',
            "uptime": str(int(time.monotonic() - self._began_s)),
            "id": self._instance,
            "hostname": f'"{socket.gethostname()}"',
            "os": f'"{system.version}"',
            "platform": f'"{system.machine}"',
        }

    # -- the file of servers

    async def _look(self) -> None:
        """Read the file again whenever it has changed."""
        watchdog_s = systemd.watchdog_s()
        every_s = LOOK_S if watchdog_s is None else min(LOOK_S, watchdog_s / 4)
        while True:
            try:
                async with asyncio.timeout(every_s):
                    await self._looks.wait()
            except TimeoutError:
                systemd.tell(f"STATUS=Routing {len(self._clients)} clients", "WATCHDOG=1")
            mark = mark_of(self._files.servers)
            if mark != self._mark or self._looks.is_set():
                self._mark = mark
                self._looks.clear()
                try:
                    self._read_again()
                except ConfigError as error:
                    log.error("file of servers not taken; the one before stays", error=error)
                except Exception as bug:  # noqa: BLE001 - later files are to be taken all the same
                    log.error("file of servers not taken", exc=bug)

    def _read_again(self) -> None:
        """Read the file, and route by it. ConfigError: something is wrong, and nothing has changed."""
        before, self._contexts = self._contexts, {}
        try:
            fleet = Fleet.load(self._files.servers)
            addresses = self._addresses_of(fleet)
            tls = self._read_tls()
            self._make_room(fleet)
        except BaseException:
            self._contexts = before
            raise
        if self._handshakes is not None:
            self._handshakes.limit(most_pending(self._most))
            if tls is not None:
                self._handshakes.renew(Certificates(tls, {}, {}))
        self._map.change(fleet)
        self._connect_to(addresses)
        for client in list(self._clients):
            client.look_again()
        log.info("file of servers read again", servers=len(self._map.servers), map_version=fleet.version)

    def _addresses_of(self, fleet: Fleet) -> dict[int, list[Server]]:
        """Return the addresses of each server by its number. ConfigError: one of them is none."""
        addresses: dict[int, list[Server]] = {}
        for member in fleet.members:
            for where in member.connect:
                given = (self._files.ca, self._files.cert, self._files.key) if where.startswith("tls://") else ()
                address = parse_server(where, *given)
                if isinstance(address, OverTls):
                    self._context_of(address)
                addresses.setdefault(member.number, []).append(address)
        return addresses

    def _context_of(self, address: OverTls) -> ssl.SSLContext:
        """Return what a connection over TLS needs. ConfigError: a file for it can't be used."""
        context = self._contexts.get(address)
        if context is None:
            context = self._contexts[address] = context_for(address)
        return context

    def _connect_to(self, addresses: dict[int, list[Server]]) -> None:
        upstreams = self._host.upstreams
        for number, upstream in list(upstreams.items()):
            if addresses.get(number) != upstream.addresses or self._map.servers.get(number) is not upstream.server:
                del upstreams[number]
                upstream.close()
        for number, server in self._map.servers.items():
            if number not in upstreams:
                server.away = False
                upstreams[number] = Upstream(
                    server, addresses[number], self._context_of, self._tell_back, relays=self._host.relays
                )
                upstreams[number].suspect()

    def _tell_back(self) -> None:
        for client in list(self._clients):
            client.come_back()


def _on_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    error = context.get("exception")
    if isinstance(error, OSError):
        log.debug(str(context.get("message")), error=error)
    else:
        log.error(str(context.get("message")), exc=error if isinstance(error, BaseException) else None)
