"""What the server tells of itself in ``stats`` and in the metrics."""

import os
import platform
import resource
from collections.abc import Callable
from pathlib import Path

from beanlite import __version__
from beanlite.beside.beside import Beside
from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS
from beanlite.host.clock import Clock
from beanlite.journal.base import Journal
from beanlite.net.handshakes import Handshakes
from beanlite.net.refusals import Refusals
from beanlite.protocol.stats import Facts


def facts_source(
    engine: Engine,
    journal: Journal,
    refusals: Refusals,
    beside: Beside,
    clock: Clock,
    handshakes: Handshakes | None,
    db: Path | None,
) -> Callable[[], Facts]:
    """Return what collects the facts of a server that is started now; ``db``: its file, if it has one."""
    started_ns = clock.since_boot_ns()
    instance = os.urandom(8).hex()

    def collect() -> Facts:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        system = platform.uname()
        figures, backups = journal.facts(), beside.backups
        return Facts(
            pid=os.getpid(),
            version=__version__,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            uptime_s=(clock.since_boot_ns() - started_ns) // SECOND_NS,
            instance=instance,
            hostname=system.node,
            os=system.version,
            platform=system.machine,
            journaled=figures.keeps_jobs,
            batches=engine.ledger.stored_batch if figures.keeps_jobs else 0,
            records=figures.records,
            wal_bytes=figures.log_bytes,
            wal_bytes_max=figures.log_bytes_max,
            refused=refusals.counts,
            backup_succeeded_at=0 if backups is None else backups.succeeded_at,
            backup_failed_at=0 if backups is None else backups.failed_at,
            history_bodies_max=figures.history_bodies_max,
            disk_free=None if db is None else _free_bytes(db),
            database_bytes=None if db is None else _size_bytes(db),
            certificate_ends_s=None if handshakes is None else handshakes.certificates.ends_s,
            connections_max=refusals.limits["connections"],
            makes_backups=backups is not None,
        )

    return collect


def _size_bytes(db: Path) -> int | None:
    """Return how large the database file is, without its -wal; None if that can't be told."""
    try:
        return db.stat().st_size
    except OSError:
        return None


def _free_bytes(db: Path) -> int | None:
    """Return how many bytes are free in the file system that has the database; None if it can't say."""
    try:
        disk = os.statvfs(db.parent)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
