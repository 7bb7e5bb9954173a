"""The start of a server, up to its event loop."""

import platform
import sys
from collections.abc import Callable
from typing import Final

from beanlite.beside.beside import check_page
from beanlite.host import log
from beanlite.host.clock import Clock
from beanlite.host.loop import loop_factory, run_loop
from beanlite.host.machine import share_one_heap
from beanlite.journal.base import Journal
from beanlite.journal.volatile import MemoryJournal
from beanlite.net.certificates import load_certificates
from beanlite.net.handshakes import most_pending
from beanlite.net.listener import Listener, advertised, become, open_listener, room_for
from beanlite.server.access_file import read_access, warn_of_page
from beanlite.server.policy_file import read_policies
from beanlite.server.server import Server
from beanlite.settings.config import Settings
from beanlite.standby.forward import Forwarder, make_forwarder

# A thread asks for the GIL once it has waited for so long without the loop letting go of it, and only then is given it:
# the loop lets go after each callback, and takes it again at once. With more than a short callback takes, the thread of
# a checkpoint hardly ever asked, and commits waited for it. This is Python's least.
THREAD_WAITS_S: Final = 1e-6
# Writing a larger body takes so long that other clients may have to wait for more than 0.1 s for their commits.
UNNOTICED_BYTES: Final = 8 << 20


def run(settings: Settings, load: Callable[[], Settings]) -> int:
    """Serve until stopped; returns 0. Raises BeanliteError if the start fails or, later, the journal.

    ``load`` reads the settings again.
    """
    room = room_for(settings.max_connections, others=None if settings.tls is None else most_pending)
    if room < settings.max_connections:
        log.warning(
            "the limit of open files allows fewer connections", max_connections=settings.max_connections, room=room
        )
        settings = settings.model_copy(update={"max_connections": room})
    if settings.max_job_size > UNNOTICED_BYTES:
        log.warning(
            "bodies larger than this hold up other clients", bytes=UNNOTICED_BYTES, max_job_size=settings.max_job_size
        )
    share_one_heap()
    sys.setswitchinterval(THREAD_WAITS_S)
    listener = open_listener(settings)
    try:
        new_loop = loop_factory()
        clock = Clock()
        # Before ``become``, since the other user may not be allowed to read the modules that are imported here.
        forwarder = make_forwarder(settings, listener)
        journal = make_journal(settings, listener, clock, forwarder)
        if settings.user is not None:
            become(settings.user)
        check_page(settings, listener.sockets)  # as the user that reads its files
        if settings.policies is not None:
            read_policies(settings.policies)  # a mistake in it is to end the start before anything is opened
        if settings.access is not None:
            warn_of_page(settings, read_access(settings.access))  # likewise
        # As the user, because each reload reads them again.
        certificates = None if settings.tls is None else load_certificates(settings)

        async def serve() -> None:
            await Server(settings, listener, journal, clock, load, forwarder, certificates).serve()

        run_loop(new_loop, serve)
    finally:
        listener.close()
    return 0


def make_journal(settings: Settings, listener: Listener, clock: Clock, forwarder: Forwarder | None = None) -> Journal:
    """Make the journal that the settings ask for; it is not open until ``Journal.recover``."""
    if not settings.journal:
        return MemoryJournal()
    # Imported only here, since --no-journal starts faster without them.
    from beanlite.journal.event_rows import HistoryBounds  # noqa: PLC0415

    history = HistoryBounds(settings.history_s, settings.history_bytes, settings.history_bodies)
    if settings.database is not None:
        from beanlite.journal.postgres.address import Entry  # noqa: PLC0415 - its package may not be installed
        from beanlite.journal.postgres.journal import PostgresJournal  # noqa: PLC0415 - as above

        node = settings.node or f"{platform.node()} {listener.address}"
        url = settings.database.get_secret_value()
        place = Entry(url, node, advertised(settings, listener), settings.lease_s, settings.require_sync)
        stand_by = listener.stand_by if forwarder is None else forwarder.stand_by
        return PostgresJournal(place, clock.since_boot_ns, stand_by, history)
    from beanlite.journal.sqlite.served.journal import SqliteJournal  # noqa: PLC0415 - likewise

    return SqliteJournal(
        settings.db, settings.fsync, settings.fsync_interval_ms, settings.max_job_size, listener.address, history
    )
