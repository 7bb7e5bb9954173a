"""A new server that does not take the jobs of a tube: workers go on getting these from the old one."""

import signal

import pytest

from beanlite.console.live import Live
from tests.support.wire import until

LEAVING, COMING = "mail(leaving)", "mail(coming)"


def drain(servers, name):
    servers.processes[name].signal(signal.SIGUSR1)
    until(lambda: servers.wires[name].stats("stats")["draining"] == "true")


def refuse_puts(servers, monkeypatch, after=0, do=drain):
    """Have the new server refuse puts once it has taken so many requests for them."""
    ask = Live.ask
    left = after

    def refuse(live, word, request):
        nonlocal left
        if word == "put-jobs":
            if left == 0:
                do(servers, servers.new)
            left -= 1
        return ask(live, word, request)

    monkeypatch.setattr(Live, "ask", refuse)


def test_tube_does_not_move_to_a_server_that_drains(servers, capsys):
    jobs = servers.fill()
    before = servers.file.read_text()
    drain(servers, "one")
    assert servers.move() == 1
    assert "is draining, and takes no job until it is restarted" in capsys.readouterr().err
    assert servers.file.read_text() == before
    assert len(servers.jobs("two")) == len(jobs)


def test_tube_with_a_job_too_large_for_the_new_server_stays(servers, capsys):
    servers.fill()
    servers.wires["two"].put(b"x" * 70_000)
    before = servers.file.read_text()
    assert servers.move() == 1
    assert "it has a job of 70000 bytes, and the max_job_size of 127.0.0.1:" in capsys.readouterr().err
    assert servers.file.read_text() == before
    assert len(servers.jobs("two")) == 7


@pytest.mark.parametrize("after", [0, 1, 2])
def test_jobs_that_are_refused_meanwhile_are_given_back(servers, monkeypatch, capsys, after):
    jobs = servers.fill()
    for number in range(5):
        servers.wires["two"].put(b"%d" % number * 60_000)  # so that there are several requests
    kept = servers.jobs("two")
    refuse_puts(servers, monkeypatch, after)
    assert servers.move() == 1
    assert "beanlite: the jobs are in mail of 127.0.0.1:" in capsys.readouterr().err
    assert servers.jobs("two") == kept
    assert len(kept) == len(jobs) + 5
    assert servers.jobs("two", LEAVING) == servers.jobs("one", COMING) == servers.jobs("one") == []


def test_copies_without_an_original_are_the_jobs_after_a_refusal(servers, monkeypatch):
    wire = servers.wires["one"]
    wire.ask(f"use {COMING}")
    job_id = wire.put(b"the only one")
    wire.request("change-jobs", do="note", ids=[job_id], note="moved from two:999")
    wire.ask("use default")
    servers.fill()
    refuse_puts(servers, monkeypatch)
    assert servers.move() == 1
    assert [job[1] for job in servers.jobs("one")] == ["the only one"]
    assert len(servers.jobs("two")) == 6


def test_refused_jobs_wait_if_their_copies_are_not_to_be_had(servers, monkeypatch, capsys):
    jobs = servers.fill(1)
    refuse_puts(servers, monkeypatch, do=lambda servers, name: servers.processes[name].kill())
    assert servers.move() == 1
    assert f"beanlite: the jobs wait in {LEAVING} of 127.0.0.1:" in capsys.readouterr().err
    assert len(servers.jobs("two", LEAVING)) == len(jobs)


def test_copies_are_kept_if_the_old_server_is_lost(servers, monkeypatch):
    kept = len(servers.fill()) + 5
    for number in range(5):
        servers.wires["two"].put(b"%d" % number * 60_000)  # so that there are several requests
    show_job, shown = Live.show_job, []

    def lose_at_the_last(live, job_id):
        shown.append(job_id)
        if len(shown) == kept:
            servers.processes["two"].kill()
        return show_job(live, job_id)

    monkeypatch.setattr(Live, "show_job", lose_at_the_last)
    assert servers.move() == 1
    copies = servers.jobs("one", COMING)
    assert copies
    assert all(job[-1].startswith("moved from two:") for job in copies)
