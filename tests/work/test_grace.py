"""The end of the grace, when calls may end at any moment, or leave something behind."""

import asyncio
import sys
import threading
from concurrent.futures import Future

import pytest

from beanlite.client import connect
from beanlite.worker.worker import Limits, Worker
from tests.support.wire import until


@pytest.fixture
def switches_often():
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("switches_often")
async def test_calls_that_end_with_the_grace_do_not_disturb_it():
    limits = Limits(concurrency=1, timeout_s=1, tries=1, grace_s=0)
    worker = Worker(print, lambda: connect("unix:nowhere"), limits, lambda _: Future())
    calls = [Future() for _ in range(20_000)]
    for call in calls:
        worker._calls.add(call)
        call.add_done_callback(worker._calls.discard)
    thread = threading.Thread(target=lambda: [call.set_result(None) for call in calls])
    thread.start()
    try:
        while thread.is_alive():
            slot = asyncio.create_task(asyncio.sleep(100))
            assert await worker._end([slot]) == {slot}
    finally:
        thread.join()
    assert not worker._calls


@pytest.mark.parametrize(("function", "outcome"), [("work", "done"), ("work_async", "buried")])
def test_thread_that_a_job_leaves_behind_does_not_hold_up_the_stop(work, wire, function, outcome):
    wire.put(b"threads long")
    worker = work.begin(function, "--timeout", "1s", "--tries", "1", "--grace", "0s")
    until(lambda: work.outcomes() == [outcome])
    worker.terminate()
    assert worker.wait(60) == 0
    assert "what the function has left behind does not end, and is cut off" in work.errors()


def test_task_that_a_job_leaves_behind_does_not_hold_up_the_stop(work, wire):
    wire.put(b"quick 1")
    worker = work.begin("leave_task", "--grace", "0s")
    until(lambda: work.outcomes() == ["done"])
    worker.terminate()
    assert worker.wait(60) == 0


def test_longest_grace_is_taken(work, wire):
    worker = work.begin("work", "--grace", "1000000d")
    work.until_waits(wire)
    worker.terminate()
    assert worker.wait(60) == 0
    assert "Traceback" not in work.errors()
