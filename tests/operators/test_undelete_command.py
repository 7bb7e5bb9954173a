"""Deleted jobs are looked at, found by their bodies and put again, with ``beanlite undelete``."""

import json

import pytest

from beanlite.cli import main
from beanlite.cli.history import _NOTHING_PUT
from tests.support.servers import start_beanlite
from tests.support.wire import Wire

BODY = b'{"customer": 4711, "order": %d}'


@pytest.fixture
def server(tmp_path):
    """A server with the jobs 1 to 4 deleted: 1 by a client, 2 and 3 by ann, 4 by bob."""
    with start_beanlite(tmp_path, "--history", "1d", "--history-bodies") as server:
        with Wire(server.connect()) as wire, pytest.MonkeyPatch.context() as environment:
            wire.ask("use mail")
            for order in range(1, 5):
                wire.put(BODY % order, pri=order, ttr_s=90)
            wire.ask("delete 1")
            for person, ids in (("ann", ["2", "3"]), ("bob", ["4"])):
                environment.setenv("SUDO_USER", person)
                assert main(["delete", *ids, "--yes", "--connect", f"127.0.0.1:{server.port}"]) == 0
        yield server


@pytest.fixture
def run(server, tmp_path, capsys):
    """Return a function that runs a command on the file, and returns its exit code and output."""

    def run(*words):
        capsys.readouterr()
        at = ["--connect", f"127.0.0.1:{server.port}"] if words[0] == "undelete" else []
        return main([*words, "--db", str(tmp_path / "queue.db"), *at]), *capsys.readouterr()

    return run


def test_deleted_job_is_shown_with_its_body(run):
    code, out, _ = run("job", "2")
    assert (code, out.splitlines()[0]) == (0, "job 2 has gone; its body in mail:")
    assert '  "order": 2' in out
    assert "its history:" in out
    assert run("job", "2", "--body", "raw")[:2] == (0, (BODY % 2).decode())
    assert json.loads(run("job", "2", "--json")[1])["body"] == (BODY % 2).decode()


def test_deletions_are_found_by_body(run):
    def ids(*options):
        return [json.loads(line)["id"] for line in run("history", "--json", *options)[1].splitlines()]

    assert ids("--where", "customer=4711") == [1, 2, 3, 4]
    assert ids("--where", "customer=4711", "--by", "ann") == [2, 3]
    assert ids("--where", "customer=4711", "--where", "order=4") == [4]
    assert ids("--where", "customer=1") == []


def test_deleted_jobs_are_put_again(run, server):
    assert run("undelete", "--by", "ann") == (0, "job 2 is job 5 now\njob 3 is job 6 now\n", "")
    with Wire(server.connect()) as wire:
        wire.ask("peek 6")
        assert wire.body == BODY % 3
        stats = wire.stats("stats-job 6")
        assert [stats[key] for key in ("tube", "state", "pri", "ttr")] == ['"mail"', "ready", "3", "60"]


def test_deleted_job_whose_body_is_there_is_not_put_again(run, server):
    with Wire(server.connect()) as wire:
        wire.request("set-policy", pattern="mail", set={"unique": "present"})
        wire.ask("use mail")
        assert wire.put(BODY % 3) == 5
    out = "job 2 is job 6 now\njob 3 is not put: job 5 has its body\n"
    said = "beanlite: 1 job was not put: the body is there already (unique), in 5\n"
    assert run("undelete", "--by", "ann") == (0, out, said)
    rows = [json.loads(line) for line in run("undelete", "--by", "ann", "--json")[1].splitlines()]
    assert rows == [{"id": 6, "put": False, "was": 2}, {"id": 5, "put": False, "was": 3}]


def test_all_deleted_jobs_of_batches_are_put_again_in_order(run, monkeypatch):
    monkeypatch.setattr("beanlite.console.putting._BATCH_JOBS", 1)
    pairs = [json.loads(line) for line in run("undelete", "4", "2", "3", "--json")[1].splitlines()]
    assert pairs == [{"id": 5, "was": 2}, {"id": 6, "was": 3}, {"id": 7, "was": 4}]


def test_old_ids_of_a_lost_reply_are_told(run, server, monkeypatch):
    """Those are not to be given to another undelete unseen: they may have been put. The third is only read ahead."""
    monkeypatch.setattr("beanlite.console.putting._BATCH_JOBS", 2)
    monkeypatch.setattr("beanlite.console.putting.newest_id", lambda _: server.kill() or 0)
    code, out, err = run("undelete", "1", "2", "3", "4")
    assert (code, out) == (1, "")
    assert err.endswith("; it is not known whether these were put again: 1, 2\n")


@pytest.mark.parametrize(
    ("options", "jobs"),
    [
        ("--tube mail", "3 jobs"),
        ("--where order=1", "0 jobs"),
        ("--where order=1 --by 127.0.0.1", "1 job"),
        ("1 2", "2 jobs"),
        ("--since 1h --where order=3", "1 job"),
        ("--until 1h", "0 jobs"),
    ],
)
def test_only_deletions_by_operators_are_meant_unless_named(run, options, jobs):
    assert run("undelete", *options.split(), "--dry-run") == (0, f"{jobs} would be put again\n", "")
    code, out, err = run("undelete", *options.split(), "--dry-run", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"do": "undelete", "done": int(jobs.split()[0]), "dry_run": True}


def test_undelete_says_what_it_can_not_do(run):
    assert run("undelete") == (
        2,
        "",
        "beanlite: which jobs? say their ids, --tube, --by, --since, --until or --where\n",
    )
    assert run("undelete", "2", "99") == (1, "", f"beanlite: the history has no body of 99; {_NOTHING_PUT}\n")
    none = (1, "", f"beanlite: the history has no body of such a job; {_NOTHING_PUT}\n")
    assert run("undelete", "--tube", "mial") == none
