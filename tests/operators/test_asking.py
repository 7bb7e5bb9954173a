"""What a command asks at a terminal, what it does once it is confirmed, and what it says where others would ask."""

import io
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from beanlite.console import changes
from beanlite.console.changes import change
from beanlite.console.filters import filter_by
from beanlite.console.live import Live
from tests.operators.conftest import NAMES
from tests.operators.test_commands import ENVIRONMENT, ids
from tests.support.wire import Wire


def sleeps(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("S")


def at_terminal(queue, words, typed, meanwhile=lambda: None):
    """Carry out a command at a terminal; its exit code and what was to be seen."""
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "beanlite", *words, "--connect", f"{queue.server.host}:{queue.server.port}"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        seen = b""
        while b"?" not in seen:
            seen += os.read(terminal, 4096)
        meanwhile()
        if isinstance(typed, signal.Signals):
            while not sleeps(process.pid):  # a signal just before it reads would wait for what is typed
                time.sleep(0.001)
            process.send_signal(typed)
        else:
            os.write(terminal, typed)
        try:
            while more := os.read(terminal, 4096):
                seen += more
        except OSError:  # the other end is closed
            pass
    os.close(terminal)
    return process.returncode, seen.decode()


def test_the_question_tells_how_many(own_queue):
    exit_code, seen = at_terminal(own_queue, ["delete", "--tube", "mail", "--state", "ready"], b"n\n")
    assert "Delete 5 jobs ready in tube mail? [y/N]" in seen
    assert "no job was deleted" in seen
    assert exit_code == 1
    assert len(ids(own_queue, state="ready", tube="mail")) == 5
    exit_code, seen = at_terminal(own_queue, ["flush", "mail"], b"y\n")
    assert "Delete 11 jobs in tube mail? [y/N]" in seen
    assert "11 jobs deleted" in seen
    assert exit_code == 0
    assert ids(own_queue) == [12]


def test_the_question_about_ids(own_queue):
    exit_code, seen = at_terminal(own_queue, ["delete", "1"], b"y\n")
    assert seen.startswith("Delete 1 job? [y/N]")
    assert exit_code == 0
    assert 1 not in ids(own_queue)


def test_nothing_is_asked_about_no_job(own_queue, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert run(own_queue, "delete", "--tube", "other", "--state", "buried") == (0, "0 jobs deleted\n", "")
    said = "beanlite: the job could not be deleted: 99 is gone\n"
    assert run(own_queue, "delete", "99") == (1, "0 jobs deleted\n", said)


def test_no_answer_is_no(own_queue):
    exit_code, seen = at_terminal(own_queue, ["flush", "mail"], b"\x04")
    assert exit_code == 1
    assert seen.endswith("[y/N]: \r\nbeanlite: no job was deleted\r\n")
    exit_code, seen = at_terminal(own_queue, ["flush", "mail"], signal.SIGINT)
    assert exit_code == 130
    assert "Traceback" not in seen
    assert len(ids(own_queue)) == 12


def test_what_is_put_after_the_question_stays(own_queue):
    new = []

    def put():
        with Wire(own_queue.server.connect()) as client:
            client.ask("use mail")
            new.append(client.put(b"new"))

    assert at_terminal(own_queue, ["flush", "mail"], b"y\n", put)[0] == 0
    assert ids(own_queue, tube="mail") == new


def test_what_is_buried_after_the_question_stays(own_queue):
    def bury():
        time.sleep(0.5)  # the server learns how long ago the question was as exactly as the request is fast
        with Live(own_queue.address) as live:
            change(live, {"do": "bury"}, filter_by(ids=[5, 6]))

    exit_code, seen = at_terminal(own_queue, ["delete", "--state", "buried"], b"y\n", bury)
    assert "Delete 2 jobs buried?" in seen
    assert "2 jobs deleted" in seen
    assert (exit_code, ids(own_queue, state="buried")) == (0, [5, 6])


@pytest.mark.parametrize(("waits_s", "left"), [(0, 1), (3600, 12)])
def test_jobs_that_were_not_counted_do_not_grow_into_the_answer(waits_s, left, own_queue, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    moments_s = iter((0.0, float(waits_s)))
    monkeypatch.setattr("beanlite.cli.change.time", SimpleNamespace(monotonic=lambda: next(moments_s)))
    _, _, err = run(own_queue, "delete", "--tube", "mail", "--older", "0s")
    assert err.startswith("Delete 11 jobs in tube mail, put more than 0 s ago? [y/N]")
    assert len(ids(own_queue)) == left


@pytest.mark.parametrize("dry", [True, False])
def test_move_to_where_jobs_are_too_old_says_so(dry, own_queue, run):
    with Live(own_queue.address) as live:
        live.ask("set-policy", {"pattern": "brief", "set": {"ttl": "2s", "expired": "delete"}})
    said = "beanlite: brief has ttl=2s: 5 jobs are too old for it, or will be within a minute, and then deleted\n"
    moved = "5 jobs would be moved\n" if dry else "5 jobs moved\n"
    words = ("move", "--tube", "mail", "--state", "ready", "--to", "brief", *(["--dry-run"] if dry else []))
    assert run(own_queue, *words) == (0, moved, said)
    assert run(own_queue, "move", "--tube", "mail", "--state", "buried", "--to", "brief") == (0, "2 jobs moved\n", "")


def test_what_comes_to_its_state_amid_another_servers_change_stays(fleet, monkeypatch):
    """Each server is asked for what had been in that state before the question, which becomes longer ago."""
    for name in NAMES:
        fleet.put(name, "mail", b"x")
    fleet.run("bury", "--state", "ready")
    now_s, least_s, real = 0.0, [], changes.change

    def slow_change(live, what, which, *progress):
        nonlocal now_s
        if not what["dry_run"]:
            least_s.append(which.in_state_s)
        now_s += 10
        return real(live, what, which, *progress)

    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("beanlite.cli.change.time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(changes, "change", slow_change)
    fleet.run("delete", "--state", "buried")
    assert least_s == [30, 40, 50]


def test_what_comes_to_its_state_while_the_server_is_checked_stays(own_queue, monkeypatch):
    now_s, asked = 0.0, []

    def slow_check():
        nonlocal now_s
        now_s += 10

    def ask(_command, request):
        asked.append(request)
        return {"done": 0, "skipped": 0, "last_id": 0, "next": None}

    with Live(own_queue.address) as live:
        monkeypatch.setattr(live, "check", slow_check)
        monkeypatch.setattr(live, "ask", ask)
        monkeypatch.setattr(changes, "time", SimpleNamespace(monotonic=lambda: now_s))
        change(live, {"do": "bury"}, filter_by(state="ready", in_state_s=1.0))
    assert [request["in_state_s"] for request in asked] == [11.0]
