"""Statistics and lists of several servers in one reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from beanlite.protocol.replies import OK

# Keys of which the largest value is told, and the smallest; all other numbers are summed.
_LARGEST: Final = frozenset(
    {
        "binlog-oldest-index",
        "binlog-current-index",
        "binlog-max-size",
        "pause",
        "pause-time-left",
        "backup-succeeded-at",
        "backup-failed-at",
    }
)
_SMALLEST: Final = frozenset({"max-job-size", "disk-free", "history-bodies-max"})
# Policies of a tube, of which those of the first server are told, and the numbers among these keys that are counts.
_POLICY: Final = "policy-"
_COUNTED: Final = "policy-total-"


def merged_stats(bodies: list[bytes], own: Mapping[str, str], more: Mapping[str, str]) -> bytes:
    """Return the reply to ``stats`` or ``stats-tube``.

    The first body is that of the server whose policies hold for jobs that are put into the tube.

    ``own``: values that take the place of those of the servers; ``more``: further keys, which come last.
    """
    tables = [_table(body) for body in bodies]
    for table in tables[1:]:
        for key in [key for key in table if key.startswith(_POLICY) and not key.startswith(_COUNTED)]:
            del table[key]
    keys: dict[str, None] = {}
    for table in tables:
        keys |= dict.fromkeys(table)
    merged = {
        key: own[key] if key in own else _merge(key, [table[key] for table in tables if key in table]) for key in keys
    }
    if "current-tubes" in merged:  # each server has default
        merged["current-tubes"] = str(int(merged["current-tubes"]) - len(tables) + 1)
    merged |= more
    text = "---\n" + "".join(f"{key}: {value}\n" for key, value in merged.items())
    return _ok(text.encode("latin-1"))


def merged_tubes(bodies: list[bytes]) -> bytes:
    """Return the reply to ``list-tubes``."""
    names: dict[bytes, None] = {}
    for body in bodies:
        names |= dict.fromkeys(line for line in body.split(b"\n") if line.startswith(b"- "))
    return _ok(b"---\n" + b"\n".join(names) + b"\n")


def _ok(text: bytes) -> bytes:
    return OK % (len(text), text)


def _table(body: bytes) -> dict[str, str]:
    rows = [line.partition(": ") for line in body.decode("latin-1").splitlines()]
    return {key: value for key, colon, value in rows if colon}


def _merge(key: str, values: list[str]) -> str:
    if len(values) == 1 or not all(_is_number(value) for value in values):
        return "true" if "true" in values else values[0]
    if key in _LARGEST:
        return max(values, key=float)
    if key in _SMALLEST:
        return min(values, key=float)
    if all(value.isdigit() for value in values):
        return str(sum(map(int, values)))
    return f"{sum(map(float, values)):.6f}"


def _is_number(value: str) -> bool:
    return value.replace(".", "", 1).isdigit()
