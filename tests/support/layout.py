"""The rooms of the house, that is, the parts of the package; and which file imports what, read from the sources."""

import ast
from collections.abc import Iterator, Mapping, Set as AbstractSet
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2] / "beanlite"

# From top to bottom. A room imports from rooms in lower rows, and inside itself if it is a folder.
ROOMS = [
    {"__main__"},
    {"cli"},
    {"server", "binlog", "web", "worker", "router"},
    {"console", "metrics", "beside"},
    {"standby"},
    {"net"},
    {"commit"},
    {"protocol"},
    {"journal"},
    {"fleet"},
    {"core"},
    {"beanstalk"},
    {"settings"},
    {"host"},
    {"errors"},
    {"client"},
    {"__init__"},
]
ROW = {room: row for row, rooms in enumerate(ROOMS) for room in rooms}

FILES = sorted(ROOT.rglob("*.py"))


def module_of(file: Path) -> str:
    """Return the dotted name of a file, without the package's own: ``core.engine``; a package has its folder's name."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {module_of(file) for file in FILES}


def room_of(file: Path) -> str:
    """Return the first part of a file's path: a folder, or a module."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements inside a node, and those inside these; there are few of them compared to expressions."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for inner in getattr(node, block, ()):
            yield inner
            yield from statements(inner)


@cache
def imports(file: Path) -> list[tuple[str, bool]]:
    """Return pairs of a module that a file imports, anywhere in it, and whether it does so for types only."""
    tree = parsed(file)
    for_types = {
        inner
        for node in statements(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in statements(ast.Module(node.body, []))
    }
    found = []
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node in for_types) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: a relative import hides the way it goes"
            found += [(f"{node.module}.{alias.name}", node in for_types) for alias in node.names]
    return found


def modules_used(file: Path) -> Iterator[tuple[str, bool]]:
    """Yield the modules of the package that a file imports from, and whether it does so for types only."""
    for name, for_types in imports(file):
        package, *parts = name.split(".")
        if package == "beanlite":
            while parts and ".".join(parts) not in MODULES:  # names inside a module
                parts.pop()
            yield ".".join(parts) or "__init__", for_types  # beanlite.__version__ and the like are the package's own


def rooms_used(file: Path) -> Iterator[tuple[str, bool]]:
    """Yield the rooms that a file imports from, and whether it does so for types only."""
    for module, for_types in modules_used(file):
        yield module.partition(".")[0], for_types


Graph = Mapping[str, AbstractSet[str]]
"""The nodes that each node imports."""


def reachable(graph: Graph, start: str) -> set[str]:
    """Return everything that a node imports, directly or through others."""
    found: set[str] = set()
    left = [start]
    while left:
        new = graph.get(left.pop(), frozenset()) - found
        found |= new
        left.extend(new)
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that import each other, directly or through others."""
    reach = {node: reachable(graph, node) for node in graph}
    groups = {frozenset(other for other in reach[node] if node in reach.get(other, ())) for node in graph}
    return sorted(sorted(group) for group in groups if group)
