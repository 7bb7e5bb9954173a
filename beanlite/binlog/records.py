"""The format of a file of beanstalkd's binlog: its version, followed by records.

A record has the length of the tube's name, the name, the job, and its body followed by CR LF, all laid out as in the
memory of a 64-bit machine. If the name is empty, the record is an update: the job's new state, without a body. Space
for further records is allocated as zeros, so an id of 0 ends a file.

This module does no I/O: callers pass the bytes of a file.
"""

import re
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from beanlite.core.job import U32_MAX
from beanlite.core.tube import is_tube_name
from beanlite.errors import BinlogRefused

# The states of a job, as numbered in a record. GONE is a delete.
GONE, READY, RESERVED, BURIED, DELAYED = range(5)

CRLF: Final = b"\r\n"
_VERSION: Final = Struct("<i")
VERSION_BYTES: Final = _VERSION.size
_NAME_MAX: Final = 200
# Higher than any id that a server may have given out, and low enough for our servers to give out more.
_ID_MAX: Final = (1 << 61) - 1
# Later than any time that a server may have written, in seconds since 1970; a deadline can be 136 years ahead.
_TIME_END_S: Final = 1 << 33


class BinlogJob(NamedTuple):
    """A job as stored in a record.

    Times and durations are in the format's unit.
    """

    id: int
    pri: int
    delay: int
    ttr: int
    body_size: int
    """Including the CR LF."""
    created_at: int
    deadline_at: int
    """When a delayed job becomes ready; meaningless in other states."""
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int
    state: int


class Format(NamedTuple):
    """The layout of the records of a version."""

    name_length: Struct
    job: Struct
    second: int
    """One second, in the format's unit of time."""
    start: re.Pattern[bytes]
    """A zero-width match wherever a record could begin."""

    def read(self, job: bytes) -> BinlogJob:
        """Parse the job from the bytes of a record."""
        return BinlogJob._make(self.job.unpack(job))


FORMATS: Final = {
    5: Format(Struct("<Q"), Struct("<QI4xQQi4xQQ5IB"), 10**6, re.compile(rb"(?=[\x00-\xc8]\0{7})")),
    7: Format(Struct("<i"), Struct("<QI4xqqi4xqq5IB3x"), 10**9, re.compile(rb"(?=[\x00-\xc8]\0{3})")),
}


class Record(NamedTuple):
    """A record, and the positions of its parts in the file."""

    id: int
    state: int
    tube: bytes
    """Empty if the record is an update."""
    job: bytes
    """The bytes of the job, for ``Format.read``."""
    body_at: int
    end: int


class Gap(NamedTuple):
    """A part of the file that has no valid record."""

    at: int
    end: int
    is_torn: bool
    """Whether it is a single record at the end, torn when beanstalkd or the machine crashed while writing it."""


def format_of(data: bytes, name: str) -> Format | None:
    """Return the format of a file; None if it was never written to. BinlogRefused: its version is not supported."""
    version = _VERSION.unpack_from(data.ljust(_VERSION.size, b"\0"))[0]
    if not version and not data.strip(b"\0"):
        return None
    if version not in FORMATS:
        raise BinlogRefused(f"{name} is of version {version}, and only {' and '.join(map(str, FORMATS))} can be read")
    return FORMATS[version]


def likely_format(data: bytes) -> Format | None:
    """Return the format in which a file with a damaged version has a record; None if there is none."""
    for form in FORMATS.values():
        if any(isinstance(each, Record) for each in records(data, form)):
            return form
    return None


def records(data: bytes, form: Format) -> Iterator[Record | Gap]:
    """Yield all records and gaps of a file, in order."""
    at = _VERSION.size
    content = len(data.rstrip(b"\0"))
    while at < content:
        record = _record_at(data, at, form)
        if record is not None:
            yield record
            at = record.end
            continue
        places = (match.start() for match in form.start.finditer(data, at + 1, content))
        following = next((place for place in places if _record_at(data, place, form) is not None), None)
        if following is None:
            yield Gap(at, content, content <= _end_claimed(data, at, form))
            return
        yield Gap(at, following, is_torn=False)
        at = following


def _record_at(data: bytes, at: int, form: Format) -> Record | None:
    """Return the record that begins at ``at``; None if these bytes can't be one."""
    tube_at = at + form.name_length.size
    if tube_at > len(data):
        return None
    (name_length,) = form.name_length.unpack_from(data, at)
    job_at = tube_at + name_length
    body_at = job_at + form.job.size
    if not 0 <= name_length <= _NAME_MAX or body_at > len(data):
        return None
    job_bytes = data[job_at:body_at]
    job = form.read(job_bytes)
    if not _is_possible(job, form.second):
        return None
    tube = data[tube_at:job_at]
    end = body_at
    if tube:
        end += job.body_size
        if not is_tube_name(tube) or data[end - len(CRLF) : end] != CRLF:
            return None
    return Record(job.id, job.state, tube, job_bytes, body_at, end)


def _is_possible(job: BinlogJob, second: int) -> bool:
    """Whether beanstalkd could have written these numbers. Durations are whole seconds, and no ttr is 0."""
    longest, end = U32_MAX * second, _TIME_END_S * second
    return (
        0 < job.id <= _ID_MAX
        and job.state <= DELAYED
        and job.body_size >= len(CRLF)
        and 0 < job.created_at < end
        and 0 <= job.deadline_at < end
        and 0 <= job.delay <= longest
        and 0 < job.ttr <= longest
        and job.delay % second == job.ttr % second == 0
    )


def _end_claimed(data: bytes, at: int, form: Format) -> int:
    """Return where a record that begins at ``at`` would end, as far as can be told from the bytes there are."""
    tube_at = at + form.name_length.size
    if tube_at > len(data):
        return tube_at
    (name_length,) = form.name_length.unpack_from(data, at)
    if not 0 <= name_length <= _NAME_MAX:
        return tube_at
    end: int = tube_at + name_length + form.job.size
    if name_length and end <= len(data):
        end += max(0, form.read(data[end - form.job.size : end]).body_size)
    return end
