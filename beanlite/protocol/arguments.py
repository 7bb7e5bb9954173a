"""Parsing the arguments of commands. None means BAD_FORMAT: nothing that a peer sends raises an exception.

Numbers are parsed as the reference does: leading blanks are skipped; a sign is an error, and so is a number that is too
large.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from beanlite.core.job import SLICE, U32_MAX
from beanlite.core.tube import is_claim, is_person, is_tube_name

if TYPE_CHECKING:
    from mypy_extensions import i64  # in compiled code an int of the machine

U64_MAX: Final = (1 << 64) - 1
TIMEOUT_MAX_S: Final = (1 << 31) - 1
# A number of so many digits fits into an int of the machine.
DIGITS_MAX: Final = 18
ZERO: Final = 48
# How many lines of puts are remembered.
PUTS_MAX: Final = 1024

_PUT: Final = re.compile(rb" *([0-9]+) +([0-9]+) +([0-9]+) +([0-9]+)")
_ID: Final = re.compile(rb" *([0-9]+)")
_ID_PRI: Final = re.compile(rb" *([0-9]+) +([0-9]+)")
_ID_PRI_DELAY: Final = re.compile(rb" *([0-9]+) +([0-9]+) +([0-9]+)")
_STRTOUL: Final = re.compile(rb"[ \t\n\v\f\r]*([-+]?)([0-9]+)")
_PAUSE: Final = re.compile(rb" *([A-Za-z0-9+/;.$_()-]+) +([0-9]+)")


class Put:
    """The arguments of a put, ``pri delay_s ttr_s size``; with ``is_request``, of another command with a body."""

    __slots__ = ("delay_s", "ends_well", "is_request", "pri", "size", "ttr_s")

    def __init__(
        self, pri: int, delay_s: int, ttr_s: int, size: int, *, ends_well: bool, is_request: bool = False
    ) -> None:
        self.is_request = is_request
        self.pri = pri
        self.delay_s = delay_s
        self.ttr_s = ttr_s
        self.size = size
        """Bytes of the body."""
        self.ends_well = ends_well
        """Nothing follows the arguments. If something does, a job that is too big is still refused as JOB_TOO_BIG."""


# A producer's puts are mostly alike, and a lookup is much cheaper than parsing.
_puts: Final[dict[bytes, Put]] = {}


def parse_put(args: bytes) -> Put | None:
    """Parse the arguments of a put; a ttr of 0 counts as 1."""
    line = _puts.get(args)
    if line is None:
        line = _parse_new_put(args)
        if line is not None:
            if len(_puts) >= PUTS_MAX:
                _puts.clear()
            _puts[args] = line
    return line


def _parse_new_put(args: bytes) -> Put | None:
    found = _PUT.match(args)
    if found is None or b"\0" in args:
        return None
    pri, delay_s, ttr_s, size = map(int, found.groups())
    if max(pri, delay_s, ttr_s, size) > U32_MAX:
        return None
    return Put(pri, delay_s, max(ttr_s, 1), size, ends_well=found.end() == len(args))


def parse_id(args: bytes) -> int | None:
    """Parse a job's id."""
    size: i64 = len(args)
    at: i64 = 0
    number: i64 = 0
    while at < size and at < DIGITS_MAX and args[at] >= ZERO and args[at] < ZERO + 10:
        number = number * 10 + (args[at] - ZERO)
        at += 1
    return number if at == size and at else _parse_odd_id(args)


def _parse_odd_id(args: bytes) -> int | None:
    """Parse a job's id that is very long, or that blanks precede."""
    found = _ID.fullmatch(args)
    if found is None:
        return None
    job_id = int(found[1])
    return job_id if job_id <= U64_MAX else None


def parse_bury(args: bytes) -> tuple[int, int] | None:
    """Parse ``id pri``."""
    found = _ID_PRI.fullmatch(args)
    if found is None:
        return None
    job_id, pri = map(int, found.groups())
    return (job_id, pri) if job_id <= U64_MAX and pri <= U32_MAX else None


def parse_release(args: bytes) -> tuple[int, int, int] | None:
    """Parse ``id pri delay_s``."""
    found = _ID_PRI_DELAY.fullmatch(args)
    if found is None:
        return None
    job_id, pri, delay_s = map(int, found.groups())
    return (job_id, pri, delay_s) if job_id <= U64_MAX and max(pri, delay_s) <= U32_MAX else None


def parse_id_and_size(args: bytes) -> tuple[int, int] | None:
    """Parse ``id bytes``."""
    return parse_bury(args)  # the bounds are the same


def parse_timeout(args: bytes) -> int | None:
    """Parse the seconds of a reserve-with-timeout. What follows the number is ignored, as in the reference."""
    found = _ID.match(args)
    if found is None or b"\0" in args:
        return None
    timeout_s = int(found[1])
    return timeout_s if timeout_s <= TIMEOUT_MAX_S else None


def parse_kick(args: bytes) -> int | None:
    """Parse the bound of a kick as C's strtoul does: white space and a sign may precede it, and anything may follow."""
    found = _STRTOUL.match(args)
    if found is None or b"\0" in args:
        return None
    bound = int(found[2])
    if bound > U64_MAX:
        return None
    return (-bound if found[1] == b"-" else bound) & U32_MAX


def parse_size(args: bytes) -> int | None:
    """Parse the size of a body in bytes."""
    size = parse_id(args)
    return size if size is not None and size <= U32_MAX else None


def parse_batch(args: bytes) -> tuple[int, int] | None:
    """Parse ``jobs timeout_s``."""
    found = _ID_PRI.fullmatch(args)
    if found is None:
        return None
    jobs, timeout_s = map(int, found.groups())
    return (jobs, timeout_s) if 1 <= jobs <= SLICE and timeout_s <= TIMEOUT_MAX_S else None


def parse_name(args: bytes) -> bytes | None:
    """Parse a tube's name: 1 to 200 bytes, not beginning with a hyphen."""
    return args if is_tube_name(args) else None


def parse_claim(args: bytes) -> str | None:
    """Parse what a client calls itself."""
    return args.decode() if is_claim(args) else None


def parse_pause(args: bytes) -> tuple[bytes, int] | None:
    """Parse ``tube pause_s``. The caller has to check whether the tube's name is valid."""
    found = _PAUSE.fullmatch(args)
    if found is None or int(found[2]) > U32_MAX:
        return None
    return found[1], int(found[2])


def parse_person(args: bytes) -> str | None:
    """Parse the name of a person."""
    try:
        name = args.decode()
    except UnicodeDecodeError:
        return None
    return name if is_person(name) else None
