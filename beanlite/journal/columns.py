"""The columns of a job in a database, told once: statements, dumps and checks are made from this table.

What is written by hand because it is faster so (``rows.row_of``, the checksum of a row, ``core.restore.StoredJob``, and
the expressions that read it), and the migrations, are held against it by a test.
"""

from typing import Final, NamedTuple


class JobColumn(NamedTuple):
    """A column."""

    name: str
    type: str
    """The type that PostgreSQL has for it."""
    ready: str = ""
    """What is in it while the job is ready and nothing has happened since its put, in SQL; empty: the put says."""


JOB: Final = (
    JobColumn("id", "bigint"),
    JobColumn("tube", "text"),
    JobColumn("state", "text", "'ready'"),
    JobColumn("pri", "bigint"),
    JobColumn("delay_s", "bigint"),
    JobColumn("ttr_s", "bigint"),
    JobColumn("created_at", "float8"),
    JobColumn("due_at", "float8", "NULL"),
    JobColumn("buried_seq", "bigint", "NULL"),
    JobColumn("reserves", "bigint", "0"),
    JobColumn("timeouts", "bigint", "0"),
    JobColumn("releases", "bigint", "0"),
    JobColumn("buries", "bigint", "0"),
    JobColumn("kicks", "bigint", "0"),
    JobColumn("since", "float8", "created_at"),
    JobColumn("holder", "text", "NULL"),
    JobColumn("holder_conn", "bigint", "NULL"),
    JobColumn("why", "text", "NULL"),
)
NAMES: Final = tuple(column.name for column in JOB)
TIMES: Final = tuple(column.name for column in JOB if column.type == "float8")
"""In the server's clock; in UTC in what leaves the database."""
COUNTERS: Final = tuple(column.name for column in JOB if column.ready == "0")
PUT: Final = tuple(column for column in JOB if not column.ready)
"""What the put says."""


# The columns that come behind the body in a ``StoredJob``.
_BEHIND_BODY: Final = NAMES[NAMES.index("since") :]


def stored_job(*, tube: str, time: str, body: str, row_crc32: str) -> str:
    """Return the fields of a ``core.restore.StoredJob`` as SQL selects them, which converts values faster than Python.

    ``tube`` makes bytes of the name, and ``time`` nanoseconds of the clock of a column of seconds, which its {} stands
    for. The state of a ready job, as most are, is NULL.
    """
    read = {name: time.format(name) for name in TIMES}
    read |= {"tube": tube, "state": "CASE state WHEN 'ready' THEN NULL ELSE coalesce(state, '') END"}
    read["due_at"] = f"coalesce(buried_seq, {read['due_at']})"
    before = [read.get(name, name) for name in NAMES if name not in {"buried_seq", *_BEHIND_BODY}]
    return listed((*before, body, "crc32", *(read.get(name, name) for name in _BEHIND_BODY), row_crc32))


def listed(names: tuple[str, ...] = NAMES) -> str:
    """Return names as SQL lists them."""
    return ", ".join(names)
