"""Notes on jobs at the command line: left, listed and shown, of a server and of its file."""

import json

from beanlite.cli import main
from beanlite.console import tables


def test_note_is_left_listed_and_shown(own_queue, run):
    queue = own_queue
    assert run(queue, "note", "1", "2", "--note", "see INC-4711\nand ask ann")[1] == "2 jobs noted\n"
    listed = run(queue, "jobs", "--state", "buried")[1].splitlines()
    assert "  note  " in listed[0]
    assert ["see INC-4711" in line for line in listed[1:]] == [True, True]
    assert "note:\nsee INC-4711\nand ask ann\n\n{" in run(queue, "job", "1")[1]
    assert json.loads(run(queue, "job", "1", "--json")[1])["note"] == "see INC-4711\nand ask ann"
    assert run(queue, "note", "1", "--note", "")[1] == "1 job noted\n"
    assert "note:" not in run(queue, "job", "1")[1]
    assert "  note  " not in run(queue, "jobs", "--state", "ready")[1]


def test_file_shows_notes_and_their_history(own_queue, run, capsys):
    run(own_queue, "note", "1", "--note", "why\nit failed")
    run(own_queue, "note", "2", "--note", "")
    capsys.readouterr()
    assert main(["job", "1", "--db", str(own_queue.db)]) == 0
    shown = capsys.readouterr().out
    assert "note:\nwhy\nit failed\n" in shown
    assert "  note  'why'  by operator " in shown
    assert main(["job", "2", "--db", str(own_queue.db)]) == 0
    assert "  note  taken away  by operator " in capsys.readouterr().out
    assert main(["jobs", "--db", str(own_queue.db), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["note"] == "why"


def test_note_can_not_control_the_terminal(own_queue, run):
    run(own_queue, "note", "1", "--note", "red \x1b[31m")
    assert "\x1b" not in run(own_queue, "job", "1")[1] + run(own_queue, "jobs")[1]
    by = {"address": "10.0.0.1:5", "number": 7, "operator": False, "person": None}
    event = {"at": 0, "id": 1, "tube": "a", "what": "note", "by": by, "pri": 3, "delay_s": 0, "size": 1}
    assert "\x1b" not in tables.event_line(event | {"note": "\x1b[31m"})


def test_note_that_is_too_long_is_refused(own_queue, run):
    code, _, err = run(own_queue, "note", "1", "--note", "x" * 4097)
    assert code == 1
    assert "note: a note has at most 4096 bytes of UTF-8, and none of them is NUL" in err
