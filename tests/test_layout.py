"""The house: imports go one way, the core does no I/O, and only the journal knows SQL."""

import ast
import re
import sys
import tomllib
from collections import Counter
from importlib.metadata import packages_distributions

import pytest

from tests.imports import faults, module_graph, picture, room_graph
from tests.support.layout import FILES, ROOT, ROW, circles, imports, parsed, reachable, room_of, rooms_used, statements

# These rooms are pure: told what happened and what time it is, they compute.
CORE = {"protocol", "core"}
CORE_MAY_IMPORT = {
    "__future__",
    "array",
    "base64",
    "beanlite",
    "bisect",
    "collections",
    "cronsim",
    "dataclasses",
    "datetime",
    "enum",
    "fnmatch",
    "functools",
    "heapq",
    "ipaddress",
    "itertools",
    "json",
    "mypy_extensions",  # types and attributes for what is compiled
    "operator",
    "pydantic",
    "re",
    "typing",
    "zlib",
    "zoneinfo",  # the files of zones, which are the same for every server
}
SQL = {"aiosqlite", "sqlite3"}


def test_each_file_has_its_row():
    assert {room_of(file) for file in FILES} - set(ROW) == set()


def test_documentation_lists_rooms_above_those_they_import_from():
    text = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`beanlite/.*?) \|", text, re.MULTILINE)
    listed = {
        room: number for number, row in enumerate(rows) for room in re.findall(r"`beanlite/(\w+)(?:/|\.py)`", row)
    }
    assert listed.keys() == ROW.keys() - {"__init__"}
    used = {(room_of(file), other) for file in FILES for other, _ in rooms_used(file)}
    assert [(a, b) for a, b in sorted(used) if b not in {a, "__init__"} and listed[a] >= listed[b]] == []


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


def test_not_even_types_are_known_upwards():
    assert upward(for_types=True) == set()


def test_no_circle_is_left():
    assert circles(module_graph()) == []


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) in CORE], ids=lambda file: file.name)
def test_the_core_does_no_io_and_has_no_clock(file):
    assert {module.partition(".")[0] for module, _ in imports(file)} - CORE_MAY_IMPORT == set()


def test_the_bench_knows_nothing_of_the_server():
    """Nor the server of what the bench has from the package: what they share, the bench can't find wrong."""
    bench = [file for file in (ROOT.parent / "tests" / "bench").glob("*.py") if not file.name.startswith("test_")]
    assert {room for file in bench for room, _ in rooms_used(file)} == {"beanstalk", "client", "errors"}
    ours = {module for file in bench for module, _ in imports(file) if module.startswith("tests.")}
    assert [module for module in ours if not module.startswith("tests.bench.")] == []
    assert "beanstalk" not in reachable(room_graph(), "server")


def test_the_client_needs_nothing_but_python():
    files = list((ROOT / "client").glob("*.py"))
    assert len(files) > 5
    used = {module for file in files for module, _ in imports(file)}
    ours = {module for module in used if module.partition(".")[0] == "beanlite"}
    assert [module for module in ours if not module.startswith("beanlite.client.")] == []
    assert {module.partition(".")[0] for module in used - ours} <= sys.stdlib_module_names


def test_package_does_not_import_the_tests():
    assert {module for file in FILES for module, _ in imports(file) if module.startswith("tests.")} == set()


def test_each_package_that_is_imported_is_declared():
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["postgres"], *extras["top"]]
    declared = {re.split(r"[^\w.-]", line)[0] for line in lines}
    used = {module.partition(".")[0] for file in FILES for module, for_types in imports(file) if not for_types}
    packages = packages_distributions()
    # Each release of pydantic needs one of pydantic_core.
    needed = {packages[module][0].lower() for module in used - sys.stdlib_module_names - {"beanlite", "pydantic_core"}}
    assert {name.replace("_", "-") for name in needed} - declared == set()


def test_only_the_journal_knows_sql():
    knowing = {room_of(file) for file in FILES if any(module.partition(".")[0] in SQL for module, _ in imports(file))}
    assert knowing <= {"journal"}


# Inside the journal in a file: the server does not know the commands about a file, nor these the server.
SQLITE_MAY_IMPORT = {"file": {"file"}, "served": {"file", "served"}, "tools": {"file", "tools"}}
KNOW_TOOLS = {"cli", "console", "binlog", "journal"}


def sqlite_rooms(file):
    """Return the rooms inside the journal in a file from which a file imports."""
    modules = [module.removeprefix("beanlite.journal.sqlite.") for module, _ in imports(file)]
    return {room for module in modules if (room := module.partition(".")[0]) in SQLITE_MAY_IMPORT}


@pytest.mark.parametrize("room", SQLITE_MAY_IMPORT)
def test_rooms_of_the_sqlite_journal_import_from_file_alone(room):
    files = list((ROOT / "journal" / "sqlite" / room).glob("*.py"))
    assert len(files) > 10
    assert {other for file in files for other in sqlite_rooms(file)} - SQLITE_MAY_IMPORT[room] == set()


@pytest.mark.parametrize(("one", "other"), [("sqlite", "postgres"), ("postgres", "sqlite")])
def test_journals_do_not_import_from_each_other(one, other):
    files = list((ROOT / "journal" / one).rglob("*.py"))
    assert len(files) > 10
    assert [file.name for file in files if any(f"journal.{other}" in module for module, _ in imports(file))] == []


def test_server_does_not_import_the_tools_for_files():
    assert {room_of(file) for file in FILES if "tools" in sqlite_rooms(file)} == KNOW_TOOLS
    assert {room_of(file) for file in FILES if "served" in sqlite_rooms(file)} == {"server", "journal"}


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
    assert {"settings", "server"} <= room_graph()["cli"]
    assert {"core.engine", "journal.sqlite.served.batch"} <= module_graph()["journal.sqlite.served.writer"]


# -- one word for one thing

# The same thing in several places: what implements it, what asks for it, and what shows it.
SAME_CLASS = {"Batch", "Client", "Filter", "Job", "NewJob", "Unauthorized"}
SAME_MODULE = {
    *("app", "backups", "batch", "bodies", "changes", "commands", "config", "dump", "errors", "filters", "journal"),
    "migrations",
    *("policies", "recovery", "replies", "restore", "rows", "totals"),
}


def several(places):
    """Return the names that stand in several files."""
    return {name for name, count in Counter(name for name, _ in places).items() if count > 1}


def classes_of(file):
    return {node.name.lstrip("_") for node in parsed(file).body if isinstance(node, ast.ClassDef)}


def test_class_has_a_name_of_its_own():
    assert several((name, file) for file in FILES for name in classes_of(file)) - SAME_CLASS == set()


def test_module_has_a_name_of_its_own():
    # A room's file of a room's name, and the command line's files, which have the names of the commands.
    files = [file for file in FILES if not file.stem.startswith("__") and file.parent.name != "cli"]
    assert several((file.stem, file) for file in files) - SAME_MODULE == set()


def test_allowed_names_are_needed():
    assert SAME_CLASS - several((name, file) for file in FILES for name in classes_of(file)) == set()
    assert SAME_MODULE - several((file.stem, file) for file in FILES) == set()


# -- nothing grows too large to be read in one go

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
TEST_NAME_MAX = 65


def test_no_file_is_long():
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {str(file.relative_to(ROOT)): n for file, n in lines.items() if n > FILE_LINES_MAX} == {}


def test_no_function_is_long():
    functions = (
        (file, node)
        for file in FILES
        for node in statements(parsed(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lines = {(file, node.name): (node.end_lineno or 0) - node.lineno + 1 for file, node in functions}
    assert {f"{file.relative_to(ROOT)} {name}": n for (file, name), n in lines.items() if n > FUNCTION_LINES_MAX} == {}


def test_no_name_of_a_test_is_long():
    files = (ROOT.parent / "tests").rglob("test_*.py")
    names = [name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8"))]
    assert len(names) > 1000
    assert [name for name in names if len(name) > TEST_NAME_MAX] == []
