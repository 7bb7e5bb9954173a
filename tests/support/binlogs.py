"""Binlog files made by hand, as beanstalkd's C sources write them.

The structs are laid out by ctypes, as a C compiler does it, and not by the code under test.
"""

import ctypes

GONE, READY, RESERVED, BURIED, DELAYED = range(5)
CREATED_S = 1_700_000_000

_U64, _U32, _I64, _I32, _U8 = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint8
_COUNTERS = [(name, _U32) for name in ("reserve_ct", "timeout_ct", "release_ct", "bury_ct", "kick_ct")]


class Jobrec7(ctypes.Structure):
    """``struct Jobrec`` of 1.5 to 1.13, whose times are in nanoseconds."""

    _fields_ = (
        ("id", _U64),
        ("pri", _U32),
        ("delay", _I64),
        ("ttr", _I64),
        ("body_size", _I32),
        ("created_at", _I64),
        ("deadline_at", _I64),
        *_COUNTERS,
        ("state", _U8),
    )


class Job5(ctypes.Structure):
    """The written part of ``struct job`` of 1.4, which is its beginning; the times are in microseconds."""

    _fields_ = (
        ("id", _U64),
        ("pri", _U32),
        ("delay", _U64),
        ("ttr", _U64),
        ("body_size", _I32),
        ("created_at", _U64),
        ("deadline_at", _U64),
        *_COUNTERS,
        ("state", _U8),
        ("pad", _U8 * 6),
    )


STRUCTS = {5: Job5, 7: Jobrec7}


def begin(version=7):
    """Return the beginning of a file."""
    return bytes(ctypes.c_int(version))


def record(
    job_id, body=None, *, version=7, tube="default", state=READY, delay_s=0, ttr_s=60, due_s=0, size=4, **fields
):
    """Return a full record if there is a body, otherwise an update of a job whose body has this size."""
    second = 10**9 if version == 7 else 10**6
    struct = STRUCTS[version](
        id=job_id,
        delay=delay_s * second,
        ttr=ttr_s * second,
        body_size=(size if body is None else len(body)) + 2,
        created_at=CREATED_S * second,
        deadline_at=int(due_s * second),
        state=state,
        **fields,
    )
    written = bytes(struct) if version == 7 else bytes(struct)[: Job5.pad.offset]
    length = ctypes.c_int if version == 7 else ctypes.c_size_t
    if body is None:
        return bytes(length(0)) + written
    name = tube.encode()
    return bytes(length(len(name))) + name + written + body + b"\r\n"


def write(directory, *files):
    """Write these files, numbered from 1, to a directory, and return it."""
    directory.mkdir(exist_ok=True)
    for number, data in enumerate(files, 1):
        (directory / f"binlog.{number}").write_bytes(data)
    return directory
