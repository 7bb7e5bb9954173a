"""The readiness and the measurements of a server, and their HTTP endpoints: only with the setting ``health``."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from beanlite.commit.latencies import Latencies
from beanlite.core.job import SECOND_NS
from beanlite.core.measures import Measures
from beanlite.host.clock import utc_s
from beanlite.host.places import host_and_port
from beanlite.journal.base import Journal
from beanlite.metrics.diagnosed import Diagnosed
from beanlite.metrics.families import Measured, families
from beanlite.metrics.tubes import tube_lines
from beanlite.net.health import Health
from beanlite.protocol.replies import ERRORS
from beanlite.protocol.session import Service
from beanlite.protocol.stats import Facts, has_failed_backup
from beanlite.settings.config import Settings
from beanlite.standby.forward import Forwarder

# For this long after the page was made, requests get the same page.
_FRESH_S: Final = 1.0
# The server is not ready if a batch has not become durable for this long.
STUCK_S: Final = 10


class MetricsPage:
    """The page with all metrics, made in slices so that no client waits for it, and at most once a second."""

    def __init__(self, source: Measured) -> None:
        self._source = source
        self._diagnosed = Diagnosed(source.engine, source.clock)
        self._page = b""
        self._made_s: float | None = None
        """When the page was made, by the loop's clock; None if it has not been made yet."""
        self._lock = asyncio.Lock()

    async def get(self) -> bytes:
        """Return the page; make it first, unless it was made within the last second."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._made_s is None or loop.time() >= self._made_s + _FRESH_S:
                parts = []
                for part in self._parts():
                    parts.append(part)
                    await asyncio.sleep(0)
                self._page = b"".join(parts)
                self._made_s = loop.time()
            return self._page

    def _parts(self) -> Iterator[bytes]:
        source = self._source
        for family in families(source):
            yield generate_latest(cast(Any, SimpleNamespace(collect=[family].copy)))  # the library formats collectors
        for lines in tube_lines(source.engine, source.settings.metrics_tubes, source.clock):
            yield lines.encode()
        facts = source.facts()
        for lines in self._diagnosed.lines(backup_failed=facts is not None and has_failed_backup(facts)):
            yield lines.encode()


class Vitals:
    """The vital signs of a server, from before it recovers until it has stopped."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        journal: Journal,
        clock: Callable[[], int],
        forwarder: Forwarder | None,
    ) -> None:
        """Start measuring."""
        measures = service.engine.ledger.measures = Measures()
        service.errors = dict.fromkeys(ERRORS, 0)
        self.latencies = Latencies(measures, clock)
        self.recovered = False
        """The journal is recovered, and clients are served."""
        self._service = service
        self._journal = journal
        self._forwarder = forwarder
        assert settings.health is not None
        self._address = host_and_port(settings.health)
        self._page = MetricsPage(
            Measured(
                engine=service.engine,
                measures=measures,
                service=service,
                journal=journal,
                settings=settings,
                started_s=utc_s(clock()),
                clock=clock,
                unready=self.unready,
                facts=self._facts_if_recovered,
            )
        )

    async def open(self, stopped: asyncio.Event) -> None:
        """Open the endpoints; ``stopped`` is set when the server is to stop. ListenError: it can't listen there."""
        self._stopped = stopped
        self._health = Health(asyncio.get_running_loop(), self._readiness, self._page.get, CONTENT_TYPE_PLAIN_0_0_4)
        await self._health.open(*self._address)

    def close(self) -> None:
        """Close the endpoints."""
        self._health.close()

    def unready(self) -> str | None:
        """Return why the server does not serve, or refuses puts; None if it is ready."""
        admission = self._service.engine.admission
        if self._stopped.is_set():
            return "stopping"
        if not self.recovered:
            return "standing by" if self._journal.stands_by else "recovering"
        if admission.draining:
            return "draining"
        if admission.disk_full:
            return "the disk is full"
        if self.latencies.committing_ns() > STUCK_S * SECOND_NS:
            return f"the journal has not stored anything for {STUCK_S} s"
        return None

    def _readiness(self) -> tuple[bool, str]:
        """Return whether clients are served, by this server or by forwarding, and how or why not."""
        forwards_to = None if self._forwarder is None else self._forwarder.forwards_to
        if forwards_to is not None and not self._stopped.is_set():
            return True, f"standing by, forwarding to {forwards_to}"
        why = self.unready()
        return why is None, why or "ready"

    def _facts_if_recovered(self) -> Facts | None:
        return self._service.facts() if self.recovered else None
