"""What a command costs, in calls and rows rather than in seconds: these are the same on every machine.

To raise a limit is a decision, to be made with a measurement.
"""

import gc
import sys
import tracemalloc

from beanlite.journal.sqlite.served.batch import batch_of

PUT = b"put 1024 0 60 100\r\n" + b"x" * 100 + b"\r\n"
# Calls of Python functions, and of C functions from Python. When compiled, most of the former are direct calls of C,
# while the latter look up a method, apart from len(), of which a reserve has two.
CALLS = {"list-tube-used": (7, 7), "put": (14, 9), "reserve": (14, 12), "delete": (12, 10)}
BYTES_A_JOB = 450  # with a body of 100 bytes


def calls_of(do):
    """How many Python functions `do` calls, not counting itself, and how many C functions they call."""
    seen = {"call": 0, "c_call": 0}
    gc.disable()  # a collection calls what others have put into gc.callbacks, as Hypothesis does

    def note(_frame, event, _argument):
        if event in seen:
            seen[event] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(before)
        gc.enable()
    return seen["call"] - 1, seen["c_call"] - 1  # setprofile itself


def costs(core):
    """The calls of each command of a cycle, from the client's bytes to the reply's."""
    client = core.client()

    def run(data):
        return calls_of(lambda: (client.receive(data, core.now_ns), client.take_replies()))

    run(PUT)  # the first one makes the client a producer, and its line is read
    run(b"reserve\r\ndelete %d\r\n" % core.engine.last_id)
    found = {"list-tube-used": run(b"list-tube-used\r\n"), "put": run(PUT), "reserve": run(b"reserve\r\n")}
    found["delete"] = run(b"delete %d\r\n" % core.engine.last_id)
    core.close(client)
    return found


def test_calls_of_each_command(core):
    found = costs(core)
    for command, (python, c) in CALLS.items():
        assert found[command][0] <= python, command
        assert found[command][1] <= c, command


def test_a_command_costs_the_same_beside_many_tubes_clients_and_jobs(core):
    alone = costs(core)
    producer = core.client()
    for number in range(2_000):
        core.send(producer, b"use tube-%d\r\n" % number + PUT)
        core.send(producer, b"put 0 %d 60 0\r\n\r\n" % (number + 1))
        core.send(core.client(), b"watch idle-%d\r\nignore default\r\nreserve\r\n" % number)
    assert costs(core) == alone


def test_part_of_a_body_costs_the_same_however_many_came_before(core):
    class Part(bytes):
        __slots__ = ()

        def __len__(self):  # which is a call that is counted, unlike that of bytes
            return super().__len__()

    client = core.client()
    client.receive(b"put 0 0 60 1000\r\n", core.now_ns)
    found = {calls_of(lambda: (client.receive(Part(b"x"), core.now_ns), client.pending)) for _ in range(100)}
    assert client.pending == 100
    assert len(found) <= 2  # that of the first one, and that of the others


def test_memory_of_a_job(core):
    client = core.client()
    core.send(client, PUT * 10)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10_000):
            core.now_ns += 1
            core.send(client, PUT)
        core.store()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 10_000 < BYTES_A_JOB


def statements_of(journal, core):
    """The statements of a batch with what the core's clients have done."""
    batch = batch_of(core.store(), journal.chronicle.history)
    seen = []
    journal._db.set_trace_callback(seen.append)
    journal.write(batch)
    journal._db.set_trace_callback(None)
    return [statement.split()[0] for statement in seen if "INTO server" not in statement]  # which is up to the time


def test_statements_of_a_batch(core, journal):
    client = core.client()
    fixed = ["BEGIN", "COMMIT"]
    inserts = ["INSERT"] * -(-100 // 16)
    core.send(client, PUT * 100)
    assert sorted(statements_of(journal, core)) == sorted([*fixed, "PRAGMA", *inserts, "UPDATE"])  # ids are promised
    core.send(client, PUT * 100)
    assert sorted(statements_of(journal, core)) == sorted([*fixed, *inserts])
    core.send(client, b"reserve\r\n" * 10)
    core.send(client, b"".join(b"delete %d\r\n" % job_id for job_id in range(1, 91)))
    assert sorted(statements_of(journal, core)) == sorted([*fixed, "DELETE"])  # one run of ids


def test_what_is_put_and_deleted_within_a_batch_is_not_written(core, journal):
    client = core.client()
    core.send(client, PUT)
    statements_of(journal, core)
    core.send(client, PUT * 100)
    core.send(client, b"".join(b"reserve-job %d\r\ndelete %d\r\n" % (job_id, job_id) for job_id in range(2, 102)))
    assert sorted(statements_of(journal, core)) == ["BEGIN", "COMMIT"]
