"""A heap of integers from which any entry can be removed."""

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from typing import Final

# Slots examined for each entry removed from the middle. A pass over the heap thus takes len/SWEEP removals, so that at
# most about len/SWEEP removed entries are in it at any time, and no removal ever pays for a rebuild.
SWEEP: Final = 16
# With this many removed entries in the heap twice as many slots are examined, with twice this many three times as many,
# and so on: if all of them come to the top at once, a single pop has to pass them.
MANY: Final = 1024

# A row of at most so many keys is moved up when its first one is popped, which costs less than what a heap has to do.
ROW_MAX: Final = 1024
# How many keys at least a sample of a heap has, by which one number is estimated, or how many keys are where.
SAMPLE: Final = 256
LARGE_SAMPLE: Final = 2048
# So few keys are all looked at, which takes less than to find out which have to be.
FEW: Final = 16
# As constants of this module, which compiled code need not look up.
_push: Final = heappush
_pop: Final = heappop

# Shared by all heaps that nothing has been removed from; never added to.
_NOTHING: Final[set[int]] = set()


class KeyHeap:
    """A heap of integers, the smallest on top. Push and pop are those of heapq, written in C.

    An entry removed from the middle stays in its slot, marked as gone, until it reaches the top or a sweep finds it.
    A key can be in the heap only once. As long as keys are pushed in ascending order, as those of equal jobs are, they
    form a row, which is a heap, too.
    """

    __slots__ = ("_cursor", "_gone", "_is_row", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        """The heap itself, public so that its top can be read without a call: ``keys[0]`` is never a removed entry."""
        self._gone = _NOTHING
        self._cursor = 0
        self._is_row = True
        """The keys are known to be in ascending order, and none is removed."""

    def __len__(self) -> int:
        return len(self.keys) - len(self._gone)

    def push(self, key: int) -> None:
        """Add a key."""
        if self._is_row:
            if not self.keys or self.keys[-1] < key:
                self.keys.append(key)
                return
            self._is_row = False
        if self._gone and key in self._gone:
            self._gone.remove(key)  # its old slot will do
        else:
            _push(self.keys, key)

    def pop(self) -> int:
        """Remove and return the smallest key. Raises IndexError if there is none."""
        keys = self.keys
        if self._is_row and len(keys) <= ROW_MAX:
            return keys.pop(0)
        key = _pop(keys)
        if self._gone:
            self._clear_top()
        self._is_row = not keys
        return key

    def remove(self, key: int) -> None:
        """Remove a key, which must be in the heap."""
        if key == self.keys[0]:
            self.pop()
            return
        if self._gone is _NOTHING:
            self._gone = set()
        self._is_row = False
        self._gone.add(key)
        self._sweep()

    def after(self, key: int, most: int, depth: int) -> list[int] | None:
        """Return the next ``most`` keys larger than ``key``, in order; None if more than ``depth`` keys are not larger.

        Removed entries may be among them. The heap is walked from its top, without sorting it.
        """
        keys = self.keys
        size = len(keys)
        next_ones: list[tuple[int, int]] = []
        passed = 0
        places = [0] if keys else []
        while places:
            at = places.pop()
            if keys[at] > key:
                next_ones.append((keys[at], at))
                continue
            passed += 1
            if passed > depth:
                return None
            places.extend(range(2 * at + 1, min(2 * at + 3, size)))
        heapify(next_ones)
        found: list[int] = []
        while next_ones and len(found) < most:
            next_key, at = heappop(next_ones)
            found.append(next_key)
            for child in range(2 * at + 1, min(2 * at + 3, size)):
                heappush(next_ones, (keys[child], child))
        return found

    def about_up_to(self, key: int, exact_max: int) -> int:
        """Return how many keys are at most ``key``: exactly up to ``exact_max``, and above that as a sample says."""
        keys, gone = self.keys, self._gone
        size = len(keys)
        passed = 0
        places = [0] if keys else []
        while places and passed <= exact_max:
            at = places.pop()
            if keys[at] > key:
                continue
            if not gone or keys[at] not in gone:
                passed += 1
            places.extend(range(2 * at + 1, min(2 * at + 3, size)))
        if passed <= exact_max:
            return passed
        step = size // SAMPLE + 1
        sample = [each for each in keys[::step] if not gone or each not in gone]
        return max(passed, len([each for each in sample if each <= key]) * len(self) // len(sample))

    def add_between(self, bounds: list[int], counts: list[int], looks_max: int) -> int:
        """Add how many keys are up to the first of ascending bounds, and between each two; returns the keys looked at.

        These are exact up to ``looks_max`` looks, and above that as a sample says, but no less than has been counted.
        """
        keys, gone, last = self.keys, self._gone, bounds[-1]
        if len(keys) <= FEW:
            for key in keys:
                if key <= last and (not gone or key not in gone):
                    counts[bisect_left(bounds, key)] += 1
            return len(keys)
        found, looks = self._about_between(bounds, looks_max)
        for part, count in enumerate(found):
            counts[part] += count
        return looks

    def _about_between(self, bounds: list[int], looks_max: int) -> tuple[list[int], int]:
        keys, gone = self.keys, self._gone
        size = len(keys)
        counts = [0] * len(bounds)
        looks = 0
        places = [0] if keys else []
        while places and looks <= looks_max:
            at = places.pop()
            looks += 1
            if keys[at] > bounds[-1]:
                continue
            if not gone or keys[at] not in gone:
                counts[bisect_left(bounds, keys[at])] += 1
            places.extend(range(2 * at + 1, min(2 * at + 3, size)))
        if not places:
            return counts, looks
        step = size // LARGE_SAMPLE + 1
        sample = [each for each in keys[step // 2 :: step] if not gone or each not in gone]  # the top is no sample
        sampled = [0] * (len(bounds) + 1)
        for key in sample:
            sampled[bisect_left(bounds, key)] += 1
        each_stands_for = len(self) / max(1, len(sample))
        estimates = [round(count * each_stands_for) for count in sampled[:-1]]
        return list(map(max, counts, estimates)), looks + len(sample)

    def _clear_top(self) -> None:
        keys, gone = self.keys, self._gone
        while gone and keys[0] in gone:
            gone.remove(heappop(keys))

    def _sweep(self) -> None:
        """Free the slots of removed entries among the next few."""
        keys, gone = self.keys, self._gone
        at = self._cursor
        for _ in range(SWEEP + SWEEP * (len(gone) // MANY)):
            if at >= len(keys):
                at = 0
            if keys[at] not in gone:
                at += 1
                continue
            gone.remove(keys[at])
            last = keys.pop()
            while last in gone:
                gone.remove(last)
                last = keys.pop()
            if at < len(keys):
                self._place(at, last)
        self._cursor = at

    def _place(self, at: int, key: int) -> None:
        """Put a key into the slot of a removed entry, and restore the heap's order around it."""
        keys = self.keys
        while at and key < keys[(at - 1) >> 1]:
            keys[at] = keys[(at - 1) >> 1]
            at = (at - 1) >> 1
        child = 2 * at + 1
        while child < len(keys):
            if child + 1 < len(keys) and keys[child + 1] < keys[child]:
                child += 1
            if key <= keys[child]:
                break
            keys[at] = keys[child]
            at, child = child, 2 * child + 1
        keys[at] = key
