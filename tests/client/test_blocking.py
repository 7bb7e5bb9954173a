"""The client that blocks, with beanlite and with beanstalkd."""

import gc
import random
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress

import pytest

from beanlite.client import (
    CannotConnect,
    ConnectionLost,
    DeadlineSoon,
    JobLost,
    JobTooBig,
    NotFound,
    NotIgnored,
    SomePutsFailed,
    TimedOut,
    connect_blocking,
)
from tests.support.wire import until


@pytest.fixture
def queue(url, tube):
    """A client that uses and watches a tube of its own."""
    with connect_blocking(url, name=f"tests/{tube}", use=tube, watch=[tube], timeout_s=30) as queue:
        yield queue


def test_job_goes_through_its_states(queue):
    job_id = queue.put("häuser", pri=7, ttr_s=9)
    job = queue.reserve()
    assert (job.id, job.text) == (job_id, "häuser")
    job.touch()
    assert not job.is_finished
    job.release(note="again")
    assert (job.is_finished, queue.peek_ready().id) == (True, job_id)
    queue.reserve(5).bury(note="odd")
    assert (queue.peek_buried().id, queue.stats_job(job_id)["pri"]) == (job_id, 7)
    assert queue.kick(10) == 1
    queue.reserve().release(pri=3, delay_s=1000)
    assert queue.peek_delayed().text == "häuser"
    queue.kick_job(job_id)
    job = queue.reserve_job(job_id)
    assert job.stats()["pri"] == 3
    job.delete()
    with pytest.raises(NotFound, match="finished already"):
        job.delete()
    with pytest.raises(NotFound):
        queue.peek(job_id)


def test_puts_reach_their_tubes(queue, tube):
    ids = queue.put_many([str(number) for number in range(1234)], f"{tube}-many")
    assert (ids == sorted(ids), queue.peek(ids[777]).text) == (True, "777")
    with pytest.raises(SomePutsFailed) as error:
        queue.put_many(["a", "x" * 10001])
    assert isinstance(error.value.errors[1], JobTooBig)
    assert queue.peek_ready().text == "a"
    queue.use(f"{tube}-other")
    job_id = queue.put("x")
    assert queue.stats_job(job_id)["tube"] == f"{tube}-other"
    queue.delete(job_id)


def test_tubes_are_watched_and_ignored(queue, tube):
    assert queue.watch("w1") == 2
    queue.put("one", "w1")
    assert queue.ignore(tube) == 1
    with pytest.raises(NotIgnored):
        queue.ignore("w1")
    queue.reserve().delete()
    queue.pause_tube("w1", 60)
    assert queue.stats_tube("w1")["pause"] == 60
    queue.pause_tube("w1", 0)
    with pytest.raises(TimedOut):
        queue.reserve(0)
    assert "w1" in queue.list_tubes()


def test_loop_that_ends_gives_back_jobs_ahead(queue, tube):
    queue.put_many([str(number) for number in range(20)], pri=77)
    texts = []
    with closing(queue.jobs(ahead=6)) as jobs:
        for job in jobs:
            texts.append(job.text)
            if len(texts) == 10:
                break
            job.delete()
    assert texts == [str(number) for number in range(10)]
    stats = queue.stats_tube(tube)
    assert (stats["current-jobs-reserved"], stats["current-jobs-ready"]) == (1, 10)
    assert queue.peek_ready().text == "10"
    job.delete()
    assert queue.stats_job(queue.peek_ready().id)["pri"] == 77


@pytest.mark.parametrize("in_hand", [0, 1])
def test_loop_that_is_collected_amid_a_command_waits(queue, tube, monkeypatch, in_hand):
    """A loop in a reference cycle ends whenever the garbage collector comes by."""
    queue.put_many(["x"] * 4)
    jobs = queue.jobs(ahead=2)
    job = next(jobs)
    if not in_hand:
        job.delete()
    cycle = [jobs]
    cycle.append(cycle)
    del jobs, cycle
    receive = queue._wire._dialogue.receive

    def collecting(data):
        gc.collect()
        return receive(data)

    monkeypatch.setattr(queue._wire._dialogue, "receive", collecting)
    job_id = queue.put("y", delay_s=100)
    assert queue.peek(job_id).text == "y"
    until(lambda: queue.stats_tube(tube)["current-jobs-ready"] == 3)
    assert queue.stats_tube(tube)["current-jobs-reserved"] == in_hand
    if in_hand:
        job.delete()
    for _ in range(3):
        queue.reserve(9).delete()
    queue.delete(job_id)


def test_waiting_reserve_gets_a_job(url, queue, tube):
    texts = []

    def work():
        with connect_blocking(url, watch=[tube]) as worker:
            texts.append(worker.reserve().text)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: queue.stats_tube(tube)["current-waiting"] == 1)
    queue.put("now")
    thread.join()
    assert texts == ["now"]


def test_deadline_soon(queue):
    queue.put("short", ttr_s=2)
    job = queue.reserve()
    with pytest.raises(DeadlineSoon):
        queue.reserve()
    job.delete()


def test_interrupted_reserve_leaves_no_job_reserved(queue, tube, monkeypatch):
    queue.put("x")
    receive = queue._wire._dialogue.receive

    def interrupted(data):
        receive(data)
        raise KeyboardInterrupt

    monkeypatch.setattr(queue._wire._dialogue, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.reserve()
    until(lambda: queue.stats_tube(tube)["current-jobs-ready"] == 1)
    queue.reserve().delete()


def test_closed_queue_is_over(queue):
    queue.put("x")
    job = queue.reserve()
    queue.close()
    with pytest.raises(JobLost):
        job.delete()
    with pytest.raises(ConnectionLost, match="closed"):
        queue.stats()


def test_missing_server_is_an_error():
    with pytest.raises(CannotConnect, match=r"no server can be reached at unix:/nowhere: "):
        connect_blocking("unix:/nowhere")


def test_import_of_the_blocking_client_does_not_import_asyncio():
    code = "import sys, beanlite.client.blocking; assert 'asyncio' not in sys.modules, 'asyncio'"
    subprocess.run([sys.executable, "-c", code], check=True)


class Interrupted(Exception):
    """What a handler of a signal raises."""


@pytest.fixture
def interrupt():
    """Have a signal interrupt this thread after some seconds."""

    def stop(*_):
        raise Interrupted

    gc.disable()  # an exception in a callback of the collector would be ignored
    before = signal.signal(signal.SIGALRM, stop)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.enable()


@pytest.mark.parametrize("times", [300, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_interrupted_command_leaves_no_answer_to_the_next_one(queue, interrupt, times):
    chance = random.Random(times)
    job_id = queue.put("mine")
    for _ in range(times):
        with suppress(Interrupted):
            interrupt(chance.uniform(1e-6, 1e-3))
            for _ in range(1000):  # not for ever: Python ignores an exception in a finalizer
                assert queue.stats_job(job_id)["id"] == job_id
                assert queue.list_tubes()
                queue.kick(1)
        assert queue.peek(job_id).text == "mine"
    queue.reserve(30).delete()
