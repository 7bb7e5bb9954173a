"""The house: imports go one way, the core does no I/O, and only the journal knows SQL."""

import ast
from pathlib import Path

import pytest

from beanlite.errors import SHARED

ROOT = Path(__file__).parent.parent / "beanlite"

# From top to bottom. A room imports from rooms below its own row, and inside itself when it is a folder.
ROOMS = [
    {"__main__"},
    {"cli"},
    {"server", "bench"},
    {"net"},
    {"commit"},
    {"protocol"},
    {"journal"},
    {"core"},
    {"beanstalk"},
    {"config", "log", "clock", "signals"},
    {"errors", "stderr", "defaults"},
    {"__init__"},
]
# What is known upwards, for annotations only: who calls is handed in.
TYPES_FROM_ABOVE = {
    ("commit", "net"),
}
ROW = {room: row for row, rooms in enumerate(ROOMS) for room in rooms}

# These rooms are pure: told what happened and what time it is, they compute.
CORE = {"protocol", "core"}
CORE_MAY_IMPORT = {
    "__future__",
    "beanlite",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "re",
    "typing",
}
SQL = {"aiosqlite", "sqlite3"}

FILES = sorted(ROOT.rglob("*.py"))


def room_of(file):
    """The first part of a file's path: a folder, or a module."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(file):
    """Pairs of a module that a file imports, and whether it does so for types only; wherever in the file it does."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node in for_types
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: a relative import hides the way it goes"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node in for_types


def rooms_used(file):
    """The rooms that a file imports from, and whether for types only."""
    for module, for_types in imports(file):
        package, *rest = module.split(".")
        if package == "beanlite":  # beanlite.__version__ and the like are the package's own
            yield rest[0] if rest and rest[0] in ROW else "__init__", for_types


def test_each_file_has_its_row():
    assert {room_of(file) for file in FILES} - set(ROW) == set()


def test_what_clients_share_is_named_as_it_is():
    assert all((ROOT.parent / place).exists() for place in SHARED)


def upward(*, for_types):
    """Pairs of a room and one that it should not know of."""
    return {
        (room, other)
        for file in FILES
        for other, only_types in rooms_used(file)
        if only_types == for_types and ROW[other] <= ROW[room := room_of(file)]
        if not (other == room and file.parent != ROOT)  # inside a folder
    }


def test_imports_go_down():
    assert upward(for_types=False) == set()


def test_what_is_known_upwards_is_listed():
    assert upward(for_types=True) == TYPES_FROM_ABOVE


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) in CORE], ids=lambda file: file.name)
def test_the_core_does_no_io_and_has_no_clock(file):
    assert {module.partition(".")[0] for module, _ in imports(file)} - CORE_MAY_IMPORT == set()


def test_the_bench_knows_nothing_of_the_server():
    """Nor the server of it: what a bench shares with the server it can't find wrong."""
    known = {room for file in FILES if room_of(file) == "bench" for room, _ in rooms_used(file)}
    assert known == {"bench", "beanstalk", "errors"}
    assert {room_of(file) for file in FILES for room, _ in rooms_used(file) if room == "bench"} == {"bench", "cli"}


def test_only_the_journal_knows_sql():
    knowing = {room_of(file) for file in FILES if any(module.partition(".")[0] in SQL for module, _ in imports(file))}
    assert knowing <= {"journal"}
