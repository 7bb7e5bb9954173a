"""The operators' commands against a real server: what they print, what they do, and how they end."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from beanlite.cli import main
from beanlite.console import listing
from beanlite.console.changes import change, trial
from beanlite.console.filters import filter_by
from beanlite.console.live import Live
from beanlite.errors import BeanliteError
from tests.support.servers import start_beanlite
from tests.support.wire import Wire

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "100"}


def ids(queue, **which):
    with Live(queue.address) as live:
        return [job["id"] for job in listing.jobs(live, filter_by(**which), "id", 0, None).records]


# -- how fast they are there


@pytest.mark.parametrize("line", ["tubes", "tubes mail --sort ready --json", "why mail", "stats --json"])
def test_command_imports_nothing_slow(line, queue):
    """What takes longer to import than the server takes to answer is imported only where it is used."""
    words = [*line.split(), "--connect", "{}:{}".format(*queue.address)]
    program = f"import sys; from beanlite import cli; print(cli.main({words!r})); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True, env=ENVIRONMENT)
    *_, exit_code, modules = done.stdout.splitlines()
    assert exit_code == "0"
    slow = {"asyncio", "jinja2", "prometheus_client", "pydantic", "sqlite3", "textual", "tomllib", "uvloop"}
    slow |= set() if line.startswith("why") else {"rich.console", "rich.table"}
    assert set(modules.split()) & slow == set()


# -- changing


def test_each_change(own_queue, run):
    queue = own_queue
    assert run(queue, "kick", "--tube", "mail") == (0, "2 jobs kicked\n", "")
    assert ids(queue, state="buried") == []
    assert ids(queue, state="delayed") == queue.delayed  # only what was buried, unless one says otherwise
    assert run(queue, "kick", "--tube", "mail", "--state", "delayed")[1] == "2 jobs kicked\n"
    assert run(queue, "bury", "5")[1] == "1 job buried\n"
    assert ids(queue, state="buried") == [5]
    assert run(queue, "release", "3")[1] == "1 job released\n"
    assert queue.worker.ask("delete 3") == "DELETED"  # as anybody may delete a ready job
    assert ids(queue, state="reserved") == [4]
    assert run(queue, "delete", "4", "--yes")[1] == "1 job deleted\n"
    assert queue.worker.ask("release 4 0 0") == "NOT_FOUND"
    assert run(queue, "move", "--tube", "other", "--to", "third")[1] == "1 job moved\n"
    assert ids(queue, tube="third") == [12]
    assert run(queue, "copy", "12", "--to", "fourth")[1] == "1 job copied\n"
    (copied,) = ids(queue, tube="fourth")
    assert copied > 12
    assert run(queue, "reprioritise", "6", "--pri", "0")[1] == "1 job reprioritised\n"
    assert run(queue, "delay", "6", "--by", "1h")[1] == "1 job delayed\n"
    with Live(queue.address) as live:
        job = live.show_job(6) or {}
    assert (job["pri"], job["state"], job["delay_s"]) == (0, "delayed", 3600)
    assert run(queue, "pause", "mail", "10min")[1] == "mail is paused for 10 min\n"
    assert run(queue, "pause", "mail", "0")[1] == "mail is not paused\n"
    assert run(queue, "flush", "mail", "--yes")[0] == 0
    assert ids(queue) == [12, copied]


def test_a_dry_run_changes_nothing(own_queue, run):
    before = ids(own_queue)
    assert run(own_queue, "delete", "--tube", "mail", "--dry-run") == (0, "11 jobs would be deleted\n", "")
    assert run(own_queue, "move", "1", "--to", "x", "--dry-run")[1] == "1 job would be moved\n"
    assert ids(own_queue) == before
    assert ids(own_queue, tube="x") == []


def test_what_could_not_be_changed_is_told(own_queue, run):
    said = "beanlite: not all of these jobs could be kicked: 5 is ready; 98, 99 are gone\n"
    assert run(own_queue, "kick", "1", "1", "5", "98", "99") == (1, "1 job kicked, 1 left unchanged\n", said)
    said = "beanlite: not all of these jobs could be deleted: 1, 99 are gone, or not what the options ask for\n"
    assert run(own_queue, "delete", "1", "99", "--state", "buried", "--yes") == (1, "0 jobs deleted\n", said)
    exit_code, out, _ = run(own_queue, "bury", "5", "98", "--json")
    assert (exit_code, json.loads(out)["unchanged"]) == (1, [98])
    assert run(own_queue, "bury", "1", "1") == (0, "1 job buried\n", "")  # it is only named twice


@pytest.mark.parametrize(
    "line",
    [
        "kick --tube nobody", "bury --tube nobody --state ready", "delete 1 --tube nobody --yes", "flush nobody --yes",
        "flush nobody --dry-run", "move --tube nobody --to mail", "pause nobody 5s", "jobs --tube nobody",
        "jobs --tube nobody --state buried --json", "tubes nobody", "tubes nobody --json",
    ],
)  # fmt: skip
def test_a_tube_that_does_not_exist_is_told(line, queue, run):
    said = "beanlite: there is no tube nobody: it has no job, and nobody uses or watches it\n"
    assert run(queue, *line.split()) == (1, "", said)


@pytest.mark.parametrize(
    "line",
    [
        "kick --tube mial", "delete --tube mial --yes", "flush mial --yes", "move --tube mial --to x", "pause mial 5s",
        "jobs --tube mial", "tubes mial", "jobs --tube mial --db {db}", "tubes mial --db {db}",
        "history --tube mial --db {db}", "why mial",
    ],
)  # fmt: skip
def test_the_tube_that_may_be_meant_is_named(line, queue, capsys):
    words = line.format(db=queue.db).split()
    if "--db" not in words:
        words += ["--connect", "{}:{}".format(*queue.address)]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("; did you mean mail?\n")


def test_pattern_of_no_tube_is_not_taken_for_a_sound_one(queue, capsys):
    assert main(["why", "zz*", "--connect", "{}:{}".format(*queue.address)]) == 1
    assert capsys.readouterr() == ("", "beanlite: no tube has a name like zz*\n")


def test_a_file_without_that_tube_is_told(queue, capsys):
    said = f"beanlite: there is no tube nobody in {queue.db}: it has no job, and is not paused\n"
    assert main(["jobs", "--tube", "nobody", "--db", str(queue.db)]) == 1
    assert capsys.readouterr() == ("", said)
    assert main(["jobs", "--tube", "mail!", "--db", str(queue.db)]) == 2
    assert capsys.readouterr() == ("", "beanlite: no tube can have the name 'mail!'\n")
    assert main(["jobs", "--tube", "other", "--state", "buried", "--db", str(queue.db)]) == 0
    assert main(["tubes", "nobody*", "--db", str(queue.db)]) == 0


def test_a_tube_without_jobs_is_no_mistake(queue, run):
    with Wire(queue.server.connect()) as client:
        client.ask("use empty")
        assert run(queue, "jobs", "--tube", "empty") == (0, "", "no jobs\n")
        assert run(queue, "kick", "--tube", "empty") == (0, "0 jobs kicked\n", "")
        assert run(queue, "flush", "empty", "--yes") == (0, "0 jobs deleted\n", "")


def test_a_part_of_a_second_counts_as_a_whole_one(own_queue, run):
    """Cut to 0 it would end a pause, and mean no delay."""
    assert run(own_queue, "pause", "mail", "0.4s")[1] == "mail is paused for 1 s\n"
    assert json.loads(run(own_queue, "pause", "mail", "1.2s", "--json")[1]) == {"tube": "mail", "pause_s": 2}
    ready = str(own_queue.ready[0])
    assert run(own_queue, "delay", ready, "--by", "0.4s") == (0, "1 job delayed\n", "")
    assert run(own_queue, "put", "--delay", "0.4s", "--ttr", "0.4s", "x")[:2] == (0, "13\n")
    with Live(own_queue.address) as live:
        jobs = [live.show_job(job_id) or {} for job_id in (own_queue.ready[0], 13)]
    assert [job["delay_s"] for job in jobs] == [1, 1]
    assert jobs[1]["ttr_s"] == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("move {0} 99 --to mail", "{0} is in that tube already; 99 is gone"),
        ("copy {0} 99 --to mail", "99 is gone"),
        ("reprioritise {0} 98 99 --pri 0", "98, 99 are gone"),
        ("release {0} 1 99", "1 is buried; {0} is ready; 99 is gone"),
        ("delay {0} 1 --by 5s", "1 is buried"),
        ("bury {0} 1 99", "1 is buried; 99 is gone"),
    ],
)
def test_why_jobs_are_left_as_they_were(line, why, own_queue, run):
    words = line.format(own_queue.ready[0]).split()
    exit_code, _, err = run(own_queue, *words)
    said = why.format(own_queue.ready[0])
    assert (exit_code, err.partition("could be ")[2].partition(": ")[2]) == (1, f"{said}\n")


def test_job_that_is_only_offered_is_not_told_to_be_reserved(own_queue, run):
    with Wire(own_queue.server.connect()) as client:
        client.ask("use offers")
        job_id = client.put(b"job")
        client.ask("watch offers")
        client.ask("ignore default")
        assert client.ask("offer 0") == f"OFFERED {job_id} 3"
        said = f"beanlite: the job could not be released: {job_id} is offered and not taken, or was reserved since\n"
        assert run(own_queue, "release", str(job_id)) == (1, "0 jobs released, 1 left unchanged\n", said)


def test_jobs_that_were_left_unchanged_are_named_with_the_reason(own_queue, run):
    said = "9 jobs buried, 2 left unchanged (1, 2 are buried)\n"
    assert run(own_queue, "bury", "--tube", "mail") == (0, said, "")
    exit_code, out, _ = run(own_queue, "release", "--tube", "mail", "--state", "buried", "--json")
    assert (exit_code, json.loads(out)["unchanged"]) == (0, ids(own_queue, tube="mail"))
    with Wire(own_queue.server.connect()) as client:
        client.ask("use many")
        first, *_ = [client.put(b"x") for _ in range(150)]
    shown = ", ".join(map(str, range(first, first + 20)))
    said = f"0 jobs released, 150 left unchanged ({shown} are ready; and 130 more)\n"
    assert run(own_queue, "release", "--tube", "many", "--state", "ready") == (0, said, "")


def test_a_tube_too_many_is_one_reason_for_a_refusal(tmp_path, capsys):
    with start_beanlite(tmp_path, "--max-tubes", "2") as server, Wire(server.connect()) as client:
        client.ask("use mail")
        client.put(b"x")
        where = f"127.0.0.1:{server.port}"
        for do, done in (("move", "moved"), ("copy", "copied")):
            assert main([do, "1", "--to", "new", "--connect", where]) == 1
            why = "the disk is full, max_memory is used up, there are max_tubes tubes, or max_jobs jobs in the tube"
            said = f"OUT_OF_MEMORY ({why})"
            assert capsys.readouterr().err == (
                f"beanlite: {where} refused a put: {said}; 0 jobs had been {done} before\n"
            )


def test_json_has_plain_numbers(own_queue, run):
    _, out, _ = run(own_queue, "kick", "--tube", "mail", "--json")
    assert json.loads(out) == {
        "do": "kick",
        "done": 2,
        "skipped": 0,
        "interrupted": False,
        "dry_run": False,
        "unchanged": [],
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kick", "say which jobs: by their ids, or by --tube, --state, --text or another option"),
        ("delete 1", "delete asks first, and there is no terminal to ask at: say --yes"),
        ("bury --state lost", "there is no state 'lost', only ready, reserved, delayed, buried"),
        ("bury --older soon", "Invalid value for '--older': 'soon' is not a length of time"),
        ("move 1", "Missing option '--to'"),
        ("policy show", "Missing argument 'TUBE'"),
        ("jobs --db x", "--connect and --db exclude each other"),
        ("job 1 --database postgresql://y/z", "--connect and --database exclude each other"),
        ("job 1 --body colours", "--body: there is no form 'colours', only auto, text, json, hex, raw"),
        (
            "tail --what burry",
            "--what: there is no event 'burry', only put, delay over, reserve, touch, release, bury,",
        ),
        ("tail --what restart", "--what: there is no event 'restart', only put, "),
        ("jobs mail", "Got unexpected extra argument(s) (mail); beanlite jobs --help tells how"),
        ("put mail x", "each BODY is a job, and none a tube: say --tube mail, or --tube default"),
        ("delete --yes --text=", "--text: every body has an empty text in it; leave it out to mean all"),
        ("kick --note-text=", "--note-text: every note has an empty text in it; leave it out to mean all"),
        ("tubes -n 4294967296", "Invalid value for '--limit' / '-n': 4294967296 is more than 4294967295"),
        ("put --tube= x", "no tube can have the name ''"),
        ("pause a:b 5s", "no tube can have the name 'a:b'"),
        ("jobs --tube a:b", "no tube can have the name 'a:b'"),
        ("tubes a:b", "no tube can have the name 'a:b'"),
        ("tail --tube a:b", "no tube can have the name 'a:b'"),
        ("flush mai? --yes", "no tube can have the name 'mai?'"),
        ("kick --tube=", "no tube can have the name ''"),
        ("move 1 --to a:b", "no tube can have the name 'a:b'"),
        ("copy 1 --to -x", "no tube can have the name '-x'"),
        ("pause mail 49711d", "TIME: 4294967295 seconds at most, which are 49710 d 6 h"),
        ("put --delay 49711d x", "--delay: 4294967295 seconds at most, which are 49710 d 6 h"),
        ("put --ttr 49711d x", "--ttr: 4294967295 seconds at most, which are 49710 d 6 h"),
        ("delay 1 --by 49711d", "--by: 4294967295 seconds at most, which are 49710 d 6 h"),
        ("jobs --holder-host=", "holder-host: an address has 1 to 200 characters"),
        (f"jobs --where a={1001 * 'x'}", "where: 1000 characters at most"),
        ("jobs --after 5", "--after: '5' is not from a list of a server's jobs"),
        ("delay 1 --by 0", "--by: a delay is longer than 0 s; kick makes delayed jobs ready"),
        ("jobs --pri-max 4294967296", "Invalid value for '--pri-max'"),
        ("jobs --holder -1", "Invalid value for '--holder'"),
        ("job 9223372036854775808", "Invalid value for 'ID'"),
        ("put a --lines", "BODY, --lines and --jobs exclude each other"),
        ("top", "top needs a terminal"),
        ("flush mail", "flush asks first, and there is no terminal to ask at: say --yes"),
    ],
)
def test_a_mistake_changes_nothing(line, said, queue, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    before = ids(queue)
    exit_code, out, err = run(queue, *line.split())
    assert (exit_code, out) == (2, "")
    assert err.startswith(f"beanlite: {said}")
    assert err.count("\n") == 1
    assert ids(queue) == before


def test_an_interrupt_ends_it_between_two_slices(tmp_path):
    """The change goes on to the end of its slice, and tells how far it has come."""
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as client:
        client.send(b"put 0 0 60 1\r\nx\r\n" * 3000)
        for _ in range(3000):
            client.reply()

        def interrupt(outcome):
            if outcome.done == 1000:
                os.kill(os.getpid(), signal.SIGINT)

        with Live((server.host, server.port)) as live:
            outcome = change(live, {"do": "bury"}, filter_by(tube="default"), interrupt)
        assert (outcome.done, outcome.interrupted) == (1000, True)
        assert client.stats("stats-tube default")["current-jobs-buried"] == "1000"


def test_copy_that_is_given_again_copies_again_as_its_help_says(own_queue, run, capsys):
    for _ in range(2):
        assert run(own_queue, "copy", "--tube", "other", "--to", "copies")[0] == 0
    assert len(ids(own_queue, tube="copies")) == 2 * len(ids(own_queue, tube="other")) > 0
    assert main(["copy", "--help"]) == 0
    assert "Given again, copy copies all of them once more." in " ".join(capsys.readouterr().out.split())
    assert main(["move", "--help"]) == 0
    assert "once more" not in capsys.readouterr().out


def test_ctrl_c_in_the_last_slice_is_too_late(own_queue):
    with Live(own_queue.address) as live:
        outcome = change(live, {"do": "bury"}, filter_by(ids=[5]), lambda _: signal.raise_signal(signal.SIGINT))
    assert (outcome.done, outcome.interrupted) == (1, False)


def test_ctrl_c_while_jobs_are_counted_changes_none():
    def ask(_word, _request):
        signal.raise_signal(signal.SIGINT)
        return {"done": 0, "skipped": 0, "last_id": 9, "next": "1-9"}

    with pytest.raises(KeyboardInterrupt):
        trial(cast(Live, SimpleNamespace(ask=ask)), {"do": "move", "to": "mail"}, filter_by(state="ready"))


@pytest.mark.parametrize(("what", "done"), [({"do": "bury"}, "buried"), ({"do": "copy", "to": "t"}, "copied")])
def test_a_server_that_dies_amid_a_change(what, done, tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as client:
        client.send(b"put 0 0 60 1\r\nx\r\n" * 3000)
        for _ in range(3000):
            client.reply()
        with (
            Live((server.host, server.port)) as live,
            pytest.raises(
                BeanliteError,
                match=f"; it is not known whether more jobs were {done}; 1000 jobs had been {done} before$",
            ),
        ):
            change(live, what, filter_by(tube="default"), lambda o: server.kill() if o.done == 1000 else None)


def test_many_ids_are_several_requests(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as client:
        client.send(b"put 0 0 60 1\r\nx\r\n" * 2500)
        for _ in range(2500):
            client.reply()
        with Live((server.host, server.port)) as live:
            outcome = change(live, {"do": "bury"}, filter_by(ids=list(range(1, 2501))))
        assert (outcome.done, outcome.skipped, outcome.interrupted) == (2500, 0, False)


def test_a_line_end_in_a_name_begins_no_other_command(own_queue, run):
    name = f"mail 1\r\ndelete {own_queue.ready[0]}\r\npause-tube mail"
    before = ids(own_queue)
    assert run(own_queue, "pause", name, "5s") == (2, "", f"beanlite: no tube can have the name {name!r}\n")
    assert ids(own_queue) == before
