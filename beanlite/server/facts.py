"""What the server tells of itself in ``stats`` and in the metrics."""

import os
import platform
import resource

from beanlite import __version__
from beanlite.beside.beside import Beside
from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS
from beanlite.host.clock import Clock
from beanlite.journal.base import Journal
from beanlite.net.refusals import Refusals
from beanlite.protocol.stats import Facts


class ServerFacts:
    """Collects the facts of a server that was started when this object was made."""

    def __init__(self, engine: Engine, journal: Journal, refusals: Refusals, beside: Beside, clock: Clock) -> None:
        self._engine = engine
        self._journal = journal
        self._refusals = refusals
        self._beside = beside
        self._clock = clock
        self._started_ns = clock.since_boot_ns()
        self._instance = os.urandom(8).hex()

    def collect(self) -> Facts:
        """Return the facts as they are now."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        system = platform.uname()
        journal = self._journal.facts()
        return Facts(
            pid=os.getpid(),
            version=__version__,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            uptime_s=(self._clock.since_boot_ns() - self._started_ns) // SECOND_NS,
            instance=self._instance,
            hostname=system.node,
            os=system.version,
            platform=system.machine,
            journaled=journal.keeps_jobs,
            batches=self._engine.ledger.stored_batch if journal.keeps_jobs else 0,
            records=journal.records,
            wal_bytes=journal.log_bytes,
            wal_bytes_max=journal.log_bytes_max,
            refused=self._refusals.counts,
            backup_succeeded_at=self._beside.backup_succeeded_at,
            backup_failed_at=self._beside.backup_failed_at,
        )
