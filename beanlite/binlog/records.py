"""What is in a file of beanstalkd's binlog: its version, and then one record after the other.

A record is the length of the tube's name, the name, the job, and its body with CR LF behind it, as all that lies in the
memory of a 64-bit machine. If the name is empty the record is an update: the job as it is now, and no body. Space for
records to come is allocated as zeros, so an id of 0 ends a file.

Nothing here reads a file: its bytes are given.
"""

import re
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from beanlite.core.job import U32_MAX
from beanlite.core.tube import is_tube_name
from beanlite.errors import BinlogRefused

# The states of a job, as they are written. Only a delete is written as GONE.
GONE, READY, RESERVED, BURIED, DELAYED = range(5)

CRLF: Final = b"\r\n"
_VERSION: Final = Struct("<i")
_NAME_MAX: Final = 200
_ID_MAX: Final = (1 << 63) - 1
# Later than any time that a server may have written, in seconds since 1970; a far deadline is 136 years ahead.
_TIME_END_S: Final = 1 << 34


class Job(NamedTuple):
    """A job as a record has it; its attributes are those of the C struct.

    Times and durations are in the unit of the format.
    """

    id: int
    pri: int
    delay: int
    ttr: int
    body_size: int
    """CR LF included."""
    created_at: int
    deadline_at: int
    """Delayed: when it becomes ready. Otherwise it may be anything."""
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int
    state: int


class Format(NamedTuple):
    """How the records of a version are laid out."""

    name_length: Struct
    job: Struct
    second: int
    """One second, in its unit of time."""
    start: re.Pattern[bytes]
    """Matches, at no length, wherever a record could begin."""

    def read(self, job: bytes) -> Job:
        """The job in the bytes of a record."""
        return Job._make(self.job.unpack(job))


FORMATS: Final = {
    5: Format(Struct("<Q"), Struct("<QI4xQQi4xQQ5IB"), 10**6, re.compile(rb"(?=[\x00-\xc8]\0{7})")),
    7: Format(Struct("<i"), Struct("<QI4xqqi4xqq5IB3x"), 10**9, re.compile(rb"(?=[\x00-\xc8]\0{3})")),
}


class Record(NamedTuple):
    """A record, and where in the file its parts are."""

    id: int
    state: int
    tube: bytes
    """Empty: it is an update."""
    job: bytes
    """What ``Format.read`` reads."""
    body_at: int
    end: int


class Gap(NamedTuple):
    """A part of the file in which there is no record that makes sense."""

    at: int
    end: int
    is_torn: bool
    """Whether it is no more than one record, at the end, that was being written when beanstalkd or the machine died."""


def format_of(data: bytes, name: str) -> Format | None:
    """The format of a file; None if it has never been written to. BinlogRefused: it is none that can be read."""
    version = _VERSION.unpack_from(data.ljust(_VERSION.size, b"\0"))[0]
    if not version and not data.strip(b"\0"):
        return None
    if version not in FORMATS:
        raise BinlogRefused(f"{name} is of version {version}, and only {' and '.join(map(str, FORMATS))} can be read")
    return FORMATS[version]


def records(data: bytes, form: Format) -> Iterator[Record | Gap]:
    """All that is in a file, in its order."""
    at = _VERSION.size
    content = len(data.rstrip(b"\0"))
    while at < content:
        record = _record_at(data, at, form)
        if record is not None:
            yield record
            at = record.end
            continue
        following = _next_record(data, at + 1, content, form)
        if following is None:
            yield Gap(at, content, content <= _end_claimed(data, at, form))
            return
        yield Gap(at, following, is_torn=False)
        at = following


def _record_at(data: bytes, at: int, form: Format) -> Record | None:
    """The record that begins here; None if what is here can't be one."""
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


def _is_possible(job: Job, second: int) -> bool:
    """Whether beanstalkd can have written these numbers. Durations are whole seconds, and no ttr is 0."""
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


def _next_record(data: bytes, at: int, content: int, form: Format) -> int | None:
    """Where the first record from here on begins; None if there is none."""
    places = (match.start() for match in form.start.finditer(data, at, content))
    return next((place for place in places if _record_at(data, place, form) is not None), None)


def _end_claimed(data: bytes, at: int, form: Format) -> int:
    """Where a record that begins here would end, by what can be read of it."""
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
