"""The parts of a server, and how they are wired to each other."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from beanlite.beside.beside import Beside
from beanlite.commit.crossings import Crossings
from beanlite.commit.fetch import Fetcher
from beanlite.commit.group import GroupCommit
from beanlite.commit.latencies import Latencies
from beanlite.core.engine import Engine
from beanlite.core.tube import Client
from beanlite.host import log
from beanlite.host.clock import Clock
from beanlite.host.machine import MemoryLimit, default_max_memory, memory_limit
from beanlite.journal.base import Journal
from beanlite.net.addresses import Addresses
from beanlite.net.allowed import Access
from beanlite.net.buffers import Buffers, buffers_max_bytes
from beanlite.net.certificates import Certificates
from beanlite.net.connection import Connection, Host
from beanlite.net.debug import LoggedConnection
from beanlite.net.feed import Feed
from beanlite.net.gate import ClientGate
from beanlite.net.handshakes import Handshakes, most_pending
from beanlite.net.operators import Operators
from beanlite.net.refusals import Refusals
from beanlite.net.roster import Roster
from beanlite.net.turns import Turns
from beanlite.protocol.command_table import new_commands
from beanlite.protocol.framing import line_closes_from
from beanlite.protocol.operators.commands import new_operator_commands
from beanlite.protocol.session import Service
from beanlite.protocol.strangers import UNKNOWN_MAX
from beanlite.server.facts import facts_source
from beanlite.server.harm import spares_others
from beanlite.server.policies import PolicyLog
from beanlite.server.supervised import Supervised
from beanlite.settings.config import Settings


@dataclass(frozen=True, slots=True)
class Parts:
    """What a server has from the beginning. Reloads change these, and metrics are made from them."""

    engine: Engine
    journal: Journal
    refusals: Refusals
    addresses: Addresses
    roster: Roster
    buffers: Buffers
    feed: Feed
    service: Service
    handshakes: Handshakes | None
    memory_limit: MemoryLimit
    """What there was for this process when it started, before it had any jobs."""


def make_parts(
    loop: asyncio.AbstractEventLoop,
    settings: Settings,
    journal: Journal,
    clock: Clock,
    beside: Beside,
    access: Access | None,
    certificates: Certificates | None,
) -> Parts:
    """Make the parts that a server has before its journal is recovered. ``certificates``: for TLS, if it has that."""
    engine, refusals = Engine(), Refusals()
    engine.scheduler.utc_s, engine.scheduler.refused = clock.utc_s, refusals.note
    limit = memory_limit()
    set_bounds(settings, engine, refusals, limit, fetches=journal.fetches)
    if settings.history is not None and settings.journal:
        engine.ledger.start_recording()
    engine.ledger.keeps_bodies = settings.journal and settings.history_bodies
    addresses = Addresses(settings.connections_per_address, spare_local=settings.max_connections_per_address is None)
    most = most_pending(settings.max_connections)
    gate = ClientGate(loop, Operators(settings.operators), access, refusals.note_unauthorized, most)
    roster = Roster(loop, settings.max_connections, addresses, gate, refusals, spares_others)
    buffers = Buffers(engine.memory, engine.admission, refusals)
    handshakes = (
        None if certificates is None else Handshakes(loop, certificates, most, refusals, engine.memory, buffers)
    )
    feed = Feed(loop, engine.ledger, roster.connections, clock.utc_s)

    def bytes_buffered(client: Client) -> int:
        connection = roster.connections.get(client)
        return 0 if connection is None else buffers.amounts.get(connection.ending, 0)

    def contact_of(client: Client) -> tuple[int, int, str | None] | None:
        connection = roster.connections.get(client)
        if connection is None:
            return None
        last = connection.session.last
        return connection.since_ns, connection.heard_ns, None if last is None else last.word.decode()

    service = Service(
        engine,
        max_job_size=settings.max_job_size,
        facts=facts_source(engine, journal, refusals, beside, clock, handshakes, settings.file),
        commands=new_commands(),
        operator_commands=new_operator_commands(),
        refused=refusals.note,
        buffered=bytes_buffered,
        watch=feed.watch,
        utc_s=clock.utc_s,
        journaled=not journal.immediate,
    )
    service.policies_changed = PolicyLog().note
    service.contact_of = contact_of
    service.unauthorized = refusals.note_unauthorized
    service.act_for = roster.act_for
    service.relay_for = roster.relay_for
    gate.page_digest = sha256(beside.page_token.encode()).hexdigest()
    return Parts(engine, journal, refusals, addresses, roster, buffers, feed, service, handshakes, limit)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What serves clients, once the journal is recovered."""

    group_commit: GroupCommit
    turns: Turns
    fetcher: Fetcher
    supervised: Supervised
    host: Host

    def new_connection(self) -> Connection:
        """Make the protocol of a new client's connection."""
        return LoggedConnection(self.host) if log.is_debug() else Connection(self.host)


def wire(
    *,
    loop: asyncio.AbstractEventLoop,
    parts: Parts,
    clock: Clock,
    latencies: Latencies | None,
    tell_failure: Callable[[Exception], None],
) -> Wiring:
    """Wire the parts of a server whose journal is recovered. ``tell_failure`` is called when it has to stop."""
    engine, journal, roster = parts.engine, parts.journal, parts.roster
    engine.ledger.flows.since_ns = clock()
    crossings = Crossings(engine.memory)

    def tell_room() -> None:
        turns.resume_soon()
        crossings.look()

    group_commit = GroupCommit(
        loop,
        engine,
        journal,
        tell_failure=tell_failure,
        tell_room=tell_room,
        tell_events=parts.feed.tell,
        clock=clock,
        latencies=latencies,
    )

    def forget(client: Client) -> None:
        roster.forget(client)
        parts.feed.forget(client)

    turns = Turns(loop, engine, group_commit, clock, roster.wake)
    fetcher = Fetcher(loop, engine, journal, tell_failure)
    host = Host(
        turns=turns,
        buffers=parts.buffers,
        group=group_commit,
        service=parts.service,
        admit=roster.admit,
        forget=forget,
        part=roster.part,
        fetch=fetcher.fetch,
        spare_others=roster.spare_others,
    )
    return Wiring(group_commit, turns, fetcher, Supervised(loop, engine, journal, group_commit), host)


def set_bounds(settings: Settings, engine: Engine, refusals: Refusals, limit: MemoryLimit, *, fetches: bool) -> None:
    """Set the engine's bounds on memory, from the settings or from what the machine has, and on tubes.

    ``fetches``: the journal can fetch bodies.
    """
    max_bytes = default_max_memory(limit) if settings.max_memory is None else int(settings.max_memory)
    if max_bytes > limit.room_bytes:
        log.warning(
            "max_memory is more than what is available",
            max_memory=max_bytes,
            available=limit.room_bytes,
            by=limit.source,
        )
    body_max_bytes = max_bytes if settings.body_memory is None else int(settings.body_memory)
    engine.bound_memory(max_bytes, body_max_bytes, fetches=fetches)
    engine.clients.max_tubes = settings.max_tubes
    engine.clients.max_watched = settings.max_watched
    refusals.limits = {
        "connections": settings.max_connections,
        "connections-per-address": settings.connections_per_address,
        "tubes": settings.max_tubes,
        "watched": settings.max_watched,
        "memory": max_bytes,
        "line": line_closes_from(settings.max_job_size),
        "protocol": UNKNOWN_MAX,
        "buffers": buffers_max_bytes(engine.memory),
    }
