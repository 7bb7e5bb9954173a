"""The checksum of a job's row, excluding the body, which has its own.

It is computed over the values that a start reads: times are those of the server's clock, as SQLite computes them from
the stored values. For a ready job to which nothing has happened since its put, as most are when they are written, it
covers only the id and the values of the put. Later columns are covered where they don't have their default.
"""

import struct
from collections.abc import Iterable
from typing import Any, Final
from zlib import crc32

from beanlite.host.clock import clock_ns
from beanlite.journal.columns import DEFAULTS, LATER

# pri, delay_s, ttr_s and created_ns.
_PUT: Final = struct.Struct("<4q").pack
_ID_BYTES: Final = 8
# The same and the id; and also the place, the five counters, since_ns and holder_conn.
_AS_PUT: Final = struct.Struct("<5q").pack
_CHANGED: Final = struct.Struct("<13q").pack
# The columns of later versions, which are at the end of a row and of a StoredJob, and their defaults.
_LATER: Final = tuple((column.name, DEFAULTS[column.name]) for column in LATER)
_DEFAULTS: Final = tuple(default for _, default in _LATER)
# Stands for a number that is NULL.
_NONE: Final = -1
_Any = Any  # damage may have left a value of any type
# The exceptions that a value of the wrong type, or an impossible time, raises here.
_WRONG: Final = (TypeError, ValueError, OverflowError, AttributeError, struct.error)


def checksum_of_put(tube: bytes, pri: int, delay_s: int, ttr_s: int, created_s: float) -> int:
    """Return the checksum of what jobs share that were put at the same time and differ only in their ids and bodies."""
    return crc32(_PUT(pri, delay_s, ttr_s, clock_ns(created_s)), crc32(tube))


def with_id(job_id: int, put_checksum: int) -> int:
    """Return the row checksum of one of these jobs, while it is ready and unchanged since its put."""
    return crc32(job_id.to_bytes(_ID_BYTES, "little"), put_checksum)


def checksum_of_row(row: tuple[Any, ...]) -> int | None:
    """Return the checksum of the columns of ``journal.rows.row_of``, in its order; None: a value has the wrong type."""
    (
        job_id, tube, state, pri, delay_s, ttr_s, created_at, place, buried_seq, reserves, timeouts, releases, buries,
        kicks, since, holder, holder_conn, why,
    ) = row[: -len(_LATER)] if _LATER else row  # fmt: skip
    try:
        if buried_seq is not None:
            place = buried_seq
        elif place is not None:
            place = clock_ns(place)
        state = None if state == "ready" else state
        since_ns = None if since is None else clock_ns(since)
        checksum = _checksum(
            job_id, tube.encode(), state, pri, delay_s, ttr_s, clock_ns(created_at), place, reserves, timeouts,
            releases, buries, kicks, since_ns, holder, holder_conn, why,
        )  # fmt: skip
        return _with_later(checksum, row) if _LATER else checksum
    except _WRONG:
        return None


# A StoredJob without the later columns. The body is not looked at here.
_Values = tuple[
    int, bytes, str | None, int, int, int, int, int | None, int, int, int, int, int, Any, Any, int | None, str | None,
    int | None, str | None, int | None,
]  # fmt: skip


def find_changed(rows: Iterable[tuple[_Any, ...]], unchecked_id: int) -> int | None:
    """Return the id of the first ``StoredJob`` whose row is not what was written; None if there is none.

    Rows up to ``unchecked_id`` may lack a checksum.
    """
    alike: tuple[bytes, int, int, int, int] = (b"", 0, 0, 0, 0)  # of the previous job; most jobs share it
    put_checksum = _NONE
    for row in rows:
        try:
            # A value of the wrong type raises an exception here, so no calls are needed to check the types.
            values: _Values = row[: -len(_LATER)] if _LATER else row
            (
                job_id, tube, state, pri, delay_s, ttr_s, created_ns, place, reserves,
                timeouts, releases, buries, kicks, _, _, since_ns, holder, holder_conn, why, row_crc32,
            ) = values  # fmt: skip
            if row_crc32 is None and job_id <= unchecked_id:
                continue
            if (
                (state is None and place is None and holder is None and holder_conn is None and why is None)
                and not reserves | timeouts | releases | buries | kicks
                and since_ns == created_ns
            ):
                put_values = tube, pri, delay_s, ttr_s, created_ns
                if put_values != alike:
                    alike, put_checksum = put_values, _NONE
                    checksum = crc32(tube + _AS_PUT(pri, delay_s, ttr_s, created_ns, job_id))
                else:
                    if put_checksum == _NONE:
                        put_checksum = crc32(tube + _PUT(pri, delay_s, ttr_s, created_ns))
                    checksum = with_id(job_id, put_checksum)
            else:
                checksum = _checksum(
                    job_id, tube, state, pri, delay_s, ttr_s, created_ns, place, reserves, timeouts, releases, buries,
                    kicks, since_ns, holder, holder_conn, why,
                )  # fmt: skip
            if _LATER:
                checksum = _with_later(checksum, row)
        except _WRONG:
            return int(row[0])
        if checksum != row_crc32:
            return job_id
    return None


def _checksum(
    job_id: _Any, tube: _Any, state: _Any, pri: _Any, delay_s: _Any, ttr_s: _Any, created_ns: _Any, place: _Any,
    reserves: _Any, timeouts: _Any, releases: _Any, buries: _Any, kicks: _Any,
    since_ns: _Any, holder: _Any, holder_conn: _Any, why: _Any,
) -> int:  # fmt: skip
    if (
        state is None
        and since_ns == created_ns
        and reserves == timeouts == releases == buries == kicks == 0
        and place is holder is holder_conn is why is None
    ):
        return crc32(tube + _AS_PUT(pri, delay_s, ttr_s, created_ns, job_id))
    # A single call: with one call per part, this would account for more than half of the cost of a changed row.
    numbers = _CHANGED(
        pri, delay_s, ttr_s, created_ns, job_id, _NONE if place is None else place, reserves, timeouts, releases,
        buries, kicks, _NONE if since_ns is None else since_ns, _NONE if holder_conn is None else holder_conn,
    )  # fmt: skip
    return crc32(tube + numbers + f"{state} {holder} {why}".encode())


def _with_later(checksum: int, row: tuple[_Any, ...]) -> int:
    """Return the checksum of a row, given that of its values without the later columns."""
    if row[-len(_LATER) :] == _DEFAULTS:
        return checksum
    for (name, default), value in zip(_LATER, row[-len(_LATER) :], strict=True):
        if value != default:
            checksum = crc32(f" {name} {value!r}".encode(), checksum)
    return checksum
