"""Jobs grouped, and with columns for what is in their bodies: of a server, and of its file."""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from beanlite.cli import main
from beanlite.console import grouping, listing
from beanlite.console.file import File
from beanlite.console.filters import filter_by
from beanlite.console.grouping import Groups, Summary, count, grouping_of, paths_of
from beanlite.console.units import utc
from beanlite.errors import ConfigError
from tests.operators.conftest import filled
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    """A queue in which jobs have failed."""
    with start_beanlite(tmp_path_factory.mktemp("failed")) as server:
        queue = filled(server)
        with Wire(server.connect()) as wire:
            wire.ask("use web.orders")
            for kind in ("Timeout", "Timeout", "Refused", "a b", ""):
                wire.put(json.dumps({"error": {"type": kind}, "customer": 4711}).encode())
            noted = wire.put(b'{"error": {"type": ["Timeout"]}}')
            wire.request("change-jobs", do="note", ids=[noted], note="INC-4711\nsee there")
        with queue.worker, File(queue.db) as file:
            until(lambda: file.list_jobs({"note_text": "INC-4711", "limit": 1})["jobs"])
            yield queue


@pytest.mark.parametrize(
    ("by", "which", "rows"),
    [
        ("error.type", {"tube": "web*"}, [("Timeout", 2), ("", 1), ("Refused", 1), ('["Timeout"]', 1), ("a b", 1)]),
        ("error.type", {"where": ["customer=4711", "error.type=Timeout"]}, [("Timeout", 2)]),
        ("customer", {"tube": "web.orders"}, [("4711", 5), (None, 1)]),
        ("tube", {}, [("mail", 11), ("web.orders", 6), ("other", 1)]),
        ("state", {"tube": "mail"}, [("ready", 5), ("buried", 2), ("delayed", 2), ("reserved", 2)]),
        ("why", {"tube": "mail"}, [("client", 2), (None, 9)]),
        ("note", {"tube": "web.orders"}, [("INC-4711", 1), (None, 5)]),
        ("customer", {"tube": "nobody"}, []),
    ],
)
def test_server_and_file_group_alike(source, by, which, rows):
    summary = count(source, filter_by(**which), grouping_of(by)).summary(0)
    assert summary.rows == rows
    assert (summary.jobs, summary.others, summary.is_rough) == (sum(jobs for _, jobs in rows), 0, False)


def test_server_and_file_tell_what_is_at_paths(source):
    page = listing.jobs(source, filter_by(tube="web.*", text="error"), "id", 0, None, ["error.type", "customer"])
    assert [job["values"] for job in page.records][3:] == [["a b", "4711"], ["", "4711"], ['["Timeout"]', None]]
    assert {
        key: "values" in listing.jobs(source, filter_by(), key, 1, None, ["a"]).records[0] for key in ("id", "age")
    } == {
        "id": True,
        "age": True,
    }


def test_slices_are_added_up():
    slices: list[dict[str, Any]] = [
        {"groups": [["a", 1], [None, 2]], "next": "1"},
        {"groups": [], "next": "2"},
        {"groups": [["a", 3]], "next": None},
    ]
    asked: list[str | None] = []

    def group_jobs(request: dict) -> dict:
        asked.append(request.get("after"))
        return {**slices[len(asked) - 1], "looked": 10}

    source: Any = SimpleNamespace(group_jobs=group_jobs)
    groups = count(source, filter_by(), {"path": "a"})
    assert groups.summary(0) == Summary([("a", 4), (None, 2)], 0, 6, 30)
    assert asked == [None, "1", "2"]


def test_values_of_few_jobs_become_others_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(grouping, "VALUES_MAX", 10)
    groups = Groups()
    groups.add([("often", 50), (None, 7), *((f"once {n}", 1) for n in range(20))])
    groups.add([("often", 5)])
    assert len(groups.counts) == 6
    summary = groups.summary(1)
    assert summary == Summary([("often", 55), (None, 7)], 20, 82, 0, is_rough=True)


@pytest.mark.parametrize(
    ("text", "paths"), [("", []), ("a, b.c ,", ["a", "b.c"]), ('"a,b".c,d[0]', ['"a,b".c', "d[0]"])]
)
def test_paths_have_commas_in_between(text, paths):
    assert paths_of(text) == paths


@pytest.mark.parametrize("text", ["a..b", "a b", "=1", "a" * 201, ",".join("abcdefghi")])
def test_paths_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match=r"is not a path, such as|8 paths at most"):
        paths_of(text)


def test_word_of_a_fact_is_a_path_in_quotes():
    assert grouping_of("state") == {"fact": "state"}
    assert grouping_of('"state"') == {"path": '"state"'}
    with pytest.raises(ConfigError, match=r"'a b' is no path, such as error.type, and not tube, state, why, note"):
        grouping_of("a b")


def test_command_groups_jobs(run, queue):
    code, out, err = run(queue, "jobs", "--tube", "web*", "--group-by", "error.type", "--limit", "2")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["error.type", "jobs", "share"],
        ["Timeout", "2", "33.3%"],
        ["(empty)", "1", "16.7%"],
        ["(others)", "3", "50.0%"],
    ]
    code, out, _ = run(queue, "jobs", "--tube", "web*", "--group-by", "error.type", "--limit", "1", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [{"value": "Timeout", "jobs": 2}, {"others": 4}]
    assert run(queue, "jobs", "--tube", "web", "--group-by", "why")[0] == 1
    assert run(queue, "jobs", "--tube", "x*", "--group-by", "why") == (0, "", "no jobs\n")


def test_command_shows_columns_for_paths(run, queue):
    words = ("jobs", "--tube", "web*", "--columns", "customer,error.type")
    code, out, _ = run(queue, *words, "--where", "customer=4711", "--where", "error.type=Refused")
    title, line = out.splitlines()
    assert code == 0
    assert title.index("customer") < title.index("error.type") < title.index("body")
    assert line[title.index("customer") :].split()[:2] == ["4711", "Refused"]
    job = json.loads(run(queue, *words, "--json")[1].splitlines()[-1])
    assert job["values"] == {"customer": None, "error.type": '["Timeout"]'}
    assert run(queue, "jobs", "--columns", "a b")[0] == 2


def test_command_takes_tubes_by_pattern_and_tries(run, queue):
    assert len(run(queue, "jobs", "--tube", "*e*", "--json")[1].splitlines()) == 7
    assert len(run(queue, "jobs", "--reserves-min", "1", "--tries-min", "1", "--json")[1].splitlines()) == 4
    code, _, err = run(queue, "jobs", "--tube", "a b*")
    assert (code, "no tube can have a name like 'a b*'" in err) == (2, True)


def test_command_says_that_no_body_has_a_path(run, queue):
    code, out, err = run(queue, "jobs", "--tube", "mail", "--group-by", "error.typ")
    assert (code, out.splitlines()[1].split()) == (0, ["(no", "value)", "11", "100.0%"])
    assert err == "No body is JSON with something at error.typ; there is also --group-by note.\n"
    assert run(queue, "jobs", "--tube", "web*", "--group-by", "error.type")[2] == ""


def test_job_that_is_due_on_the_full_minute_is_of_that_minute(run, queue):
    queue.worker.ask("use punctual")
    due_at = int(time.time()) // 60 * 60 + 7200
    for _ in range(3):
        queue.worker.put(b"", delay_s=due_at - int(time.time()))
    _, out, _ = run(queue, "jobs", "--tube", "punctual", "--group-by", "due", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [{"due_at": due_at, "jobs": 3}]


def test_command_counts_delayed_jobs_by_the_minute(run, queue, capsys):
    queue.worker.ask("use waves")
    for delay_s in (3600, 7200, 3600):
        queue.worker.put(b"", delay_s=delay_s)

    def minutes(*options):
        _, out, err = run(queue, "jobs", "--tube", "waves", "--group-by", "due", *options)
        return out.splitlines(), err

    lines, _ = minutes("--json")
    waves = [json.loads(line) for line in lines]
    assert sum(wave["jobs"] for wave in waves) == 3
    assert all(wave["due_at"] % 60 == 0 for wave in waves)
    assert 3540 <= waves[-1]["due_at"] - waves[0]["due_at"] <= 3660
    (title, first), err = minutes("--limit", "1")
    assert (title.split(), first.split()[0]) == (["due", "jobs"], utc(waves[0]["due_at"])[:10])
    first, most = err.splitlines()
    assert first == f"These are the first 1 of {len(waves)} minutes, with {waves[0]['jobs']} of 3 jobs: --limit"
    largest = max(waves, key=lambda wave: wave["jobs"])
    assert most.startswith("The most are due at ")
    assert f"{utc(largest['due_at'])[:-3]} ({largest['jobs']})" in most
    for source in (["--connect", "{}:{}".format(*queue.address)], ["--db", str(queue.db)]):
        capsys.readouterr()
        assert main(["jobs", "--group-by", "due", "--state", "ready", *source]) == 2
        assert capsys.readouterr().err == "beanlite: --group-by due takes delayed jobs only\n"
        assert main(["jobs", "--group-by", "due", "--tube", "other", *source]) == 0
        assert capsys.readouterr().err == "no delayed jobs\n"
