"""Errors and results whose own code fails, or exits, do not end the worker."""

import pytest

from tests.clients.test_workers import state
from tests.support.wire import until


@pytest.mark.parametrize("function", ["work", "work_async"])
@pytest.mark.parametrize("kind", ["odd", "leaving", "noted"])
def test_error_without_text_does_not_end_the_worker(work, wire, function, kind):
    job_id = wire.put(f"{kind} x".encode())
    worker = work.begin(function, "--tries", "1")
    until(lambda: worker.poll() is not None or work.outcomes())
    assert (work.outcomes(), state(wire, job_id)) == (["buried"], "buried")
    assert work.lines()[0]["error"] == f"{kind.title()}: its text can't be shown"


def test_exit_in_a_task_of_the_function_does_not_end_the_worker(work, wire):
    job_id = wire.put(b"exits x")
    wire.put(b"quick y")
    worker = work.begin("work_in_task", "--tries", "1")
    until(lambda: worker.poll() is not None or len(work.outcomes()) == 2)
    assert (work.outcomes(), state(wire, job_id)) == (["buried", "done"], "buried")
    assert work.lines()[0]["error"] == "SystemExit: as it is meant to"
    worker.terminate()
    assert worker.wait(30) == 0


def test_function_that_cancels_its_own_task_has_failed(work, wire):
    job_id = wire.put(b"own x")
    wire.put(b"quick y")
    worker = work.begin("cancel_tasks", "--tries", "1")
    until(lambda: worker.poll() is not None or len(work.outcomes()) == 2)
    assert (work.outcomes(), state(wire, job_id)) == (["buried", "done"], "buried")
    assert work.lines()[0]["error"] == "CancelledError: the function has cancelled its own task"
    worker.terminate()
    assert worker.wait(30) == 0


def test_worker_ends_if_the_function_cancels_what_reserves_jobs(work, wire):
    job_id = wire.put(b"slots x")
    worker = work.begin("cancel_tasks")
    assert worker.wait(30) == 1
    assert "beanlite: the function has cancelled a task of the worker\n" in work.errors()
    assert (work.outcomes(), state(wire, job_id)) == (["given back"], "ready")


@pytest.mark.parametrize("function", ["work", "work_async"])
@pytest.mark.parametrize("wrapper", ["Tee(sys.stdout)", "codecs.getwriter('utf-8')(sys.stdout.detach())"])
def test_module_that_wraps_stdout_does_not_silence_the_worker(work, wire, function, wrapper):
    with (work.folder / "app.py").open("a") as module:
        module.write(f"\nimport codecs\nsys.stdout = {wrapper}\n")
    wire.put(b"prints x")
    work.begin(function)
    until(lambda: work.outcomes() == ["done"])


@pytest.mark.parametrize("function", ["return_oddly", "return_oddly_async"])
@pytest.mark.parametrize(("kind", "outcome"), [("proxy", "done"), ("begun", "buried")])
def test_odd_result_does_not_end_the_worker(work, wire, function, kind, outcome):
    wire.put(kind.encode())
    worker = work.begin(function, "--tries", "1")
    until(lambda: worker.poll() is not None or work.outcomes())
    assert work.outcomes() == [outcome]
