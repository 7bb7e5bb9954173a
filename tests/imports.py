"""Draw who imports whom: ``python -m tests.imports`` prints the rooms of the package as a Mermaid graph.

An arrow that follows from others is left out, so that the picture can be read; a dotted one points upwards. Below it
stand the longest classes, for which there is no limit; on stderr, the imports that break the rules (upwards, or in a
circle, those for annotations included); with any of them the exit code is 1.
"""

import ast
import sys

from tests.support.layout import (
    FILES,
    ROW,
    Graph,
    circles,
    module_of,
    modules_used,
    parsed,
    reachable,
    room_of,
    rooms_used,
)


def room_graph() -> Graph:
    """For each room the other rooms that its files import from."""
    graph: dict[str, set[str]] = {room: set() for room in ROW}
    for file in FILES:
        graph[room_of(file)] |= {room for room, _ in rooms_used(file)} - {room_of(file)}
    return graph


def module_graph() -> Graph:
    """For each module the modules that it imports from."""
    return {module_of(file): {module for module, _ in modules_used(file)} for file in FILES}


def picture(graph: Graph) -> str:
    """A Mermaid graph, without the arrows that others imply."""
    down = {room: {other for other in others if ROW[other] > ROW[room]} for room, others in graph.items()}
    lines = ["flowchart TD"]
    for room in sorted(graph, key=lambda room: (ROW[room], room)):
        for other in sorted(graph[room], key=lambda room: (ROW[room], room)):
            if other not in down[room]:
                lines.append(f"    {room} -.-> {other}")
            elif not any(other in reachable(down, between) for between in down[room] - {other}):
                lines.append(f"    {room} --> {other}")
    return "\n".join(lines)


def faults(rooms: Graph, modules: Graph) -> list[str]:
    """What breaks the rules of the house, one line each."""
    upwards = [
        f"{room} imports {other}, which is not below it"
        for room, others in sorted(rooms.items())
        for other in sorted(others)
        if ROW[other] <= ROW[room]
    ]
    return upwards + [f"a circle: {', '.join(circle)}" for circle in circles(modules)]


def longest_classes(count: int) -> list[str]:
    """The longest classes, as comments of a Mermaid graph."""
    lines = [
        ((node.end_lineno or 0) - node.lineno + 1, module_of(file), node.name)
        for file in FILES
        for node in parsed(file).body
        if isinstance(node, ast.ClassDef)
    ]
    return [f"%% {n} lines: {module}.{name}" for n, module, name in sorted(lines, reverse=True)[:count]]


def main() -> int:
    """Print the picture, the longest classes, and what is wrong with the picture."""
    rooms = room_graph()
    print(picture(rooms), *longest_classes(10), sep="\n")
    wrong = faults(rooms, module_graph())
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
