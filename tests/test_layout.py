"""The house: imports go one way, the core does no I/O, and only the journal knows SQL."""

import pytest

from beanlite.errors import SHARED
from tests.imports import faults, module_graph, picture, room_graph
from tests.support.layout import FILES, ROOT, ROW, circles, imports, room_of, rooms_used

# What is known upwards, for annotations only: who calls is handed in.
TYPES_FROM_ABOVE = {
    ("net", "server"),
}

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


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"d"}, "e": {"a"}}
    assert circles(graph) == [["b", "c"], ["d"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_picture_leaves_out_what_follows_and_shows_what_is_wrong():
    rooms = {"net": {"commit", "core", "cli"}, "commit": {"core"}, "core": set()}
    assert picture(rooms).splitlines()[1:] == ["    net -.-> cli", "    net --> commit", "    commit --> core"]
    assert faults(rooms, {"core.job": {"core.tube"}, "core.tube": {"core.job"}}) == [
        "net imports cli, which is not below it",
        "a circle: core.job, core.tube",
    ]


def test_the_picture_is_of_all_imports():
    assert {"config", "server"} <= room_graph()["cli"]
    assert {"core.engine", "clock"} <= module_graph()["journal.sqlite.writer"]
