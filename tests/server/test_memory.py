"""A server with little memory: the backlog is larger than that, and clients do not notice."""

import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers import start_beanlite
from tests.support.wire import Wire, put_bytes, until

SIZE = 60_000
MIB = 1 << 20
LITTLE = ("--max-memory", "64MiB", "--body-memory", "16MiB", "--fsync", "never")
AT_ONCE = 50


def body(number, size=SIZE):
    """Return a body; no two numbers have the same."""
    return (b"%09d\n" % number * (size // 10 + 1))[:size]


@contextmanager
def one_client(directory, *flags, before=None):
    with start_beanlite(directory, *flags, before=before) as server, Wire(server.connect()) as wire:
        yield server, wire


def fill(wire, first, jobs, size=SIZE):
    """Put these jobs, some at a time; return the replies."""
    answers = []
    for at in range(first, first + jobs, AT_ONCE):
        numbers = range(at, min(at + AT_ONCE, first + jobs))
        wire.send(b"".join(put_bytes(body(number, size)) for number in numbers))
        answers += [wire.reply() for _ in numbers]
    return answers


def drain(wire, jobs, size=SIZE):
    """Reserve and delete these jobs in order, some at a time; ``jobs`` maps ids to the numbers of the bodies."""
    ids = list(jobs)
    for at in range(0, len(ids), AT_ONCE):
        part = ids[at : at + AT_ONCE]
        wire.send(b"".join(b"reserve-with-timeout 0\r\ndelete %d\r\n" % job_id for job_id in part))
        for job_id in part:
            assert wire.reply() == f"RESERVED {job_id} {size}"
            assert wire.body == body(jobs[job_id], size)
            assert wire.reply() == "DELETED"


def same(first, end):
    """Return a map in which each job has the body of its own number."""
    return {number: number for number in range(first, end)}


def memory(wire):
    return {key: int(value) for key, value in wire.stats().items() if "memory" in key or "bodies" in key}


def test_backlog_larger_than_memory_survives_kills_in_its_order(tmp_path):
    jobs = 700
    with one_client(tmp_path, *LITTLE) as (server, wire):
        assert fill(wire, 1, jobs) == [f"INSERTED {number}" for number in range(1, jobs + 1)]
        before = memory(wire)
        assert before["memory-bodies"] <= 16 * MIB
        assert before["bodies-on-disk"] > jobs - 16 * MIB // SIZE - 2
        server.kill()
    with one_client(tmp_path, *LITTLE) as (server, wire):
        after = memory(wire)
        assert after["memory-bodies"] <= 16 * MIB
        assert after["bodies-on-disk"] > jobs // 2
        drain(wire, same(1, jobs // 2))
        later = fill(wire, jobs + 1, 50)
        server.kill()
    with one_client(tmp_path, *LITTLE) as (_, wire):
        drain(wire, same(jobs // 2, jobs + 1))
        drain(wire, {int(answer.removeprefix("INSERTED ")): number for number, answer in enumerate(later, jobs + 1)})
        assert wire.ask("reserve-with-timeout 0") == "TIMED_OUT"
        assert memory(wire)["bodies-fetched"] > 0
        assert memory(wire)["bodies-on-disk"] == memory(wire)["memory-bodies"] == 0


def test_bodies_on_their_way_leave_the_order_of_replies_alone(tmp_path):
    jobs = 400
    with one_client(tmp_path, *LITTLE) as (_, wire):
        fill(wire, 1, jobs)
        for number in range(1, jobs + 1):
            peeked = 1 + number * 7 % jobs
            wire.send(
                b"list-tube-used\r\npeek %d\r\nreserve\r\ntouch %d\r\n%bbury %d 0\r\nstats-job %d\r\n"
                % (peeked, number, put_bytes(b"small", delay_s=1000), number, number)
            )
            assert wire.reply() == "USING default"
            assert wire.reply() == f"FOUND {peeked} {SIZE}"
            assert wire.body == body(peeked)
            assert wire.reply() == f"RESERVED {number} {SIZE}"
            assert wire.body == body(number)
            assert wire.reply() == "TOUCHED"
            assert wire.reply() == f"INSERTED {jobs + number}"
            assert wire.reply() == "BURIED"
            assert wire.reply().startswith("OK ")
            assert b"\nstate: buried\n" in wire.body
        assert memory(wire)["bodies-fetched"] > jobs // 4


def test_waiting_client_gets_a_job_whose_body_is_on_disk(tmp_path):
    jobs = 400
    with one_client(tmp_path, *LITTLE) as (server, wire):
        wire.ask("pause-tube default 1000")
        fill(wire, 1, jobs)
        with Wire(server.connect()) as worker, Wire(server.connect()) as leaver:
            leaver.send(b"reserve\r\n" * 50)
            worker.send(b"reserve\r\n" * (jobs // 2) + b"list-tube-used\r\n")
            assert wire.ask("pause-tube default 0") == "PAUSED"
            leaver.close()
            seen = {}
            for _ in range(jobs // 2):
                _, number, _ = worker.reply().split()
                seen[int(number)] = worker.body
            assert worker.reply() == "USING default"
            assert all(seen[number] == body(number) for number in seen)
            assert len(seen) == jobs // 2


def fill_up(wire, size):
    """Put until puts are refused; return the number of each job's body, by id."""
    jobs, last, at_once = {}, 0, 500
    while True:
        answers = fill(wire, last + 1, at_once, size)
        for number, answer in enumerate(answers, last + 1):
            if answer != "OUT_OF_MEMORY":
                jobs[int(answer.removeprefix("INSERTED "))] = number
        if set(answers) == {"OUT_OF_MEMORY"}:
            if at_once == 1:
                return jobs
            # What was buffered counts until the next batch: some more may fit.
            assert wire.ask("pause-tube default 0") == "PAUSED"
            at_once = 1
        last += len(answers)


@pytest.mark.parametrize(("size", "flags"), [(8, ()), (8, ("--no-journal",)), (SIZE, ("--no-journal",))])
def test_at_the_bound_puts_are_refused_and_all_else_goes_on(tmp_path, size, flags):
    with one_client(tmp_path, *flags, "--max-memory", "16MiB", "--fsync", "never") as (server, wire):
        jobs = fill_up(wire, size)
        facts = memory(wire)
        # Data that is being sent takes a part of it as well. Between two batches, jobs count only with their bodies.
        assert 16 * MIB - AT_ONCE * size - MIB < facts["memory-used"] < 17 * MIB
        assert facts["puts-out-of-memory"] > 0

        def is_refused():
            # Some more may be accepted, if what was put last counts with more until a batch takes it.
            answer = wire.ask(f"put 0 0 10 {size}", body(0, size))
            if answer != "OUT_OF_MEMORY":
                jobs[int(answer.removeprefix("INSERTED "))] = 0
            return answer == "OUT_OF_MEMORY"

        until(is_refused)
        assert wire.ask("reserve") == f"RESERVED 1 {size}"
        assert wire.ask("release 1 0 0") == "RELEASED"
        assert wire.ask("reserve-job 2") == f"RESERVED 2 {size}"
        assert wire.body == body(2, size)
        assert wire.ask("bury 2 0") == "BURIED"
        assert wire.ask("kick 1") == "KICKED 1"
        drain(wire, dict(sorted(jobs.items())[: len(jobs) // 4]), size)
        until(lambda: wire.ask(f"put 0 0 10 {size}", body(0, size)).startswith("INSERTED"))
        until(lambda: "memory has room again: puts are accepted" in server.log_text())
        assert server.log_text().count("out of memory: puts are refused until there is room again") == 1


def taken_kb(directory):
    """Return the peak size of an empty server's address space."""
    with start_beanlite(directory) as server:
        status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    (taken_kb,) = map(int, re.findall(r"VmPeak:\s+(\d+) kB", status))
    return taken_kb


def test_under_a_ulimit_a_server_is_filled_killed_started_and_drained(tmp_path):
    before = f"ulimit -v {taken_kb(tmp_path / 'empty') + 150 * 1024}"
    jobs = {}
    for _ in range(3):
        with one_client(tmp_path, "--fsync", "never", "--body-memory", "16MiB", before=before) as (server, wire):
            assert 'max_memory_from="ulimit -v"' in server.log_text()
            drain(wire, jobs)
            answers = fill(wire, 1, 3000)
            jobs = {int(answer.removeprefix("INSERTED ")): number for number, answer in enumerate(answers, 1)}
            facts = memory(wire)
            assert facts["memory-used"] <= facts["memory-max"]
            assert facts["bodies-on-disk"] > 100
            server.kill()
    with one_client(tmp_path, before=before) as (_, wire):
        drain(wire, jobs)
