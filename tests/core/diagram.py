"""Prints the diagram of a job's states for the documentation: ``python -m tests.core.diagram``."""

from beanlite.core.job import GONE
from beanlite.core.transitions import TRANSITIONS


def mermaid():
    """The table of transitions as a block of Markdown; events between the same two states share an arrow."""
    arrows = {}
    for before, event, after in TRANSITIONS:
        way = ("[*]" if before is None else before.value, "[*]" if after is GONE else after.value)
        arrows.setdefault(way, []).append(event)
    lines = [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


if __name__ == "__main__":
    print(mermaid())  # noqa: T201 - to be copied into docs/architecture.md
