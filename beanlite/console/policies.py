"""Changes of policies, as people read them, and the tubes that they concern."""

from typing import Final

from beanlite.console import units
from beanlite.console.filters import Record

# How many names of tubes are listed in a message.
_NAMES_MAX: Final = 20


def changes_text(changes: list[Record]) -> list[str]:
    """Return a line for each pattern that changes."""
    by_pattern: dict[str, list[str]] = {}
    for each in changes:
        before = f" (was {each['before']})" if each["before"] is not None else ""
        text = f"unset {each['key']}" if each["value"] is None else f"{each['key']}={each['value']}"
        by_pattern.setdefault(each["pattern"], []).append(text + before)
    return [f"{pattern}: {', '.join(texts)}" for pattern, texts in by_pattern.items()]


def summary(names: list[str]) -> str:
    """Return which tubes match, the first ones if there are many."""
    if not names:
        return "no tube matches now"
    listed = ", ".join(names[:_NAMES_MAX]) + (", …" if len(names) > _NAMES_MAX else "")
    return f"{units.quantity(len(names), 'tube')} {'matches' if len(names) == 1 else 'match'} now: {listed}"
