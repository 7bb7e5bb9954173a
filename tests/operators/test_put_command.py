"""``beanlite put`` against a real server: what it puts from where, and what it says of mistakes and refusals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from beanlite.cli import main
from beanlite.console.live import Live
from tests.operators.test_commands import ENVIRONMENT, ids
from tests.support.servers import start_beanlite
from tests.support.streams import (
    DONE_UNPRINTED,
    from_broken,
    from_late,
    from_unreadable,
    onto_full_disk,
    without_reader,
)
from tests.support.wire import until


def test_a_dash_is_no_body(own_queue, run):
    assert run(own_queue, "put", "--tube", "new", "-") == (
        2, "", "beanlite: - is no body; without a BODY, stdin is the body of the job\n"
    )  # fmt: skip


def test_bodies_from_arguments_and_stdin(own_queue, run, monkeypatch, tmp_path):
    assert run(own_queue, "put", "--tube", "new", "a", "b") == (0, "13\n14\n", "")
    (tmp_path / "in").write_bytes(b"one\ntwo\r\n\xff")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run(own_queue, "put", "-t", "new", "--lines", "--json")[1] == '{"id": 15}\n{"id": 16}\n{"id": 17}\n'
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run(own_queue, "put", "-t", "new", "--pri", "3", "--delay", "1h", "--ttr", "5min")[1] == "18\n"
    with Live(own_queue.address) as live:
        found = [live.show_job(job_id) or {} for job_id in range(13, 19)]
    assert [job["body"] for job in found] == [b"a", b"b", b"one", b"two", b"\xff", b"one\ntwo\r\n\xff"]
    last = found[-1]
    assert [last[key] for key in ("tube", "pri", "delay_s", "ttr_s")] == ["new", 3, 3600, 300]


def test_bodies_that_are_there_are_told(own_queue, run, monkeypatch, tmp_path):
    with Live(own_queue.address) as live:
        live.ask("set-policy", {"pattern": "once", "set": {"unique": "present"}})
    assert run(own_queue, "put", "--tube", "once", "a", "b") == (0, "13\n14\n", "")
    (tmp_path / "in").write_bytes(b"a\nnew\nnew\nb\n")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        said = "beanlite: 3 jobs were not put: the body is there already (unique), in 13, 15, 14\n"
        assert run(own_queue, "put", "--tube", "once", "--lines") == (0, "13\n15\n15\n14\n", said)
    assert run(own_queue, "put", "--tube", "once", "b", "c", "--json")[1] == '{"id": 14, "put": false}\n{"id": 16}\n'


def test_a_file_of_jobs(own_queue, run, tmp_path):
    file = tmp_path / "jobs.jsonl"
    jobs = [{"body": f"b{n}", "tube": "new", "pri": n} for n in range(1200)]
    file.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    exit_code, out, _ = run(own_queue, "put", "--jobs", str(file))
    assert (exit_code, len(out.split())) == (0, 1200)
    assert len(ids(own_queue, tube="new")) == 1200


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_what_is_done_but_can_not_be_printed_is_done(json, own_queue, tmp_path):
    (tmp_path / "in").write_text('{"body": "x", "tube": "new"}\n' * 1200)
    server = ["--connect", f"127.0.0.1:{own_queue.server.port}", *json]
    command = ["put", "--jobs", str(tmp_path / "in"), *server]
    said = "beanlite: jobs are put, but not all of their ids can be printed: No space left on device\n"
    assert onto_full_disk(*command) == (0, said)
    assert without_reader(*command) == (0, "")
    assert len(ids(own_queue, tube="new")) == 2400
    assert onto_full_disk("copy", "12", "--to", "copied", *server) == (0, DONE_UNPRINTED)
    assert without_reader("copy", "12", "--to", "copied", *server) == (0, "")
    assert len(ids(own_queue, tube="copied")) == 2
    assert onto_full_disk("pause", "mail", "10min", *server) == (0, DONE_UNPRINTED)
    said = "beanlite: output can't be written: No space left on device\n"
    assert onto_full_disk("copy", "12", "--to", "copied", "--dry-run", *server) == (1, said)


@pytest.mark.parametrize("options", [[], ["--lines"], ["--jobs", "-"]])
def test_jobs_that_can_not_be_read_are_one_line(options, own_queue):
    command = ["put", *options, "--connect", f"127.0.0.1:{own_queue.server.port}"]
    assert from_unreadable(*command) == (1, "beanlite: stdin can't be read: Bad file descriptor\n")
    assert from_broken(*command) == (1, "beanlite: stdin can't be read: Input/output error\n")
    assert len(ids(own_queue)) == 12


def test_files_that_can_not_be_read_are_one_line(own_queue, run):
    for file, why in ("none", "No such file or directory"), ("/proc/self/mem", "Input/output error"):
        assert run(own_queue, "put", "--jobs", file) == (1, "", f"beanlite: {file} can't be read: {why}\n")


@pytest.mark.parametrize("options", [[], ["--lines"], ["--jobs", "-"]])
def test_a_pause_in_a_pipe_is_not_its_end(options, own_queue):
    command = ["put", "--tube", "new", *options, "--connect", f"127.0.0.1:{own_queue.server.port}"]
    assert from_late(b'{"body": "late"}', *command) == (0, "")
    assert len(ids(own_queue, tube="new")) == 1


def test_what_can_not_be_read_halfway_tells_how_many_were_put(own_queue, run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = Thread(target=pipe.write_text, args=('{"body": "x"}\n' * 700 + "{}\n",))
    writing.start()
    exit_code, out, err = run(own_queue, "put", "--jobs", str(pipe))
    writing.join()
    count = out.count("\n")
    assert exit_code == 2
    assert 500 <= count <= 700  # as many as had come when the command would have had to wait
    assert err == f"beanlite: {pipe}, line 701: it needs either body or base64; {count} jobs were put before\n"


@pytest.mark.parametrize(("options", "line"), [(["--lines"], b"body\n"), (["--jobs", "-"], b'{"body": "body"}\n')])
def test_what_has_come_from_a_pipe_is_put_before_more_comes(options, line, own_queue):
    where = f"127.0.0.1:{own_queue.server.port}"
    command = [sys.executable, "-m", "beanlite", "put", "--tube", "new", *options, "--connect", where]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as putting:
        putting.stdin.write(2 * line + line[:3])
        putting.stdin.flush()
        until(lambda: len(ids(own_queue, tube="new")) == 2)
        assert putting.communicate(line[3:] + line)[0] == b"13\n14\n15\n16\n"


def test_jobs_from_a_pipe_are_read_once(own_queue, run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = Thread(target=pipe.write_text, args=('{"body": "x"}\n' * 2,))
    writing.start()
    assert run(own_queue, "put", "--jobs", str(pipe)) == (0, "13\n14\n", "")
    writing.join()


def test_a_mistake_in_a_file_puts_nothing(own_queue, run, tmp_path):
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"body": "x"}\n' * 1200 + "{}\n")
    said = f"beanlite: {file}, line 1201: it needs either body or base64\n"
    assert run(own_queue, "put", "--jobs", str(file)) == (2, "", said)
    assert len(ids(own_queue)) == 12


def test_a_job_that_no_request_has_room_for(tmp_path):
    with start_beanlite(tmp_path, "-z", "5000000") as server:
        command = [sys.executable, "-m", "beanlite", "put", "--connect", f"127.0.0.1:{server.port}"]
        done = subprocess.run(command, input=b"x" * 3_000_000, capture_output=True, check=True, env=ENVIRONMENT)
        assert done.stdout == b"1\n"
        done = subprocess.run(command, input=b"x" * 6_000_000, capture_output=True, check=False, env=ENVIRONMENT)
        said = "refused a put: JOB_TOO_BIG (the body is larger than max_job_size)"
        assert (done.returncode, done.stderr) == (1, f"beanlite: 127.0.0.1:{server.port} {said}\n".encode())


def test_a_put_that_is_refused_is_told_with_what_the_word_means(tmp_path, capsys):
    with start_beanlite(tmp_path, "-z", "5") as server:
        where = f"127.0.0.1:{server.port}"
        assert main(["put", "123456", "--connect", where]) == 1
        assert capsys.readouterr().err.endswith("JOB_TOO_BIG (the body is larger than max_job_size)\n")
        server.signal(signal.SIGUSR1)
        until(lambda: main(["put", "1", "--connect", where]) == 1)
        assert capsys.readouterr().err.endswith("DRAINING (no more jobs are taken until the server is restarted)\n")


def test_one_line_end_is_taken_off_each_line(own_queue, run, monkeypatch, tmp_path):
    (tmp_path / "in").write_bytes(b"a\r\r\nb\r\n\r\n\nc\rd\ne\r")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        ids = run(own_queue, "put", "--lines")[1].split()
    with Live(own_queue.address) as live:
        assert [(live.show_job(int(job_id)) or {})["body"] for job_id in ids] == [
            b"a\r",
            b"b",
            b"",
            b"",
            b"c\rd",
            b"e\r",
        ]


def test_line_that_is_too_long_is_no_two_jobs(own_queue, run, monkeypatch, tmp_path):
    (tmp_path / "in").write_bytes(b"c" * 65535 + b"\r\r\r" + b"bbbb")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, err = run(own_queue, "put", "--lines")
    assert (code, out) == (1, "")
    assert "JOB_TOO_BIG" in err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--jobs", "-"], 2, "stdin, line 1: it is not JSON: Expecting value (character 1)"),
        ([], 1, "JOB_TOO_BIG (the body is larger than max_job_size)"),
        (["--lines"], 1, "JOB_TOO_BIG (the body is larger than max_job_size)"),
    ],
)
def test_what_has_no_end_is_not_read_to_it(options, code, said, own_queue, run, monkeypatch):
    with Path("/dev/zero").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        exit_code, out, err = run(own_queue, "put", *options)
    assert (exit_code, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1
