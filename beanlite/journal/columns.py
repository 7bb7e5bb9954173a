"""The columns of a job in a database, told once: statements, dumps, checks and what operators see are made from this.

What is written by hand because it is faster so (``rows.row_of``, ``core.restore.StoredJob``, and what reads both), and
the migrations, are held against it by a test.
"""

from typing import Final, NamedTuple

from beanlite.core.restore import StoredJob


class JobColumn(NamedTuple):
    """A column."""

    name: str
    type: str
    """The type that PostgreSQL has for it."""
    ready: str = ""
    """What is in it while the job is ready and nothing has happened since its put, in SQL; empty: the put says."""
    shown: str = ""
    """The attribute of a ``Job`` that operators see under the column's name; empty: they see it in words of its own."""


_FIRST: Final = (
    JobColumn("id", "bigint"),
    JobColumn("tube", "text"),
    JobColumn("state", "text", "'ready'"),
    JobColumn("pri", "bigint"),
    JobColumn("delay_s", "bigint"),
    JobColumn("ttr_s", "bigint"),
    JobColumn("created_at", "float8"),
    JobColumn("due_at", "float8", "NULL"),
    JobColumn("buried_seq", "bigint", "NULL"),
    JobColumn("reserves", "bigint", "0", shown="reserves"),
    JobColumn("timeouts", "bigint", "0", shown="past.timeouts"),
    JobColumn("releases", "bigint", "0", shown="past.releases"),
    JobColumn("buries", "bigint", "0", shown="past.buries"),
    JobColumn("kicks", "bigint", "0", shown="past.kicks"),
    JobColumn("since", "float8", "created_at"),
    JobColumn("holder", "text", "NULL"),
    JobColumn("holder_conn", "bigint", "NULL"),
    JobColumn("why", "text", "NULL"),
)
LATER: Final = (JobColumn("forgiven", "bigint", "0", shown="past.forgiven"),)
"""Columns of later versions: counters, and texts that most jobs do not have.

The checksum of a row covers such a value only if it isn't the default, so that rows of older versions keep theirs.
"""
JOB: Final = (*_FIRST, *LATER)
NAMES: Final = tuple(column.name for column in JOB)
TIMES: Final = tuple(column.name for column in JOB if column.type == "float8")
"""In the server's clock; in UTC in what leaves the database."""
TEXTS: Final = tuple(column.name for column in JOB if column.type == "text" and column.ready == "NULL")
COUNTERS: Final = tuple(column.name for column in JOB if column.ready == "0")
DEFAULTS: Final = {column.name: 0 if column.ready == "0" else None for column in JOB}
"""What a job has in a column that was not there when it was stored."""
SHOWN: Final = {column.name: column.shown for column in JOB if column.shown}
PUT: Final = tuple(column for column in JOB if not column.ready)
"""What the put says."""


def stored_job(*, tube: str, time: str, body: str, row_crc32: str) -> str:
    """Return the fields of a ``StoredJob`` as SQL selects them, which converts values faster than Python.

    ``tube`` makes bytes of the name, and ``time`` nanoseconds of the clock of a column of seconds, which its {} stands
    for. The state of a ready job, as most are, is NULL.
    """
    expressions = {
        "tube": tube,
        "state": "CASE state WHEN 'ready' THEN NULL ELSE coalesce(state, '') END",
        "created_ns": time.format("created_at"),
        "place": f"coalesce(buried_seq, {time.format('due_at')})",
        "since_ns": time.format("since"),
        "body": body,
        "row_crc32": row_crc32,
    }
    return as_list(tuple(expressions.get(field, field) for field in StoredJob._fields))


def as_list(names: tuple[str, ...] = NAMES) -> str:
    """Return names as SQL lists them."""
    return ", ".join(names)
