"""``beanlite work`` with a real server: what becomes of jobs, touches, limits and stops."""

import io
import json
import os
import signal
import sys
import urllib.request
from functools import partial

import pytest

from beanlite.cli.printing import print_done
from tests.clients.test_workers import kicked, state
from tests.support.servers import free_port
from tests.support.wire import until

FUNCTIONS = pytest.mark.parametrize("function", ["work", "work_async"])


def job_of(wire, job_id):
    assert wire.ask(f"show-job {job_id}").startswith("OK ")
    return json.loads(wire.body)


def fits(delays):
    """Whether these are the delays of a worker by its own: up to a tenth more than powers of two."""
    return all(2**tries <= delay <= 1.1 * 2**tries for tries, delay in enumerate(delays, 1))


@FUNCTIONS
@pytest.mark.parametrize("body", [b"fails x", b"exits x", b"\xff\xfe"], ids=["raises", "exits", "decoding"])
def test_failing_job_is_tried_again_and_then_buried(work, wire, function, body):
    job_id = wire.put(body, pri=7)
    work.begin(function)
    delays = kicked(wire, job_id)
    assert (len(delays), fits(delays)) == (4, True)
    job = job_of(wire, job_id)
    assert (job["pri"], job["reserves"]) == (7, 5)
    assert 'app.py", line ' in job["note"]
    assert "function.py" not in job["note"]
    error = {b"f": "ValueError: as it", b"e": "SystemExit: as it"}.get(body[:1], "UnicodeDecodeError: 'utf-8' codec")
    line, blank, head, *_, last = job["note"].splitlines()
    assert (line.startswith(error), blank, head) == (True, "", "Traceback (most recent call last):")
    assert last.startswith(error)
    until(lambda: work.outcomes() == ["released"] * 4 + ["buried"])
    assert [line["tries"] for line in work.lines()] == [1, 2, 3, 4, 5]
    assert {line["tube"] for line in work.lines()} == {work.tube}
    assert work.lines()[0]["error"].startswith(error)
    assert work.errors().count("ERROR beanlite: job failed id=") == 5


@pytest.mark.parametrize(("tries", "outcome"), [("2", "released"), ("1", "buried")])
def test_failed_job_keeps_the_pri_that_it_was_given_meanwhile(work, wire, tries, outcome):
    job_id = wire.put(b"waits x", pri=7)
    work.begin("fail_late", "--tries", tries)
    until(lambda: work.log("begin"))
    assert wire.request("change-jobs", do="reprioritise", ids=[job_id], pri=3)["done"] == 1
    work.let_end("x")
    until(work.outcomes)
    assert (work.outcomes()[0], job_of(wire, job_id)["pri"]) == (outcome, 3)


@FUNCTIONS
@pytest.mark.parametrize(("kind", "what"), [("async", "coroutine"), ("generates", "generator")])
def test_function_that_returns_work_to_be_done_has_failed(work, wire, function, kind, what):
    job_id = wire.put(f"{kind} x".encode())
    work.begin(function, "--tries", "1")
    until(lambda: state(wire, job_id) != "ready")
    until(work.outcomes)
    assert work.outcomes() == ["buried"]
    assert job_of(wire, job_id)["note"] == f"TypeError: the function has returned a {what}, which nobody runs\n"


def test_child_that_is_terminated_ends_and_the_worker_does_not(work, wire):
    wire.put(b"forks x")
    worker = work.begin()
    until(lambda: worker.poll() is not None or work.outcomes())
    assert (work.log("child"), work.outcomes()) == ([f"-{signal.SIGTERM:d}"], ["done"])
    assert "stopping" not in work.errors()


def test_child_that_is_left_does_not_hold_the_job(work, wire):
    job_id = wire.put(b"leaves x")
    worker = work.begin()
    until(lambda: work.log("stay") and work.log("left"))
    (child,) = map(int, work.log("left"))
    try:
        worker.kill()
        until(lambda: state(wire, job_id) == "ready")
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_policy_of_the_tube_has_the_delay_and_buries(work, wire):
    wire.request("set-policy", pattern=work.tube, set={"max_tries": "3", "retry": "1000s"})
    job_id = wire.put(b"fails x")
    work.begin("work", "--tries", "1")
    delays = kicked(wire, job_id)
    assert (len(delays), min(delays) >= 1000) == (2, True)
    assert job_of(wire, job_id)["why"] == "tries"
    until(lambda: work.outcomes() == ["released"] * 3)
    assert "ValueError" in job_of(wire, job_id)["note"]


@FUNCTIONS
def test_function_may_finish_the_job_itself(work, wire, function):
    job_id = wire.put(b"buries it")
    work.begin(function)
    until(lambda: state(wire, job_id) == "buried")
    assert job_of(wire, job_id)["note"] == f"it of {work.tube}"
    until(work.outcomes)
    assert work.outcomes() == ["own"]


@FUNCTIONS
def test_job_longer_than_its_ttr_is_given_to_nobody_else(work, wire, function):
    job_id = wire.put(b"waits long", ttr_s=4)
    work.begin(function, "--concurrency", "2")
    until(lambda: work.log("begin") == ["long"])
    touches = int(wire.stats()["cmd-touch"])
    until(lambda: int(wire.stats()["cmd-touch"]) >= touches + 3)  # more than its ttr
    assert wire.ask("reserve-with-timeout 0") == "TIMED_OUT"
    stats = wire.stats(f"stats-job {job_id}")
    assert (stats["reserves"], stats["timeouts"]) == ("1", "0")
    work.let_end("long")
    until(lambda: work.outcomes() == ["done"])
    assert (state(wire, job_id), work.lines()[0]["seconds"] > 4) == (None, True)


def test_function_that_returns_when_it_is_cancelled_has_failed(work, wire):
    job_id = wire.put(b"waits returns")
    work.begin("work_async", "--timeout", "1s", "--tries", "1")
    until(work.outcomes)
    assert (work.log("cancelled"), work.outcomes()) == (["returns"], ["buried"])
    assert job_of(wire, job_id)["note"] == "TimeoutError: not done within 1 s\n"


def test_worker_ends_when_all_async_functions_hang(work, wire):
    job_id = wire.put(b"stays long", ttr_s=8)
    worker = work.begin("work_async", "--timeout", "1s", "--tries", "1")
    assert worker.wait(30) == 1
    assert (work.outcomes(), state(wire, job_id)) == (["buried"], "buried")
    assert "It was cancelled, and goes on." in job_of(wire, job_id)["note"]
    assert "beanlite: all calls of the function (1) have taken longer than --timeout" in work.errors()


def test_async_function_is_cancelled_when_its_time_is_over(work, wire):
    job_id = wire.put(b"waits long", ttr_s=8)
    next_id = wire.put(b"quick next")
    work.begin("work_async", "--timeout", "2s", "--tries", "1")
    until(lambda: state(wire, next_id) is None)
    assert (work.log("cancelled"), state(wire, job_id)) == (["long"], "buried")
    job = job_of(wire, job_id)
    assert (job["reserves"], job["timeouts"]) == (1, 0)
    assert "await asyncio.sleep(0.005)" in job["note"]
    assert job["note"].endswith("TimeoutError: not done within 2 s\n")
    until(lambda: work.outcomes() == ["buried", "done"])


def test_thread_that_hangs_has_failed_and_takes_up_its_place(work, wire):
    job_id = wire.put(b"waits long", ttr_s=8)
    worker = work.begin("work", "--timeout", "2s", "--tries", "1", "--concurrency", "2")
    until(lambda: state(wire, job_id) == "buried")
    note = job_of(wire, job_id)["note"]
    assert note.startswith("TimeoutError: not done within 2 s\n")
    assert "time.sleep(0.005)" in note
    assert "worker.py" not in note
    work.until_waits(wire)
    next_id = wire.put(b"quick next")
    until(lambda: state(wire, next_id) is None)
    work.let_end("long")
    work.until_waits(wire, 2)
    worker.terminate()
    assert (worker.wait(60), work.outcomes()) == (0, ["buried", "done"])


def test_worker_ends_when_all_threads_hang(work, wire):
    wire.put(b"waits long")
    worker = work.begin("work", "--timeout", "1s")
    assert worker.wait(30) == 1
    assert "beanlite: all calls of the function (1) have taken longer than --timeout" in work.errors()


@FUNCTIONS
def test_no_job_is_reserved_before_a_slot_is_free(work, wire, function):
    ids = [wire.put(b"waits %d" % number) for number in range(4)]
    with work.scene.connect() as other:
        bait = other.put(b"quick bait")  # in the tube default, which the worker does not watch
        work.begin(function, "--concurrency", "3")
        until(lambda: len(work.log("begin")) == 3)
        assert [state(wire, job_id) for job_id in ids] == ["reserved"] * 3 + ["ready"]
        work.let_end("0")
        until(lambda: len(work.log("begin")) == 4)
        assert [state(wire, job_id) for job_id in ids] == [None] + ["reserved"] * 3
        assert state(other, bait) == "ready"
        other.ask(f"delete {bait}")


def test_object_with_an_async_call_is_awaited(work, wire):
    job_id = wire.put(b"quick x")
    work.begin("called")
    until(lambda: state(wire, job_id) is None)
    assert work.log("end") == ["x"]


def test_job_that_was_taken_is_lost_and_the_worker_goes_on(work, wire):
    job_id = wire.put(b"waits long")
    work.begin()
    until(lambda: work.log("begin"))
    wire.ask(f"pause-tube {work.tube} 60")  # or the worker might take it again
    wire.request("change-jobs", do="release", ids=[job_id])
    assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED ")
    wire.ask(f"pause-tube {work.tube} 0")
    work.let_end("long")
    next_id = wire.put(b"quick next")
    until(lambda: state(wire, next_id) is None)
    until(lambda: work.outcomes() == ["lost", "done"])
    assert "WARN" in work.errors()
    assert wire.ask(f"delete {job_id}") == "DELETED"


# -- the stop


def test_worker_that_waits_ends_when_it_is_told(work, wire):
    worker = work.begin()
    work.until_waits(wire)
    worker.terminate()
    assert worker.wait(60) == 0


@FUNCTIONS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_worker_finishes_the_jobs_in_hand(work, wire, function, number):
    ids = [wire.put(b"waits 0", ttr_s=4), wire.put(b"waits 1", ttr_s=4), wire.put(b"quick next")]
    worker = work.begin(function, "--concurrency", "2")
    until(lambda: len(work.log("begin")) == 2)
    worker.send_signal(number)
    until(lambda: "stopping jobs_in_hand=2" in work.errors())
    touches = int(wire.stats()["cmd-touch"])
    until(lambda: int(wire.stats()["cmd-touch"]) > touches + 3)  # it goes on with both
    work.let_end("0")
    work.let_end("1")
    assert worker.wait(60) == 0
    assert [state(wire, job_id) for job_id in ids] == [None, None, "ready"]
    assert work.outcomes() == ["done", "done"]


@FUNCTIONS
def test_jobs_that_take_longer_than_the_grace_are_given_back(work, wire, function):
    job_id = wire.put(b"waits long")
    worker = work.begin(function, "--grace", "1s")
    until(lambda: work.log("begin"))
    worker.terminate()
    assert worker.wait(60) == 1
    until(lambda: state(wire, job_id) == "ready")
    assert work.outcomes() == ["given back"]
    assert work.log("cancelled") == (["long"] if function == "work_async" else [])


def test_function_that_can_not_be_cancelled_does_not_hold_up_the_stop(work, wire):
    job_id = wire.put(b"stays long")
    worker = work.begin("work_async", "--grace", "0s")
    until(lambda: work.log("begin"))
    worker.terminate()
    assert worker.wait(60) == 1
    until(lambda: state(wire, job_id) == "ready")
    assert (work.log("cancelled"), work.outcomes()) == (["long"], ["given back"])


def test_thread_of_an_async_function_does_not_hold_up_the_stop(work, wire):
    job_id = wire.put(b"threads long")
    worker = work.begin("work_async", "--grace", "0s")
    until(lambda: work.log("begin"))
    worker.terminate()
    assert worker.wait(60) == 1
    until(lambda: state(wire, job_id) == "ready")
    assert work.outcomes() == ["given back"]


@FUNCTIONS
def test_second_signal_ends_the_worker_at_once(work, wire, function):
    job_id = wire.put(b"waits long")
    worker = work.begin(function)
    until(lambda: work.log("begin"))
    worker.terminate()
    until(lambda: "stopping" in work.errors())
    worker.terminate()
    assert worker.wait(60) == -signal.SIGTERM
    until(lambda: state(wire, job_id) == "ready")


@FUNCTIONS
def test_worker_that_is_stopped_under_load_does_no_job_twice(work, wire, function):
    keys = [str(number) for number in range(300)]
    ids = [wire.put(f"quick {key}".encode()) for key in keys]
    for _ in range(2):
        jobs = len(work.log("end")) + 20
        worker = work.begin(function, "--concurrency", "4")
        until(partial(work.has_done, jobs))
        worker.terminate()
        assert worker.wait(60) == 0
        assert len(work.log("end")) == len(work.lines())
    work.begin(function, "--concurrency", "4")
    until(lambda: stats_are_empty(wire, work.tube))
    assert sorted(work.log("begin")) == sorted(work.log("end")) == sorted(keys)
    until(lambda: len(work.lines()) == len(ids))
    assert set(work.outcomes()) == {"done"}


def stats_are_empty(wire, tube):
    stats = wire.stats(f"stats-tube {tube}")
    return {stats[f"current-jobs-{each}"] for each in ("ready", "reserved", "delayed", "buried")} == {"0"}


# -- what others see


class Writes(io.StringIO):
    def __init__(self):
        super().__init__()
        self.texts = []

    def write(self, text):
        self.texts.append(text)
        return len(text)


def test_line_of_a_job_is_one_write(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Writes())
    print_done("{}")
    assert [text for text in sys.stdout.texts if text] == ["{}\n"]


def test_metrics_readiness_and_name_are_shown(work, wire):
    port = free_port()
    worker = work.begin("work", "--health", f"127.0.0.1:{port}", "--tries", "1")
    work.until_waits(wire)
    wire.put(b"quick x")
    wire.put(b"fails x")
    until(lambda: len(work.outcomes()) == 2)
    page = ask(port, "metrics")
    assert f'beanlite_worker_jobs_total{{outcome="done",tube="{work.tube}"}} 1.0\n' in page
    assert f'beanlite_worker_jobs_total{{outcome="buried",tube="{work.tube}"}} 1.0\n' in page
    assert f'beanlite_worker_job_seconds_count{{tube="{work.tube}"}} 2.0\n' in page
    assert "beanlite_worker_jobs_in_hand 0.0\n" in page
    assert ask(port, "readyz") == "ready\n"
    names = {client.get("name") for client in wire.request("list-clients")["clients"]}
    assert any(name and name.split("/")[1:] == ["app:work", str(worker.pid)] for name in names)


def ask(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as reply:
        return reply.read().decode()
