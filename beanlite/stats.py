"""Counters, and the three bodies that the stats commands answer with.

The keys stand in the order of beanstalkd 1.13, strings quoted as it does; keys of our own come after them.
"""

from __future__ import annotations

from typing import NamedTuple

from beanlite.engine import Engine
from beanlite.job import DELAYED, RESERVED, SECOND_NS, Job
from beanlite.tube import Tube


class Counters:
    """How often each command was given, malformed ones left out."""

    __slots__ = (
        "bury",
        "delete",
        "ignore",
        "kick",
        "list_tube_used",
        "list_tubes",
        "list_tubes_watched",
        "pause_tube",
        "peek",
        "peek_buried",
        "peek_delayed",
        "peek_ready",
        "put",
        "release",
        "reserve",
        "reserve_with_timeout",
        "stats",
        "stats_job",
        "stats_tube",
        "touch",
        "use",
        "watch",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    # Slots set in a loop are unknown to a type checker unless declared.
    bury: int
    delete: int
    ignore: int
    kick: int
    list_tube_used: int
    list_tubes: int
    list_tubes_watched: int
    pause_tube: int
    peek: int
    peek_buried: int
    peek_delayed: int
    peek_ready: int
    put: int
    release: int
    reserve: int
    reserve_with_timeout: int
    stats: int
    stats_job: int
    stats_tube: int
    touch: int
    use: int
    watch: int


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
    ready = engine.jobs.count - engine.reserved - engine.delayed - engine.buried
    return _yaml(
        ("current-jobs-urgent", engine.urgent),
        ("current-jobs-ready", ready),
        ("current-jobs-reserved", engine.reserved),
        ("current-jobs-delayed", engine.delayed),
        ("current-jobs-buried", engine.buried),
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
        ("job-timeouts", engine.timeouts),
        ("total-jobs", engine.total_jobs),
        ("max-job-size", max_job_size),
        ("current-tubes", len(engine.tubes)),
        ("current-connections", engine.clients),
        ("current-producers", engine.producers),
        ("current-workers", engine.workers),
        ("current-waiting", engine.waiting),
        ("total-connections", engine.total_clients),
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
        ("state", job.state),
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
