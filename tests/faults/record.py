"""The record of a server's file operations, and the report of failures that happen at these operations."""

import os
import re
from collections import Counter
from typing import NamedTuple

import pytest

from tests.faults.forker import CHANGES, KILL_AMID, KILL_BEFORE, KINDS
from tests.faults.power import SECTOR

LINE_END = "\n"
tried: Counter[str] = Counter()
"""The numbers of kills, and of images that were started."""
LEFT_TO_CHANCE = re.compile(r"/\S*/|(?<=-v2\.)\w{8}(?=\.partial)")  # folders, and the random part of a name


class Operation(NamedTuple):
    """A line of the record."""

    kind: str
    name: str
    offset: int
    data: bytes

    def __str__(self) -> str:
        more = f" at {self.offset}, {len(self.data)} bytes" if self.kind == "write" else ""
        return f"{self.kind} {self.name}{more}"

    @property
    def counted(self) -> bool:
        """Whether it changes something: only such operations are numbered."""
        return self.kind in KINDS and bool(CHANGES & 1 << KINDS.index(self.kind))


def read_trace(file):
    """Return the operations of a record. A note has its word as name, and the number of answered steps as offset."""
    raw, operations, at = file.read_bytes(), [], 0
    while at < len(raw):
        end = raw.index(b"\n", at)
        kind, *name, offset, size = raw[at:end].decode().split(" ")
        at = end + 1 + int(size)
        operations.append(Operation(kind, " ".join(name), int(offset), raw[end + 1 : at]))
        assert raw[at : at + 1] == b"\n"
        at += 1
    return operations


def moments(operations, from_stop=False):
    """Yield the number of each operation, and whether to kill before it or, for a write, in the middle of it.

    A kill after an operation is one before the next. A sync changes nothing for a kill, so none is tried before it. A
    write of no more than a sector is done or not done.
    """
    begun = not from_stop
    number = 0
    for operation in operations:
        begun = begun or operation[:2] == ("note", "stop")
        if operation.counted:
            number += 1
            if begun and operation.kind != "sync" and os.environ.get("FAULTS_AT", str(number)) == str(number):
                yield number, operation, KILL_BEFORE
                if operation.kind == "write" and len(operation.data) > SECTOR:
                    yield number, operation, KILL_AMID


def report(outcomes):
    """Fail if anything went wrong. Outcomes are pairs of a moment and an error, or None for success."""
    failed: dict[str, list[str]] = {}
    for moment, error in filter(None, outcomes):
        text = f"{type(error).__name__}: {LEFT_TO_CHANCE.sub('', str(error).partition(LINE_END)[0])}"
        failed.setdefault(re.sub(r"\d+", "N", text), []).append(f"{moment}{LINE_END}        {text}")
    number = sum(map(len, failed.values()))
    lines = [f"{number} of {len(outcomes)}; FAULTS_AT=N looks at number N alone"]
    for alike in failed.values():
        lines += [f"{len(alike)} times", f"    {alike[0]}"]
        if len(alike) > 1:
            lines.append(f"    up to: {alike[-1]}")
    if failed:
        pytest.fail(LINE_END.join(lines), pytrace=False)
