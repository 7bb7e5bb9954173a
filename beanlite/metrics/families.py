"""The metrics of the server as a whole, read on request from what it counts anyway."""

import os
import platform
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from beanlite import __version__, is_compiled
from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS
from beanlite.core.measures import Histogram, Measures
from beanlite.core.snapshot import server_snapshot
from beanlite.journal.base import DatabaseFigures, Journal, Standby, Tenure
from beanlite.metrics.tubes import EVENTS, POLICY_COUNTS
from beanlite.protocol.session import Service
from beanlite.protocol.stats import Facts
from beanlite.settings.config import Settings

_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# The kinds of refusals that concern connections.
_CONNECTIONS: Final = ("connections", "connections-per-address")


class Measured(NamedTuple):
    """The parts of the server that the metrics are read from."""

    engine: Engine
    measures: Measures
    service: Service
    journal: Journal
    settings: Settings
    """Those of the start."""
    started_s: float
    """When the server started, in UTC seconds."""
    clock: Callable[[], int]
    unready: Callable[[], str | None]
    """Why the server is not ready, or None."""
    facts: Callable[[], Facts | None]
    """The facts that ``stats`` reports; None while the journal is recovering."""


def families(source: Measured) -> Iterator[Metric]:
    """Yield all metrics, each with its samples."""
    yield from _process(source)
    yield from _jobs(source)
    facts = source.facts()
    yield from _clients(source, facts)
    yield from _memory(source)
    if facts is not None:
        yield from _refusals(facts)
        yield from _journal(source, facts)
        if facts.certificate_ends_s:
            yield _by_label(
                "tls_certificate_expires_seconds",
                "When the certificate in the file of each setting expires, in UTC seconds.",
                "setting",
                facts.certificate_ends_s,
                GaugeMetricFamily,
            )
        if facts.makes_backups:
            yield _gauge(
                "backup_last_success_timestamp_seconds",
                "When the newest scheduled backup was made, in UTC seconds; 0 if there is none.",
                facts.backup_succeeded_at,
            )


def _process(source: Measured) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "beanlite_build_info",
        "1; the labels are the version, whether it is compiled, and the version of Python.",
        labels=["version", "compiled", "python"],
    )
    build.add_metric([__version__, str(is_compiled()).lower(), platform.python_version()], 1)
    yield build
    yield _gauge("start_time_seconds", "When the server started, in UTC seconds.", source.started_s)
    admission = source.engine.admission
    yield _gauge("ready", "1 if the server itself serves and accepts puts.", source.unready() is None)
    yield _gauge("standing_by", "1 while another server with the same database is active.", source.journal.stands_by)
    yield _gauge("draining", "1 in drain mode.", admission.draining)
    yield _gauge("disk_full", "1 while puts are refused because the disk is full.", admission.disk_full)
    descriptors = _open_descriptors()
    yield _gauge("open_fds", "Open file descriptors.", descriptors)
    yield from _usual(source, descriptors)


def _usual(source: Measured, descriptors: int) -> Iterator[Metric]:
    """Yield what most programs tell of their process, under the names that general dashboards and alerts ask for."""
    virtual, resident = (int(pages) * _PAGE_BYTES for pages in _STATM.read_bytes().split()[:2])
    yield CounterMetricFamily(
        "process_cpu_seconds", "CPU time of the process, user and system.", value=time.process_time()
    )
    gauges = {
        "process_open_fds": ("Open file descriptors.", descriptors),
        "process_max_fds": ("The limit of open file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        "process_resident_memory_bytes": ("Memory of the process that is in RAM.", resident),
        "process_virtual_memory_bytes": ("Address space of the process.", virtual),
        "process_start_time_seconds": ("When the server started, in UTC seconds.", source.started_s),
    }
    for name, (meaning, value) in gauges.items():
        yield GaugeMetricFamily(name, meaning, value=value)


def _jobs(source: Measured) -> Iterator[Metric]:
    server, measures = server_snapshot(source.engine), source.measures
    yield _by_label(
        "jobs",
        "Jobs by state.",
        "state",
        {"ready": server.ready, "reserved": server.reserved, "delayed": server.delayed, "buried": server.buried},
        GaugeMetricFamily,
    )
    yield _gauge("tubes", "Tubes.", server.tubes)
    yield _by_label(
        "job_events",
        "What has happened to jobs since the start, as of a second ago.",
        "event",
        {event: getattr(measures.tally, event) for event in (*EVENTS, *POLICY_COUNTS)},
    )
    yield _histogram("job_wait_seconds", "For how long jobs were ready before they were reserved.", measures.waits)
    yield _histogram("job_hold_seconds", "For how long jobs were reserved.", measures.holds)


def _clients(source: Measured, facts: Facts | None) -> Iterator[Metric]:
    server, service, measures = server_snapshot(source.engine), source.service, source.measures
    yield _gauge("connections", "Connections.", server.clients)
    most = source.settings.max_connections if facts is None else facts.connections_max
    yield _gauge("connections_max", "Connections that are served at a time, at most.", most)
    yield _gauge("waiting_clients", "Clients that wait in a reserve.", server.waiting)
    commands = [*service.commands, *service.words.operators.values()]
    counts = {command.word.decode(): command.count for command in commands}
    yield _by_label("commands", "Commands since the start.", "command", counts)
    errors = {reply.decode().rstrip(): times for reply, times in (service.errors or {}).items()}
    yield _by_label("error_replies", "Replies since the start that say what could not be done.", "reply", errors)
    yield _histogram(
        "command_seconds",
        "From the turn of the loop in which commands came to the departure of their replies, without the waiting of a"
        " reserve; what a client has sent at once counts once.",
        measures.commands,
    )
    yield _histogram("loop_turn_seconds", "How long turns of the loop lasted that served clients.", measures.turns)


def _memory(source: Measured) -> Iterator[Metric]:
    memory = source.engine.memory
    resident = int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    yield _gauge("memory_resident_bytes", "Memory of the process that is in RAM.", resident)
    yield _gauge(
        "memory_used_bytes", "Memory that counts towards the limit, by the server's own count.", memory.used_bytes
    )
    yield _gauge("memory_bodies_bytes", "The part of the used memory that bodies take.", memory.shown_body_bytes)
    yield _gauge("memory_limit_bytes", "Puts are refused beyond this (the setting max_memory).", memory.max_bytes)
    yield _gauge(
        "memory_free_bytes",
        "Memory left for jobs, with that of bodies that the database has, too; puts are refused when it is used up.",
        max(0, memory.free_bytes),
    )
    yield _gauge("unloaded_jobs", "Jobs whose body is in the database only.", memory.unloaded)


def _refusals(facts: Facts) -> Iterator[Metric]:
    yield _by_label(
        "connections_refused",
        "Connections since the start that were one too many, in all or of one address.",
        "reason",
        {limit: facts.refused[limit] for limit in _CONNECTIONS},
    )
    yield _by_label(
        "refused",
        "How often since the start clients were refused tubes, watches or puts beyond max_jobs, or closed for what they"
        " sent or buffered, or before the end of their TLS handshake.",
        "reason",
        {limit: times for limit, times in facts.refused.items() if limit not in _CONNECTIONS},
    )


def _journal(source: Measured, facts: Facts) -> Iterator[Metric]:
    journal, measures = source.journal.facts(), source.measures
    if not journal.keeps_jobs:
        return
    yield CounterMetricFamily(
        "beanlite_journal_batches", "Batches that have become durable since the database was made.", value=facts.batches
    )
    yield _histogram("journal_batch_jobs", "Jobs that were written with a batch.", measures.batch_jobs, unit=1)
    yield _histogram(
        "journal_commit_seconds",
        "How long it took to write a batch: to the file without its sync, to PostgreSQL until that has confirmed it.",
        measures.commits,
    )
    if journal.unsynced_s is not None:
        yield _gauge(
            "journal_unsynced_seconds",
            "For how long something has been committed that is not synced yet; 0 if everything is.",
            journal.unsynced_s,
        )
    if source.settings.file is not None:
        yield from _file(source.settings.file, facts, measures)
    if journal.tenure is not None:
        yield from _tenure(journal.tenure)
    if journal.database is not None:
        yield from _database(journal.database)


def _file(db: Path, facts: Facts, measures: Measures) -> Iterator[Metric]:
    yield _histogram("journal_sync_seconds", "How long syncs took.", measures.syncs)
    yield _histogram("journal_checkpoint_seconds", "How long checkpoints took.", measures.checkpoints)
    yield _gauge("wal_bytes", "Size of the -wal file.", facts.wal_bytes)
    try:
        size_bytes, disk = db.stat().st_size, os.statvfs(db.parent)
    except OSError:  # it has been renamed or removed, which the next commit notices
        return
    yield _gauge("database_bytes", "Size of the database file.", size_bytes)
    yield _gauge(
        "filesystem_free_bytes", "Free bytes of the file system that has the database.", disk.f_bavail * disk.f_frsize
    )


def _tenure(tenure: Tenure) -> Iterator[Metric]:
    yield _gauge("lease_epoch", "The number of the lease: each time a server takes it, it is one more.", tenure.epoch)
    yield _by_label(
        "lease_takeovers",
        "How often a lease was taken that had not been given back, since the database was made.",
        "database",
        {tenure.database: tenure.takeovers},
    )
    holder = GaugeMetricFamily(
        "beanlite_lease_holder_info", "1; the labels are the server that has the lease.", labels=["node", "address"]
    )
    holder.add_metric([tenure.node, tenure.address], 1)
    yield holder


def _database(database: DatabaseFigures) -> Iterator[Metric]:
    yield _gauge("database_bytes", "Size of the database.", database.size_bytes)
    yield _by_label(
        "postgresql_dead_rows",
        "Old versions of rows that take room in a table, by the database's estimate.",
        "table",
        database.dead_rows,
        GaugeMetricFamily,
    )
    yield _gauge(
        "postgresql_oldest_transaction_seconds",
        "For how long the oldest transaction in the database has been open; 0 if none is.",
        database.oldest_transaction_s,
    )
    yield _gauge(
        "postgresql_oldest_snapshot_transactions",
        "How many transactions have begun since the oldest one for which old versions of rows have to be kept.",
        database.oldest_snapshot,
    )
    yield _gauge("postgresql_synchronous", "1 if commits wait for a standby.", database.is_synchronous)
    yield from _standbys(database.standbys)


def _standbys(standbys: list[Standby]) -> Iterator[Metric]:
    states = Counter(standby.sync_state for standby in standbys)
    if "unknown" not in states:  # which the others could be as well
        states.update(dict.fromkeys(("async", "potential", "quorum", "sync"), 0))
    yield _by_label(
        "postgresql_standbys", "Standbys of the database by their part in commits.", "sync_state", states,
        GaugeMetricFamily,
    )  # fmt: skip
    lags_bytes: dict[str, float] = {}
    lags_s: dict[str, float] = {}
    for standby in standbys:  # several may have the same name
        name = f"{standby.name} {standby.address}".rstrip()
        if standby.lag_bytes is not None:
            lags_bytes[name] = max(standby.lag_bytes, lags_bytes.get(name, 0))
        if standby.lag_s is not None:
            lags_s[name] = max(standby.lag_s, lags_s.get(name, 0))
    yield _by_label(
        "postgresql_standby_lag_bytes",
        "How much of the log a standby has not stored.",
        "standby",
        lags_bytes,
        GaugeMetricFamily,
    )
    yield _by_label(
        "postgresql_standby_lag_seconds",
        "After how long the last changes could be read on a standby; missing while there are none.",
        "standby",
        lags_s,
        GaugeMetricFamily,
    )


def _open_descriptors() -> int:
    """Return how many file descriptors are open."""
    folder = Path("/proc/self/fd")
    return folder.stat().st_size or len(list(folder.iterdir()))  # older kernels do not report the size


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"beanlite_{name}", meaning, value=value)


def _by_label(
    name: str,
    meaning: str,
    label: str,
    values: Mapping[str, float],
    kind: type[CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily,
) -> Metric:
    family = kind(f"beanlite_{name}", meaning, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, meaning: str, histogram: Histogram, unit: int = SECOND_NS) -> Metric:
    """Make a histogram's metric. ``unit``: how many of the measured units make one of the reported units."""
    bounds = [str(bound / unit) for bound in histogram.bounds]
    buckets = list(zip([*bounds, "+Inf"], map(float, accumulate(histogram.counts)), strict=True))
    return HistogramMetricFamily(f"beanlite_{name}", meaning, buckets=buckets, sum_value=histogram.total / unit)
