"""A tube moves from one server to another, whatever cuts that off."""

import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from beanlite.console.live import Live
from beanlite.errors import BeanliteError
from beanlite.fleet.servers import Fleet
from tests.support.streams import DONE_UNPRINTED


def test_jobs_move_in_their_states_and_the_file_says_where(servers, capsys):
    jobs = servers.fill()
    assert servers.move() == 0
    assert sorted(servers.jobs("one")) == sorted(jobs)
    assert servers.jobs("two") == []
    assert "mail is on one now, by version 2 of the file: 6 jobs copied" in capsys.readouterr().out
    fleet = Fleet.load(servers.file)
    assert [member.name for member in fleet.homes(b"mail")] == ["two", "one"]
    assert servers.file.read_text().count("# by hand") == 2


def test_tube_stays_if_the_file_is_changed_as_the_command_says(servers, capsys):
    hint = "before its line in [moved] goes, name mail in tubes of one, and of no other server\n"
    servers.fill()
    assert servers.move() == 0
    assert hint in capsys.readouterr().out
    text = servers.file.read_text().split("[moved]")[0].replace("number = 1", 'number = 1\ntubes = ["mail"]')
    servers.file.write_text(text)
    assert Fleet.load(servers.file).home(b"mail").name == "one"
    servers.wires["two"].put(b"by an old file")
    assert servers.move() == 0
    assert hint not in capsys.readouterr().out


def test_tube_that_is_gone_with_its_last_job_moves(servers, capsys):
    wire = servers.wires["two"]
    wire.ask("use mail")
    wire.put(b"left behind")
    wire.ask("use default")
    assert servers.move() == 0
    assert "1 job copied" in capsys.readouterr().out
    assert [job[1] for job in servers.jobs("one")] == ["left behind"]
    assert servers.jobs("two") == servers.jobs("two", "mail(leaving)") == []


@pytest.mark.parametrize("tube", ["mial", "mails"])
def test_misspelt_tube_is_not_moved(servers, capsys, tube):
    before = servers.file.read_text()
    servers.wires["two"].ask("use mail")
    assert servers.move(tube) == 1
    why = f"there is no tube {tube}: it has no job, and nobody uses or watches it; did you mean mail?"
    assert capsys.readouterr().err == f"beanlite: nothing is moved without --new: {why}\n"
    assert servers.file.read_text() == before


@pytest.mark.parametrize("known", ["watched", "put into the new server", "named in the file", "--new"])
def test_tube_without_jobs_moves_if_anything_knows_it(servers, known):
    if known == "watched":
        servers.wires["two"].ask("watch mail")
    elif known == "put into the new server":
        servers.wires["one"].ask("use mail")
        servers.wires["one"].put(b"early")
    elif known == "named in the file":
        servers.file.write_text(servers.file.read_text().replace('["*"]', '["*", "mail"]'))
    assert servers.move("mail", *(["--new"] if known == "--new" else [])) == 0
    assert [member.name for member in Fleet.load(servers.file).homes(b"mail")] == ["two", "one"]
    servers.wires["two"].ask("ignore mail")
    servers.new = "two"
    assert servers.move() == 0  # back, as the file has its name
    assert servers.jobs("one") == []


@pytest.mark.parametrize("halted", ["one", "two"])
def test_nothing_is_moved_while_one_of_both_servers_is_halted(servers, monkeypatch, capsys, halted):
    monkeypatch.setattr("beanlite.cli.shard.TIMEOUT_S", 0.3)
    before = servers.file.read_text()
    servers.processes[halted].signal(signal.SIGSTOP)
    try:
        assert servers.move("mail", "--new") == 1
    finally:
        servers.processes[halted].signal(signal.SIGCONT)
    assert capsys.readouterr().err.endswith(" does not answer\n")
    assert servers.file.read_text() == before


def test_move_that_was_cut_off_with_all_jobs_on_their_way_ends(servers):
    """The file of before is in use again, as from a backup, and no server has the tube itself."""
    wire = servers.wires["two"]
    wire.ask("use mail(leaving)")
    wire.put(b"on its way")
    wire.ask("use default")
    assert servers.move() == 0
    assert [job[1] for job in servers.jobs("one")] == ["on its way"]


def test_reserved_job_stays_until_it_comes_back(servers, capsys):
    wire = servers.wires["two"]
    wire.ask("use mail")
    wire.ask("watch mail")
    wire.put(b"held")
    job_id = wire.ask("reserve").split()[1]
    assert servers.move() == 0
    assert "1 job reserved on two" in capsys.readouterr().out
    wire.ask(f"release {job_id} 0 0")
    assert servers.move("mail", "--json") == 0
    assert '"version": 2, "copied": 1, "reserved": 0' in capsys.readouterr().out
    assert [job[1] for job in servers.jobs("one")] == ["held"]


def test_jobs_are_looked_for_that_come_once_there_is_none(servers, monkeypatch, capsys):
    clock_s, looks = 0.0, 0

    def sleep(seconds):
        nonlocal clock_s, looks
        clock_s += seconds
        looks += 1
        if looks in {1, 5}:
            servers.fill(1)

    monkeypatch.setattr("beanlite.console.moving.FOLLOW_S", 5.0)
    monkeypatch.setattr("beanlite.console.moving.time", SimpleNamespace(monotonic=lambda: clock_s, sleep=sleep))
    servers.fill(1)
    assert servers.move() == 0
    assert "9 jobs copied" in capsys.readouterr().out
    assert len(servers.jobs("one")) == 9
    assert clock_s == pytest.approx(5.0)


def test_jobs_that_go_on_coming_to_the_old_server_end_the_move(servers, monkeypatch, capsys):
    servers.fill(1)
    wire = servers.wires["two"]
    ask = Live.ask
    more = 30

    def put_another(live, word, request):
        nonlocal more
        if request.get("do") == "note" and more:
            more -= 1
            wire.put(b"by an old file")
        return ask(live, word, request)

    with monkeypatch.context() as patch:
        patch.setattr(Live, "ask", put_another)
        assert servers.move() == 0
    said = capsys.readouterr().out
    assert "3 jobs copied" in said
    assert "3 jobs on two since, as by an older copy of the file: this command moves them later" in said
    assert servers.move("mail", "--json") == 0
    assert '"copied": 3, "reserved": 0, "left": 0' in capsys.readouterr().out
    assert servers.jobs("two") == []


@pytest.mark.parametrize("is_carried_out", [False, True])
def test_move_that_is_cut_off_anywhere_is_taken_up_again(servers, monkeypatch, is_carried_out):
    ask = Live.ask
    left = 0

    def cut_off(live, word, request):
        nonlocal left
        left -= 1
        if left == 0 and not is_carried_out:
            raise BeanliteError("cut off before")
        reply = ask(live, word, request)
        if left == 0:
            raise BeanliteError("cut off after")
        return reply

    for questions in range(1, 100):
        jobs = servers.fill(1)
        left = questions
        with monkeypatch.context() as patch:
            patch.setattr(Live, "ask", cut_off)
            code = servers.move()
        if code:
            assert servers.move() in {0, 2}  # if all was done already, there is nothing to move
        assert sorted(servers.jobs(servers.new)) == sorted(jobs), questions
        assert servers.jobs(servers.old) == []
        if code == 0:
            break
        servers.wires[servers.new].request("change-jobs", do="delete", tube="mail")
        servers.old, servers.new = servers.new, servers.old
    assert questions > 15


@pytest.mark.parametrize("when", ["note", "delete"])
def test_job_that_a_client_deletes_meanwhile_stays_deleted(servers, monkeypatch, when):
    servers.fill(1)
    first = servers.jobs("two")[0][1]
    job_id = servers.wires["two"].request("list-jobs", tube="mail")["jobs"][0]["id"]
    ask = Live.ask
    replies = []

    def delete_first(live, word, request):
        if not replies and request.get("do") == when:
            replies.append(servers.wires["two"].ask(f"delete {job_id}"))
        return ask(live, word, request)

    monkeypatch.setattr(Live, "ask", delete_first)
    assert servers.move() == 0
    assert replies == ["DELETED"]
    assert first not in [job[1] for job in servers.jobs("one")]
    assert len(servers.jobs("one")) == 2


def test_more_jobs_move_than_a_request_can_name(servers):
    wire = servers.wires["two"]
    wire.ask("use mail")
    wire.send(b"put 0 0 60 1\r\nx\r\n" * 1100)
    for _ in range(1100):
        assert wire.reply().startswith("INSERTED")
    assert servers.move() == 0
    assert servers.wires["one"].stats("stats-tube mail")["current-jobs-ready"] == "1100"
    assert servers.jobs("two") == []


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_move_that_can_not_be_told_of_is_done(servers, monkeypatch, capsys, words):
    servers.fill()
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert servers.move("mail", *words) == 0
    assert capsys.readouterr().err == DONE_UNPRINTED
    assert len(servers.jobs("one")) == 6
