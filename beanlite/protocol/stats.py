"""Counters, and the three bodies that the stats commands answer with.

The keys stand in the order of beanstalkd 1.13, strings quoted as it does; keys of our own come after them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from beanlite.core.engine import Engine
from beanlite.core.job import DELAYED, RESERVED, SECOND_NS, Job
from beanlite.core.tube import Tube


@dataclass(slots=True)
class Counters:
    """How often each command was given, malformed ones left out."""

    bury: int = 0
    delete: int = 0
    ignore: int = 0
    kick: int = 0
    list_tube_used: int = 0
    list_tubes: int = 0
    list_tubes_watched: int = 0
    pause_tube: int = 0
    peek: int = 0
    peek_buried: int = 0
    peek_delayed: int = 0
    peek_ready: int = 0
    put: int = 0
    release: int = 0
    reserve: int = 0
    reserve_with_timeout: int = 0
    stats: int = 0
    stats_job: int = 0
    stats_tube: int = 0
    touch: int = 0
    use: int = 0
    watch: int = 0


class Facts(NamedTuple):
    """What the statistics say of the process, the machine and the journal."""

    pid: int
    version: str
    user_s: float
    system_s: float
    uptime_s: int
    instance: str
    hostname: str
    os: str
    platform: str
    journaled: bool
    batches: int  # committed since the database was made
    records: int  # rows written since the start
    wal_bytes: int  # size of the -wal file
    wal_bytes_max: int  # what it is cut back to


def server_stats(engine: Engine, counters: Counters, facts: Facts, max_job_size: int) -> bytes:
    """The body of ``stats``."""
    counts = engine.counts
    ready = len(engine.jobs) - counts.reserved - counts.delayed - counts.buried
    return _yaml(
        ("current-jobs-urgent", counts.urgent),
        ("current-jobs-ready", ready),
        ("current-jobs-reserved", counts.reserved),
        ("current-jobs-delayed", counts.delayed),
        ("current-jobs-buried", counts.buried),
        ("cmd-put", counters.put),
        ("cmd-peek", counters.peek),
        ("cmd-peek-ready", counters.peek_ready),
        ("cmd-peek-delayed", counters.peek_delayed),
        ("cmd-peek-buried", counters.peek_buried),
        ("cmd-reserve", counters.reserve),
        ("cmd-reserve-with-timeout", counters.reserve_with_timeout),
        ("cmd-delete", counters.delete),
        ("cmd-release", counters.release),
        ("cmd-use", counters.use),
        ("cmd-watch", counters.watch),
        ("cmd-ignore", counters.ignore),
        ("cmd-bury", counters.bury),
        ("cmd-kick", counters.kick),
        ("cmd-touch", counters.touch),
        ("cmd-stats", counters.stats),
        ("cmd-stats-job", counters.stats_job),
        ("cmd-stats-tube", counters.stats_tube),
        ("cmd-list-tubes", counters.list_tubes),
        ("cmd-list-tube-used", counters.list_tube_used),
        ("cmd-list-tubes-watched", counters.list_tubes_watched),
        ("cmd-pause-tube", counters.pause_tube),
        ("job-timeouts", counts.timeouts),
        ("total-jobs", counts.total_jobs),
        ("max-job-size", max_job_size),
        ("current-tubes", len(engine.tubes)),
        ("current-connections", counts.clients),
        ("current-producers", counts.producers),
        ("current-workers", counts.workers),
        ("current-waiting", counts.waiting),
        ("total-connections", counts.total_clients),
        ("pid", facts.pid),
        ("version", _quoted(facts.version)),
        ("rusage-utime", f"{facts.user_s:.6f}"),
        ("rusage-stime", f"{facts.system_s:.6f}"),
        ("uptime", facts.uptime_s),
        ("binlog-oldest-index", int(facts.journaled)),
        ("binlog-current-index", int(facts.journaled)),
        ("binlog-records-migrated", 0),
        ("binlog-records-written", facts.records),
        ("binlog-max-size", facts.wal_bytes_max),
        ("draining", str(engine.draining).lower()),
        ("id", facts.instance),
        ("hostname", _quoted(facts.hostname)),
        ("os", _quoted(facts.os)),
        ("platform", _quoted(facts.platform)),
        ("journal-batches", facts.batches),
        ("journal-wal-bytes", facts.wal_bytes),
        ("disk-full", str(engine.full).lower()),
    )


def tube_stats(tube: Tube, now_ns: int) -> bytes:
    """The body of ``stats-tube``."""
    return _yaml(
        ("name", _quoted(tube.name.decode())),
        ("current-jobs-urgent", tube.urgent),
        ("current-jobs-ready", len(tube.ready)),
        ("current-jobs-reserved", tube.reserved),
        ("current-jobs-delayed", len(tube.delayed)),
        ("current-jobs-buried", len(tube.buried)),
        ("total-jobs", tube.total_jobs),
        ("current-using", tube.using),
        ("current-watching", tube.watching),
        ("current-waiting", len(tube.waiting)),
        ("cmd-delete", tube.cmd_delete),
        ("cmd-pause-tube", tube.cmd_pause),
        ("pause", tube.pause_s),
        ("pause-time-left", max(0, tube.pause_until_ns - now_ns) // SECOND_NS),
    )


def job_stats(job: Job, now_ns: int, *, journaled: bool) -> bytes:
    """The body of ``stats-job``."""
    timed = job.state is DELAYED or job.state is RESERVED
    return _yaml(
        ("id", job.id),
        ("tube", _quoted(job.tube.name.decode())),
        ("state", job.state.value),
        ("pri", job.pri),
        ("age", (now_ns - job.created_ns) // SECOND_NS),
        ("delay", job.delay_s),
        ("ttr", job.ttr_s),
        ("time-left", (job.due_ns - now_ns) // SECOND_NS if timed else 0),
        ("file", int(journaled)),
        ("reserves", job.reserves),
        ("timeouts", job.past.timeouts),
        ("releases", job.past.releases),
        ("buries", job.past.buries),
        ("kicks", job.past.kicks),
    )


def tube_list(names: list[bytes]) -> bytes:
    """The body of ``list-tubes`` and ``list-tubes-watched``."""
    return b"---\n- " + b"\n- ".join(names) + b"\n"


def _yaml(*items: tuple[str, object]) -> bytes:
    return ("---\n" + "".join(f"{key}: {value}\n" for key, value in items)).encode()


def _quoted(text: str) -> str:
    return f'"{text}"'
