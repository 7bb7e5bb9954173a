"""Numbers, times and names of tubes in words."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_PLAIN: Final = re.compile(r"[A-Za-z0-9+/._-]+")


def named(names: list[str], tubes: int) -> str:
    """Return names as text, and how many other tubes there are."""
    if tubes > len(names):
        return f"{', '.join(names)} and {quantity(tubes - len(names), 'other tube')}"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def shell_word(tube: str) -> str:
    """Return the name of a tube as a shell takes it: it may have a semicolon, a dollar or parentheses in it."""
    return tube if _PLAIN.fullmatch(tube) else f"'{tube}'"


def quantity(number: int, thing: str, things: str = "") -> str:
    """Return a number of things as text: "1 pause", "1,234 pauses"; ``things`` is a plural that does not end in -s."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def jobs_text(number: int) -> str:
    """Return a number of jobs as text: "1 job", "1,234 jobs"."""
    return quantity(number, "job")


def age(seconds: float) -> str:
    """Return a length of time in its two largest units: "3 h 12 min"."""
    rest = round(abs(seconds))
    parts: list[str] = []
    for unit, length_s in _UNITS:
        number, rest = rest // length_s, rest % length_s
        if number or (unit == "s" and not parts):
            parts.append(f"{number} {unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return ("-" if seconds <= -0.5 else "") + " ".join(parts)


def rates_text(coming: float, going: float) -> tuple[str, str]:
    """Return two rates in the same unit, to be compared: by the second or, if one is small, by the minute.

    Only the first one names it.
    """
    if min(coming, going) >= 10:
        return f"{coming:,.0f} a second", f"{going:,.0f}"
    return f"{coming * 60:,.0f} a minute", f"{going * 60:,.0f}"
