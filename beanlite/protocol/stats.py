"""The bodies with which the stats commands and the lists answer.

The keys are in the order of beanstalkd 1.13, and strings are quoted as it does; keys of our own come last.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from beanlite.core.snapshot import JobSnapshot, ServerSnapshot, TubeSnapshot


class Facts(NamedTuple):
    """What ``stats`` reports of the process, the machine and the journal."""

    pid: int
    version: str
    user_s: float  # processor time
    system_s: float
    uptime_s: int
    instance: str  # a random name, new at each start
    hostname: str
    os: str
    platform: str
    journaled: bool
    batches: int  # committed since the database was made
    records: int  # rows written since the start
    wal_bytes: int  # the size of the -wal file
    wal_bytes_max: int  # the size to which that file is cut back
    refused: Mapping[str, int]  # how often each limit was enforced on clients since the start
    backup_succeeded_at: int = 0  # when the newest scheduled backup was made, in UTC seconds; 0: there is none
    backup_failed_at: int = 0  # when a scheduled backup last failed; 0: none has since the start
    history_bodies_max: int = 0  # bytes of the history that keep bodies of deleted jobs; 0: they are not kept
    disk_free: int | None = None  # bytes, where the database is; None: there is no file
    database_bytes: int | None = None  # the size of that file
    certificate_ends_s: Mapping[str, float] | None = None  # by setting, in UTC seconds; for the metrics only
    connections_max: int = 0  # likewise
    makes_backups: bool = False  # by the clock; likewise


def has_failed_backup(facts: Facts) -> bool:
    """Whether the last scheduled backup failed."""
    return facts.backup_failed_at > facts.backup_succeeded_at


def server_stats(server: ServerSnapshot, commands: Sequence[tuple[str, int]], facts: Facts, max_job_size: int) -> bytes:
    """Return the body of ``stats``. ``commands``: how often each command was given, as keys and numbers."""
    return _yaml(
        ("current-jobs-urgent", server.urgent),
        ("current-jobs-ready", server.ready),
        ("current-jobs-reserved", server.reserved),
        ("current-jobs-delayed", server.delayed),
        ("current-jobs-buried", server.buried),
        *commands,
        ("job-timeouts", server.timeouts),
        ("total-jobs", server.total_jobs),
        ("max-job-size", max_job_size),
        ("current-tubes", server.tubes),
        ("current-connections", server.clients),
        ("current-producers", server.producers),
        ("current-workers", server.workers),
        ("current-waiting", server.waiting),
        ("total-connections", server.total_clients),
        ("pid", facts.pid),
        ("version", _quote(facts.version)),
        ("rusage-utime", f"{facts.user_s:.6f}"),
        ("rusage-stime", f"{facts.system_s:.6f}"),
        ("uptime", facts.uptime_s),
        ("binlog-oldest-index", int(facts.journaled)),
        ("binlog-current-index", int(facts.journaled)),
        ("binlog-records-migrated", 0),
        ("binlog-records-written", facts.records),
        ("binlog-max-size", facts.wal_bytes_max),
        ("draining", str(server.draining).lower()),
        ("id", facts.instance),
        ("hostname", _quote(facts.hostname)),
        ("os", _quote(facts.os)),
        ("platform", _quote(facts.platform)),
        ("journal-batches", facts.batches),
        ("journal-wal-bytes", facts.wal_bytes),
        ("disk-full", str(server.disk_full).lower()),
        ("memory-max", server.memory_max),
        ("memory-used", server.memory_used),
        ("memory-jobs", server.memory_jobs),
        ("memory-bodies", server.memory_bodies),
        ("memory-buffers", server.memory_buffers),
        ("bodies-on-disk", server.unloaded),
        ("bodies-on-disk-bytes", server.unloaded_bytes),
        ("bodies-fetched", server.fetched),
        ("puts-out-of-memory", server.puts_refused),
        *((f"refused-{limit}", times) for limit, times in facts.refused.items()),
        ("backup-succeeded-at", facts.backup_succeeded_at),
        ("backup-failed-at", facts.backup_failed_at),
        ("history-bodies-max", facts.history_bodies_max),
        *(() if facts.disk_free is None else (("disk-free", facts.disk_free),)),
        *(() if facts.database_bytes is None else (("database-bytes", facts.database_bytes),)),
    )


def tube_stats(tube: TubeSnapshot, policy: Mapping[str, str] | None = None) -> bytes:
    """Return the body of ``stats-tube``. ``policy``: what holds for the tube, as keys and values; None: nothing."""
    return _yaml(
        ("name", _quote(tube.name)),
        ("current-jobs-urgent", tube.urgent),
        ("current-jobs-ready", tube.ready),
        ("current-jobs-reserved", tube.reserved),
        ("current-jobs-delayed", tube.delayed),
        ("current-jobs-buried", tube.buried),
        ("total-jobs", tube.total_jobs),
        ("current-using", tube.using),
        ("current-watching", tube.watching),
        ("current-waiting", tube.waiting),
        ("cmd-delete", tube.deletes),
        ("cmd-pause-tube", tube.pauses),
        ("pause", tube.pause_s),
        ("pause-time-left", tube.pause_left_s),
        *(() if policy is None else _policy_stats(tube, policy)),
    )


def _policy_stats(tube: TubeSnapshot, policy: Mapping[str, str]) -> list[tuple[str, object]]:
    shut = ", ".join(word for word in tube.shut if word != "paused")
    return [
        *((f"policy-{key.replace('_', '-')}", _plain_or_quoted(value)) for key, value in policy.items()),
        *((("policy-shut", _quote(shut)),) if shut else ()),
        ("policy-total-dead", tube.dead),
        ("policy-total-expired", tube.expired),
        ("policy-total-refused", tube.refused),
        ("policy-total-duplicates", tube.duplicates),
    ]


def job_stats(job: JobSnapshot, *, journaled: bool) -> bytes:
    """Return the body of ``stats-job``."""
    return _yaml(
        ("id", job.id),
        ("tube", _quote(job.tube)),
        ("state", job.state),
        ("pri", job.pri),
        ("age", job.age_s),
        ("delay", job.delay_s),
        ("ttr", job.ttr_s),
        ("time-left", job.left_s),
        ("file", int(journaled)),
        ("reserves", job.reserves),
        ("timeouts", job.timeouts),
        ("releases", job.releases),
        ("buries", job.buries),
        ("kicks", job.kicks),
    )


def tube_list(names: Sequence[bytes]) -> bytes:
    """Return the body of ``list-tubes`` and ``list-tubes-watched``."""
    return b"---\n- " + b"\n- ".join(names) + b"\n"


def _yaml(*items: tuple[str, object]) -> bytes:
    return ("---\n" + "".join(f"{key}: {value}\n" for key, value in items)).encode()


def _quote(text: str) -> str:
    return f'"{text}"'


def _plain_or_quoted(value: str) -> str:
    return value if value.isdigit() or value == "true" else _quote(value)
