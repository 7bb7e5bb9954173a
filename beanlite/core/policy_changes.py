"""Changes of policies: whether they can be made, in which words they are recorded, and what is odd about the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from beanlite.core.policies import (
    GLOBS_MAX,
    KEYS,
    OFF,
    ROWS_MAX,
    Glob,
    check_row,
    is_glob,
    is_pattern,
    literals,
    specificity,
)

# Values by pattern and key. In a change, None unsets a key.
Values = Mapping[tuple[bytes, str], str]
Wishes = Mapping[tuple[bytes, str], str | None]

# Keys without effect where the other one has no value.
_NEEDS: Final = {"then": "max_tries", "expired": "ttl"}
# What is said of the jobs that one of these keys moves.
_MOVED: Final = {"then": "die", "expired": "expire"}
_MOVE: Final = "move:"


def changes_of(values: Values, wishes: Wishes) -> dict[tuple[bytes, str], str | None]:
    """Return the wishes that change something. Raises ValueError, in words for the operator, if they can't be met."""
    for (pattern, key), value in wishes.items():
        if value is not None:
            check_row(pattern, key, value)
        elif not is_pattern(pattern) or key not in KEYS:
            check_row(pattern, key, OFF)
    changes = {each: value for each, value in wishes.items() if values.get(each) != value}
    rows = changed(values, changes)
    if len(rows) > max(ROWS_MAX, len(values)):  # an import may have left too many; they can still be made fewer
        raise ValueError(f"there would be {len(rows)} policies, each key counted; there can be {ROWS_MAX}")
    globs = _count_globs(rows)
    if globs > max(GLOBS_MAX, _count_globs(values)):
        raise ValueError(f"there would be {globs} patterns with * or ?; there can be {GLOBS_MAX}")
    return changes


def _count_globs(values: Values) -> int:
    return len({pattern for pattern, _ in values if is_glob(pattern)})


def changed(values: Values, changes: Wishes) -> dict[tuple[bytes, str], str]:
    """Return all values after a change."""
    return {each: value for each, value in {**values, **changes}.items() if value is not None}


def texts_of(changes: Wishes) -> dict[bytes, str]:
    """Return what changes, by pattern: ``max_tries=3 retry=5s unset ttl``."""
    by_pattern: dict[bytes, list[str]] = {}
    for (pattern, key), value in changes.items():
        if value is not None:
            by_pattern.setdefault(pattern, []).append(f"{key}={value}")
    for (pattern, key), value in changes.items():
        if value is None:
            by_pattern.setdefault(pattern, []).append(f"unset {key}")
    return {pattern: " ".join(texts) for pattern, texts in by_pattern.items()}


def warnings(values: Values, patterns: Iterable[bytes]) -> list[str]:
    """Return what is probably not meant in the values of these patterns, a sentence for each."""
    winners = _Winners(values)
    found: list[str] = []
    for pattern in dict.fromkeys(patterns):
        name = pattern.decode()
        if _is_set(values.get((pattern, "max_tries"))) and not winners.has(pattern, "retry"):
            found.append(f"{name} has max_tries without retry: jobs come back at once")
        for key, needed in _NEEDS.items():
            value = values.get((pattern, key))
            if value is None or not _is_set(value):
                continue
            if not winners.has(pattern, needed):
                found.append(f"{name} has {key} without {needed}: it has no effect")
            to = value.removeprefix(_MOVE)
            if to != value and winners.pattern_of(to.encode(), key) == pattern:
                found.append(f"{name} matches {to} itself: jobs in {to} that {_MOVED[key]} there are buried")
    return found


def _is_set(value: str | None) -> bool:
    return value is not None and value != OFF


class _Winners:
    """Which pattern's value holds for all tubes that a pattern matches, as far as narrower ones don't say otherwise."""

    def __init__(self, values: Values) -> None:
        self._values = values
        globs = sorted({pattern for pattern, _ in values if is_glob(pattern)})
        globs.sort(key=specificity, reverse=True)
        self._globs = [(glob, *literals(glob), Glob(glob)) for glob in globs]

    def pattern_of(self, pattern: bytes, key: str) -> bytes | None:
        """Return the most specific pattern that has the key, among this one and those that match all that it does."""
        if (pattern, key) in self._values:
            return pattern
        name = pattern.decode()
        for glob, start, end, part, shape in self._globs:
            if not (name.startswith(start) and name.endswith(end) and part in name):
                continue
            if (glob, key) in self._values and shape.fits(name):
                return glob
        return None

    def has(self, pattern: bytes, key: str) -> bool:
        """Whether the key has a value other than OFF."""
        winner = self.pattern_of(pattern, key)
        return winner is not None and _is_set(self._values[winner, key])
