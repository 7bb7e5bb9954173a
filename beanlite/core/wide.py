"""A dict for very many entries, which grows without a pause."""

from collections.abc import Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

_Value = TypeVar("_Value")

# Entries of a part, on average, before there is one more.
PART: Final = 2048
# A dict that shrinks keeps its memory; a part is copied to give that back when it is down to one of these sizes.
_SHRINK_AT: Final = {0, PART >> 4}


class WideDict(Generic[_Value]):
    """A dict of integers, in parts: to resize one of a million entries would stall the server noticeably.

    The parts are those of linear hashing: each time that there are many entries for the number of parts, one of these
    is divided.
    """

    __slots__ = ("_count", "_half", "_parts")

    def __init__(self) -> None:
        self._parts: list[dict[int, _Value]] = [{}]
        self._half = 1
        """The largest power of two that is not larger than the number of parts."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: int) -> bool:
        return key in self._part(key)

    def get(self, key: int) -> _Value | None:
        """Return the value of a key, or None."""
        return self._part(key).get(key)

    def set(self, key: int, value: _Value) -> None:
        """Give a key a value."""
        part = self._part(key)
        self._count += key not in part
        part[key] = value
        if self._count > PART * len(self._parts):
            self._divide()

    def pop(self, key: int) -> _Value | None:
        """Remove a key and return its value, or None."""
        at = self._place(key)
        part = self._parts[at]
        value = part.pop(key, None)
        if value is not None:
            self._count -= 1
            if len(part) in _SHRINK_AT:
                self._parts[at] = dict(part)
        return value

    def each_key(self) -> Iterator[int]:
        """Return all keys, in no order; nothing may be changed meanwhile."""
        return chain.from_iterable(self._parts)

    def free_part(self) -> bool:
        """Free a part of a dict that is not used any more; returns False if there is nothing left."""
        if not self._count or not self._parts:
            return False
        self._parts.pop()
        return True

    def _part(self, key: int) -> dict[int, _Value]:
        return self._parts[self._place(key)]

    def _place(self, key: int) -> int:
        at = _mixed(key) & (2 * self._half - 1)
        return at if at < len(self._parts) else at - self._half

    def _divide(self) -> None:
        parts, half = self._parts, self._half
        number = len(parts) - half
        both, bits = parts[number], 2 * half - 1
        parts[number] = {key: value for key, value in both.items() if _mixed(key) & bits == number}
        parts.append({key: value for key, value in both.items() if _mixed(key) & bits != number})
        if len(parts) == 2 * half:
            self._half = 2 * half


def _mixed(key: int) -> int:
    """Return a number whose low bits differ for ids of which each is so much larger than the one before."""
    return key ^ key >> 10 ^ key >> 20
