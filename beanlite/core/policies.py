"""Policies: what operators have set for tubes by pattern, and the rules of a tube that follow from it.

A pattern is the name of a tube, or a glob with ``*`` and ``?``, which no name contains. For each key the most specific
pattern that has it wins: a name before globs, then the one with more characters that stand for themselves, then the
smaller text. Nothing here knows of queues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from beanlite.core.job import SECOND_NS, U32_MAX
from beanlite.core.rules import PRESENT, WAITING, Rules
from beanlite.core.tube import is_tube_name

ROWS_MAX: Final = 1000
GLOBS_MAX: Final = 100
TRIES_MAX: Final = 1_000_000
# How many answers are remembered: clients choose the names of tubes, and thereby which globs come together.
_ANSWERS_MAX: Final = 1000
# The value that exempts tubes from a key that a less specific pattern has.
OFF: Final = "off"
BURY: Final = "bury"
DELETE: Final = "delete"

_MOVE: Final = "move:"
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])", re.ASCII)
_RATE: Final = re.compile(r"([1-9][0-9]{0,5})/([smh])", re.ASCII)
_SECONDS_IN: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WILDCARD: Final = re.compile(r"[*?]")
_PATTERN: Final = re.compile(rb"[A-Za-z0-9+/;.$_()*?][A-Za-z0-9+/;.$_()*?-]{0,199}")


class PolicyRow(NamedTuple):
    """A value that an operator has given to a key, for the tubes that a pattern matches."""

    pattern: bytes
    key: str
    value: str
    """As in ``KEYS``; or OFF."""
    changed_at: float
    """In UTC seconds."""
    changed_by: str
    """The address, or the person, as the history names them."""


# -- values


def duration_s(text: str) -> int:
    """Return the seconds of a number with a unit, such as 90s, 5m, 2h or 1d. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration such as 90s, 5m, 2h or 1d")
    return min(int(match[1]) * _SECONDS_IN[match[2]], U32_MAX)


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(U32_MAX)) and 1 <= int(text) <= most):
        raise ValueError(f"{text!r} is no whole number from 1 to {most}")
    return int(text)


def _destination(text: str, *others: str) -> bytes | None:
    """Return the tube that jobs move to; None: the text is one of the other values."""
    if text in others:
        return None
    name = text.removeprefix(_MOVE).encode(errors="surrogateescape")
    if not (text.startswith(_MOVE) and is_tube_name(name)):
        raise ValueError(f"{text!r} is neither {', '.join(others)} nor {_MOVE} with the name of a tube")
    return name


def _set_max_tries(rules: Rules, text: str) -> None:
    rules.max_tries = _number(text, TRIES_MAX)


def _set_then(rules: Rules, text: str) -> None:
    rules.then_to = _destination(text, BURY)


def _set_retry(rules: Rules, text: str) -> None:
    first, dots, most = text.partition("..")
    rules.retry_s = duration_s(first)
    rules.retry_most_s = duration_s(most) if dots else rules.retry_s
    if rules.retry_most_s < rules.retry_s:
        raise ValueError(f"{text!r} ends with less than it begins with")


def _set_max_reserved(rules: Rules, text: str) -> None:
    rules.max_reserved = _number(text, U32_MAX)


def _set_rate(rules: Rules, text: str) -> None:
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no rate such as 10/s, 300/m or 5/h")
    jobs, period_s = int(match[1]), _SECONDS_IN[match[2]]
    rules.token_ns = -(-period_s * SECOND_NS // jobs)  # rounded up: never more, but for a burst after a quiet time
    rules.burst = max(1, jobs // period_s)


def _set_max_jobs(rules: Rules, text: str) -> None:
    rules.max_jobs = _number(text, U32_MAX)


def _set_fair(rules: Rules, text: str) -> None:
    if text != "true":
        raise ValueError(f"{text!r} is neither true nor {OFF}")
    rules.fair = True


def _set_unique(rules: Rules, text: str) -> None:
    if text not in {WAITING, PRESENT}:
        raise ValueError(f"{text!r} is neither {WAITING} nor {PRESENT}")
    rules.unique = text


def _set_ttl(rules: Rules, text: str) -> None:
    rules.ttl_ns = duration_s(text) * SECOND_NS


def _set_expired(rules: Rules, text: str) -> None:
    rules.expired_deletes = text == DELETE
    rules.expired_to = _destination(text, BURY, DELETE)


# What each key does to the rules of a tube; it raises ValueError if that can't be its value.
KEYS: Final = {
    "max_tries": _set_max_tries,
    "then": _set_then,
    "retry": _set_retry,
    "max_reserved": _set_max_reserved,
    "rate": _set_rate,
    "max_jobs": _set_max_jobs,
    "fair": _set_fair,
    "unique": _set_unique,
    "ttl": _set_ttl,
    "expired": _set_expired,
}


def text_of_value(value: object) -> str:
    """Return a value as ``KEYS`` takes it, which JSON and TOML may also have as a number or true. Raises ValueError."""
    if value is True:
        return "true"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f'a value is text such as "{OFF}", a whole number or true')


def check_row(pattern: bytes, key: str, value: str) -> None:
    """Raise ValueError, in words for the operator, unless this can be a row."""
    if not is_pattern(pattern):
        raise ValueError(f"{pattern.decode(errors='replace')!r} is neither the name of a tube nor a pattern")
    if key not in KEYS:
        raise ValueError(f"{key!r} is no key of a policy: {', '.join(KEYS)}")
    if value == OFF:
        return
    try:
        KEYS[key](Rules(), value)
    except ValueError as why:
        raise ValueError(f"{key}: {why}") from None


def is_pattern(pattern: bytes) -> bool:
    """Whether this is the name of a tube, or a glob that can match one."""
    return _PATTERN.fullmatch(pattern) is not None


def is_glob(pattern: bytes) -> bool:
    """Whether a pattern is not simply a name."""
    return b"*" in pattern or b"?" in pattern


# -- all rows


class Policies:
    """All rows, and what follows from them for a tube."""

    __slots__ = ("_answers", "_globs", "_names", "_shared", "rows")

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, str], PolicyRow] = {}
        """By pattern and key."""
        self._names: dict[bytes, list[PolicyRow]] = {}
        self._globs: list[tuple[str, str, str, Glob, list[PolicyRow]]] = []
        """The ``literals`` of each glob, for most tubes have not even these; the least specific glob first."""
        self._shared: dict[tuple[PolicyRow, ...], Rules | None] = {}
        """The rules that follow from rows, as long as they are remembered."""
        self._answers: dict[bytes, Rules | None] = {}
        """The rules of names: those of a new tube are asked for several times before it is there."""

    def change(self, rows: Iterable[PolicyRow], unset: Iterable[tuple[bytes, str]] = ()) -> None:
        """Set rows, which ``check_row`` has passed, and remove others, which are there."""
        for each in unset:
            del self.rows[each]
        for row in rows:
            self.rows[row.pattern, row.key] = row
        by_pattern: dict[bytes, list[PolicyRow]] = {}
        for row in self.rows.values():
            by_pattern.setdefault(row.pattern, []).append(row)
        self._names = {pattern: found for pattern, found in by_pattern.items() if not is_glob(pattern)}
        globs = sorted(filter(is_glob, by_pattern), reverse=True)  # of two alike, the smaller text is the last one
        globs.sort(key=specificity)
        self._globs = [(*literals(glob), Glob(glob), by_pattern[glob]) for glob in globs]
        self._shared = {}
        self._answers = {}

    @property
    def globs(self) -> int:
        """How many patterns are globs."""
        return len(self._globs)

    def effective(self, name: bytes) -> dict[str, PolicyRow]:
        """Return the row that wins for each key that any pattern has for this tube."""
        found: dict[str, PolicyRow] = {}
        if self._globs:
            text = name.decode()
            for start, end, part, glob, rows in self._globs:
                if text.startswith(start) and text.endswith(end) and part in text and glob.fits(text):
                    for row in rows:
                        found[row.key] = row
        for row in self._names.get(name, ()):
            found[row.key] = row
        return found

    def rules_of(self, name: bytes) -> Rules | None:
        """Return the rules of the tube with this name; None if it has none."""
        if not self.rows:
            return None
        if name in self._answers:
            return self._answers[name]
        if len(self._answers) >= _ANSWERS_MAX:
            self._answers.clear()
        rules = self._answers[name] = self._rules_by(self.effective(name))
        return rules

    def _rules_by(self, rows: dict[str, PolicyRow]) -> Rules | None:
        key = tuple(row for each in KEYS if (row := rows.get(each)) is not None and row.value != OFF)
        if key not in self._shared:
            if len(self._shared) >= _ANSWERS_MAX:
                self._shared.clear()
            self._shared[key] = _rules(key) if key else None
        return self._shared[key]


def literals(glob: bytes) -> tuple[str, str, str]:
    """Return what all that a glob matches begins with, ends with and contains; these are faster to look for."""
    parts = _WILDCARD.split(glob.decode())
    return parts[0], parts[-1], max(parts, key=len)


class Glob:
    """A glob, ready to be compared with names of which it has the ``literals``.

    To compile a regular expression takes a millisecond for a long one, and many may be set at once.
    """

    __slots__ = ("_any", "_end", "_least", "_stars", "_takes")

    def __init__(self, glob: bytes) -> None:
        text = glob.decode()
        self._least = len(text) - 1 if text.count("*") == 1 and "?" not in text else -1
        """The size of the shortest text that it matches, where ``literals`` and that decide; else -1."""
        self._any = self._stars = 0
        self._takes: dict[str, int] = {}
        """For each character the places of those in the glob that match it, one bit each; the same of other ones in
        ``_any``; and in ``_stars`` before which there is a star."""
        bit = 1
        for character in text:
            if character == "*":
                self._stars |= bit
                continue
            if character == "?":
                self._any |= bit
            else:
                self._takes[character] = self._takes.get(character, 0) | bit
            bit <<= 1
        for character in self._takes:
            self._takes[character] |= self._any
        self._takes["*"] = 0  # it is in no name, and in a pattern it may be any text
        self._end = bit

    def fits(self, text: str) -> bool:
        """Whether it matches a name, or all that another pattern matches."""
        if self._least >= 0:
            return len(text) >= self._least
        takes, any_one, stars = self._takes, self._any, self._stars
        places = 1  # up to which the text so far matches
        for character in text:
            places = (places & takes.get(character, any_one)) << 1 | places & stars
        return places & self._end != 0


def specificity(glob: bytes) -> int:
    """Return how many characters of a glob stand for themselves."""
    return len(glob) - glob.count(b"*") - glob.count(b"?")


def _rules(rows: tuple[PolicyRow, ...]) -> Rules:
    rules = Rules()
    for row in rows:
        KEYS[row.key](rules, row.value)
        rules.values[row.key] = row.value
    rules.checks_puts = bool(rules.max_jobs or rules.unique)
    return rules
