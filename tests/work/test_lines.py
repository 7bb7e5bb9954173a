"""The lines of jobs on stdout, on which the function prints as well."""

import json
import subprocess
import sys

import pytest

from tests.support.wire import until
from tests.work.test_work import stats_are_empty


def test_line_of_a_job_begins_behind_what_the_function_prints(work, wire):
    wire.put(b"prints x")
    wire.put(b"quick y")
    work.begin()
    until(lambda: work.log("end") == ["x", "y"])
    until(lambda: (work.folder / "out").read_text().count("\n") == 3)
    printed, first, second = (work.folder / "out").read_text().splitlines()
    assert printed == "x"
    assert [json.loads(line)["outcome"] for line in (first, second)] == ["done", "done"]


@pytest.mark.parametrize("kind", ["print", "print-original"])
def test_function_prints_to_the_stdout_of_its_import(work, wire, kind):
    wire.put(f"{kind} x".encode())
    wire.put(f"{kind} y".encode())
    work.begin("print_oddly", "--tries", "1")
    until(lambda: (work.folder / "out").read_text().count("}\n") == 2)
    x, first, y, second = (work.folder / "out").read_text().splitlines()
    assert (x, y) == ("x", "y")
    assert [json.loads(line)["outcome"] for line in (first, second)] == ["done", "done"]


def test_stdout_without_a_buffer_has_none_in_the_function_either(work, wire, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    wire.put(b"waits x")
    work.begin("print_oddly")
    until(lambda: (work.folder / "out").read_text() == "x")
    work.let_end("x")
    until(lambda: (work.folder / "out").read_text().endswith("}\n"))


def test_function_that_closes_stdout_silences_nothing(work, wire):
    for body in (b"closes x", b"print y", b"closes z"):
        wire.put(body)
    worker = work.begin("print_oddly")
    until(lambda: work.log("end") == ["x", "y", "z"])
    worker.terminate()
    assert worker.wait(30) == 0
    first, y, *others = (work.folder / "out").read_text().splitlines()
    assert (y, [json.loads(line)["outcome"] for line in (first, *others)]) == ("y", ["done"] * 3)
    assert "Traceback" not in work.errors()


def test_function_that_replaces_stdout_by_what_fails_ends_in_order(work, wire):
    wire.put(b"replaces x")
    worker = work.begin("print_oddly")
    until(lambda: work.outcomes() == ["done"])
    worker.terminate()
    assert worker.wait(30) == 0
    assert "Traceback" not in work.errors()


def test_lines_that_nobody_reads_do_not_stop_the_worker(work, wire):
    command = [sys.executable, "-m", "beanlite", "work", "app:work", "--tube", work.tube]
    worker = subprocess.Popen(
        [*command, "--connect", f"127.0.0.1:{work.scene.port}"], cwd=work.folder, stdout=subprocess.PIPE
    )
    work.workers.append(worker)
    worker.stdout.close()
    for number in range(3):
        wire.put(b"quick %d" % number)
    until(lambda: stats_are_empty(wire, work.tube))
    worker.terminate()
    assert (worker.wait(60), len(work.log("end"))) == (0, 3)
