"""The cookbook's commands and lines of SQL are run, in its order, and tell the same."""

import json
import re
import shlex
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest

from beanlite.cli import COMMANDS, main
from beanlite.console.file import File
from tests.operators.conftest import filled
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until

PAGE = Path(__file__).parents[2] / "docs/cookbook.md"
RECIPE = re.compile(r"^### (\d+)\. (.+?)\n\n```sh\n(.+?)\n```\n\n```sql\n(.+?)\n```\n", re.MULTILINE | re.DOTALL)
RECIPES = RECIPE.findall(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory):
    """One queue for all recipes: those at the end change it."""
    with start_beanlite(tmp_path_factory.mktemp("kitchen"), "--history", "7d") as server:
        queue = filled(server)
        with Wire(server.connect()) as wire:
            wire.request("set-policy", pattern="webhooks", set={"max_tries": 1})
            wire.ask("use webhooks")
            wire.ask("watch webhooks")
            job_id = wire.put(b"dies at once")
            wire.ask(f"reserve-job {job_id}")
            wire.ask(f"release {job_id} 0 0")
            wire.ask("use thumbnails")
            job_id = wire.put(b"deadly")
            for _ in range(3):
                with Wire(server.connect()) as dying:
                    dying.ask(f"reserve-job {job_id}")
                until(lambda: wire.request("list-jobs", ids=[job_id])["jobs"][0]["state"] == "ready")
            wire.ask("use web.orders")
            failed = [
                wire.put(b'{"customer": 4711, "error": {"type": "%b"}}' % kind) for kind in (b"Timeout", b"Refused")
            ]
            for _ in range(3):
                wire.ask(f"reserve-job {failed[0]}")
                wire.ask(f"release {failed[0]} 0 0")
            wire.request("change-jobs", do="bury", ids=failed)
            wire.request("change-jobs", do="delete", ids=[wire.put(b"by mistake")], by="ann")
        with queue.worker, File(queue.db) as file:
            until(lambda: file.list_tubes({})["tubes"][0]["puts_per_min"])  # written a second late
            yield queue


# What is said of a list that is cut.
CUT = re.compile(r"[Tt]here may be more: --|^These are \d+ of \d+ tubes: --limit$")


def rows_of(sql, queue):
    """What a line of SQL of the page tells."""
    with closing(connect(f"{queue.db.as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda text: text.decode(errors="replace")  # as sqlite3 shows it
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description]
        return names, [dict(zip(names, row, strict=True)) for row in cursor]


def carry_out(command, queue, capsys):
    """What a command of the page prints, as JSON, when it is run for this queue."""
    words = shlex.split(command)
    assert words[0] == "beanlite"
    assert words[1] in COMMANDS
    if "--db" in words:
        words[words.index("--db") + 1] = str(queue.db)
    else:
        words += ["--connect", f"{queue.server.host}:{queue.server.port}"]
    if "--json" not in words:
        words.append("--json")
    exit_code = main(words[1:])
    printed = capsys.readouterr()
    assert (exit_code, [line for line in printed.err.splitlines() if not CUT.search(line)]) == (0, [])
    return [json.loads(line) for line in printed.out.splitlines()]


def test_there_are_thirty_and_some():
    assert [int(number) for number, *_ in RECIPES] == list(range(1, len(RECIPES) + 1))
    assert len(RECIPES) >= 30


def test_job_that_kills_its_workers_is_first_of_those_that_fail(kitchen, capsys):
    ((command, sql),) = [recipe[2:] for recipe in RECIPES if recipe[1] == "Which jobs fail again and again?"]
    first, row = carry_out(command, kitchen, capsys)[0], rows_of(sql, kitchen)[1][0]
    assert first["preview"] == "deadly"
    assert first["id"] == row["id"]
    assert [first[key] for key in ("reserves", "timeouts", "releases", "buries")] == [3, 0, 0, 0]


@pytest.mark.parametrize(("command", "sql"), [recipe[2:] for recipe in RECIPES], ids=[recipe[1] for recipe in RECIPES])
def test_a_recipe(command, sql, kitchen, capsys):
    names, rows = rows_of(sql, kitchen)
    if command == "beanlite top":  # it needs a terminal
        return
    answer = carry_out(command, kitchen, capsys)
    if "--group-by" in command:
        assert [(each["value"], each["jobs"]) for each in answer] == [(row["error"], row["jobs"]) for row in rows]
    elif "id" in names and command.startswith("beanlite jobs"):
        assert [job["id"] for job in answer] == [row["id"] for row in rows]
    elif names == ["count(*)"]:
        assert answer[0]["done"] == rows[0]["count(*)"] > 0
    elif "tube" in names and command.startswith("beanlite tubes --sort"):
        assert answer[0]["name"] == rows[0]["tube"]
    elif command.startswith("beanlite history"):
        assert len(answer) == len(rows) > 0
    assert bool(answer) == bool(rows) or sql.startswith("select text")
