"""The lines of jobs on stdout, which is theirs alone."""

import fcntl
import json
import select
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.clients.test_workers import state
from tests.support.wire import until
from tests.work.test_work import stats_are_empty

JOBS = 300


@pytest.mark.parametrize("kind", ["print", "print-original", "print-elsewhere", "print-in-child"])
def test_stdout_has_the_lines_of_jobs_alone(work, wire, kind):
    wire.put(f"{kind} x".encode())
    wire.put(f"{kind} y".encode())
    work.begin("print_oddly", "--tries", "1")
    until(lambda: len(work.outcomes()) == 2)
    assert work.outcomes() == ["done", "done"]
    assert [line for line in work.errors().splitlines() if line in "xy"] == ["x", "y"]


def test_print_of_the_function_is_seen_at_once(work, wire):
    wire.put(b"waits x")
    work.begin("print_oddly")
    until(lambda: "\nx\n" in work.errors())
    work.let_end("x")
    until(lambda: work.outcomes() == ["done"])


def test_print_of_what_stdout_has_no_code_for_is_done(work, wire, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    wire.put("print é".encode())
    work.begin("print_oddly")
    until(lambda: work.outcomes() == ["done"])
    assert "\n\\xe9\n" in work.errors()


def test_what_a_function_leaves_behind_prints_nothing_to_stdout(work, wire):
    wire.put(b"prints-on x")
    worker = work.begin("print_oddly")
    until(work.outcomes)
    worker.terminate()
    assert worker.wait(60) == 0
    assert work.outcomes() == ["done"]
    assert work.errors().count("\nx\n") > 1


def test_function_that_closes_stdout_silences_nothing(work, wire):
    for body in (b"closes x", b"quick y"):
        wire.put(body)
    worker = work.begin("print_oddly")
    until(lambda: work.log("end") == ["x", "y"])
    worker.terminate()
    assert worker.wait(30) == 0
    assert work.outcomes() == ["done"] * 2
    assert "Traceback" not in work.errors()


def test_function_that_replaces_stdout_by_what_fails_ends_in_order(work, wire):
    wire.put(b"replaces x")
    worker = work.begin("print_oddly")
    until(lambda: work.outcomes() == ["done"])
    worker.terminate()
    assert worker.wait(30) == 0
    assert "Traceback" not in work.errors()


def test_lines_that_have_lost_their_reader_do_not_stop_the_worker(work, wire):
    worker = work.begin(stdout=subprocess.PIPE)
    worker.stdout.close()
    for number in range(3):
        wire.put(b"quick %d" % number)
    until(lambda: stats_are_empty(wire, work.tube))
    worker.terminate()
    assert (worker.wait(60), len(work.log("end"))) == (0, 3)


def begin_unread(work, wire, *flags):
    """Start a worker with more jobs than there is room for their lines, which nobody reads."""
    worker = work.begin("work", *flags, stdout=subprocess.PIPE)
    fcntl.fcntl(worker.stdout, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
    for number in range(JOBS):
        wire.put(b"quick %d" % number)
    until(lambda: "waiting until stdout is read" in work.errors())
    return worker


def touches(wire):
    return int(wire.stats("stats")["cmd-touch"])


def test_jobs_in_hand_are_touched_while_nobody_reads_the_lines(work, wire):
    wire.put(b"waits long", ttr_s=4)
    worker = begin_unread(work, wire, "--concurrency", "2")
    before = touches(wire)
    until(lambda: touches(wire) > before)
    assert len(work.log("end")) < JOBS
    work.let_end("long")
    with worker.stdout, ThreadPoolExecutor() as reader:
        text = reader.submit(worker.stdout.read)
        until(lambda: stats_are_empty(wire, work.tube))
        worker.terminate()
        assert worker.wait(60) == 0
        lines = [json.loads(line) for line in text.result().splitlines()]
    assert [(line["outcome"], line["tries"]) for line in lines] == [("done", 1)] * (JOBS + 1)


def test_stop_waits_for_the_reader_no_longer_than_the_grace(work, wire):
    worker = begin_unread(work, wire, "--grace", "0s")
    worker.terminate()
    assert worker.wait(60) == 0
    assert "stdout is not read, and lines are lost" in work.errors()
    done = work.log("end")
    until(lambda: wire.stats(f"stats-tube {work.tube}")["current-jobs-ready"] == str(JOBS - len(done)))
    with worker.stdout:
        *lines, _ = worker.stdout.read().split(b"\n")
    assert {json.loads(line)["outcome"] for line in lines} == {"done"}


def test_print_that_nobody_reads_does_not_hold_up_the_stop(work, wire):
    job_id = wire.put(b"floods x")
    worker = work.begin("print_oddly", "--grace", "0s", stderr=subprocess.PIPE)
    until(lambda: work.log("begin"))
    worker.terminate()
    assert worker.wait(60) == 1
    worker.stderr.close()
    until(lambda: state(wire, job_id) == "ready")
