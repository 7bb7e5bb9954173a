"""How much memory is taken, by the server's own count, and which puts there is room for."""

import json
import os
import random

import pytest

from beanlite.core.admission import PUT_BYTES
from beanlite.core.kept import KEPT_BYTES
from beanlite.core.memory import (
    BODIES_LEAST,
    BODY_BYTES,
    CLIENT_BYTES,
    JOB_BYTES,
    NO_BOUND,
    PART,
    PAST_BYTES,
    TUBE_BYTES,
    WATCHED_BYTES,
)
from tests.support.core import Core, put
from tests.support.fetching import FetchingCore
from tests.support.operators import Operator
from tests.support.ruled_core import policy

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))
MIB = 1 << 20


def bounded(max_bytes, *, fetches=False):
    core = Core()
    core.engine.bound_memory(max_bytes, max_bytes, fetches=fetches)
    return core


def asked_to_put(core, client, size):
    """What is answered to the line of a put, or to its body if that is let in."""
    return core.send(client, b"put 0 0 10 %d\r\n%b\r\n" % (size, b"x" * size))


def test_each_thing_that_there_is_counts():
    core = bounded(MIB)
    memory = core.engine.memory
    assert memory.used_bytes == TUBE_BYTES  # the default one
    client = core.client()
    assert memory.used_bytes == TUBE_BYTES + CLIENT_BYTES + WATCHED_BYTES
    core.send(client, b"watch other\r\nwatch other\r\n")
    assert memory.used_bytes == 2 * TUBE_BYTES + CLIENT_BYTES + 2 * WATCHED_BYTES
    core.send(client, b"ignore default\r\n")
    job_id = put(core, client, b"x" * 1000)
    core.store()
    body_bytes = (BODY_BYTES + 1000) * 5 // 4  # with the gaps between bodies
    used = 2 * TUBE_BYTES + CLIENT_BYTES + WATCHED_BYTES + JOB_BYTES + body_bytes
    assert memory.used_bytes == used
    memory.buffer_bytes += 5
    assert memory.used_bytes == used + 5
    memory.buffer_bytes -= 5
    core.send(client, b"delete %d\r\n" % job_id)
    core.close(client)
    assert memory.used_bytes == TUBE_BYTES


def test_bodies_never_take_less_than_nothing():
    core = bounded(MIB)
    client = core.client()
    core.send(client, b"delete %d\r\n" % put(core, client, b"x" * 1000))  # before a batch has taken it
    assert b"\nmemory-bodies: 0\n" in core.send(client, b"stats\r\n")


def test_a_put_for_which_there_is_no_room_is_refused_until_there_is():
    core = bounded(MIB)
    client, memory = core.client(), core.engine.memory
    first = put(core, client, b"x" * 60_000)
    core.store()
    answers = [b"INSERTED"]
    while answers[-1].startswith(b"INSERTED"):
        answers.append(asked_to_put(core, client, 60_000))
        core.store()
    assert answers[-1] == b"OUT_OF_MEMORY\r\n"
    assert MIB - 60_000 * 5 // 4 - JOB_BYTES - BODY_BYTES <= memory.used_bytes <= MIB
    assert memory.refused == 1
    assert asked_to_put(core, client, 10).startswith(b"INSERTED")  # for a small one there still is
    assert asked_to_put(core, client, 60_000) == b"OUT_OF_MEMORY\r\n"
    assert core.send(client, b"reserve\r\n").startswith(b"RESERVED %d 60000\r\n" % first)
    assert core.send(client, b"delete %d\r\n" % first) == b"DELETED\r\n"
    core.store()
    assert asked_to_put(core, client, 60_000).startswith(b"INSERTED")
    assert memory.refused == 2


def test_bodies_that_can_be_fetched_need_room_only_for_some():
    core = FetchingCore(max_bytes=MIB, body_max_bytes=MIB)
    client, memory = core.client(), core.engine.memory
    jobs = 0
    while asked_to_put(core, client, 1000).startswith(b"INSERTED"):
        jobs += 1
        core.store()
        assert memory.used_bytes <= MIB + 2000  # the last body is unloaded when it is stored
    assert jobs > 2 * MIB // 1000
    assert memory.job_bytes > MIB - MIB // BODIES_LEAST - 20_000
    assert memory.unloaded > 0
    core.compare_counts()


def test_puts_within_a_batch_use_the_room_up():
    core = bounded(MIB)
    client = core.client()
    room = core.engine.admission.room_bytes
    sizes = [60_000] * (room // 60_000)
    assert all(asked_to_put(core, client, size).startswith(b"INSERTED") for size in sizes)
    assert asked_to_put(core, client, 60_000) == b"OUT_OF_MEMORY\r\n"
    assert core.engine.admission.used_bytes == sum(sizes) + len(sizes) * PUT_BYTES


def test_body_whose_room_is_taken_meanwhile_is_refused_at_its_end():
    core = bounded(MIB)
    client, other = core.client(), core.client()
    core.engine.memory.buffer_bytes = (core.engine.memory.room_bytes - 800) * 5 // 4
    core.store()
    assert core.send(client, b"put 0 0 10 800\r\n") == b""
    put(core, other, b"x" * 800)
    assert core.send(client, b"x" * 800 + b"\r\nlist-tube-used\r\n") == b"OUT_OF_MEMORY\r\nUSING default\r\n"
    assert core.engine.memory.refused == 1


def test_a_put_is_refused_at_its_line_and_its_body_is_not_kept():
    core = bounded(MIB)
    client = core.client()
    core.engine.memory.buffer_bytes = MIB
    core.store()
    assert core.engine.admission.room_bytes < 0
    assert core.send(client, b"put 0 0 10 1000\r\n" + b"x" * 600) == b""
    assert client.pending == 0
    assert core.send(client, b"x" * 400 + b"\r\nput 0 0 10 0\r\n\r\n") == b"OUT_OF_MEMORY\r\n" * 2


@pytest.mark.parametrize(
    ("disk_bytes", "memory_bytes", "refused"),
    [(2000, 1000, 1), (1000, 2000, 0), (1000, NO_BOUND, 0), (NO_BOUND, 1000, 1)],
)
def test_both_disk_and_memory_have_to_have_room(disk_bytes, memory_bytes, refused):
    core = Core()
    client, engine = core.client(), core.engine
    if memory_bytes != NO_BOUND:
        used = engine.memory.used_bytes + JOB_BYTES
        engine.bound_memory(used + (BODY_BYTES + memory_bytes) * 5 // 4, NO_BOUND, fetches=False)
    engine.admission.accept_puts(disk_bytes)
    room = min(disk_bytes, memory_bytes)
    assert engine.admission.room_bytes == room
    assert asked_to_put(core, client, room + 1) == b"OUT_OF_MEMORY\r\n"
    assert engine.memory.refused == refused  # what the disk has no room for is not memory's
    assert asked_to_put(core, client, room).startswith(b"INSERTED")
    core.store()
    engine.admission.refuse_puts()
    assert engine.admission.room_bytes < 0
    assert asked_to_put(core, client, 0) == b"OUT_OF_MEMORY\r\n"
    assert engine.memory.refused == refused
    engine.admission.accept_puts(disk_bytes)
    assert engine.admission.room_bytes == min(disk_bytes, engine.memory.room_bytes)


def test_the_room_is_what_is_left_after_each_batch():
    """Puts, deletes, room on the disk and batches in any order."""
    rng = random.Random(SEED)
    core = bounded(3 * MIB)
    client, engine = core.client(), core.engine
    disk_bytes, put_bytes, jobs = NO_BOUND, 0, []
    for _ in range(3000):
        what = rng.choice(("put", "put", "put", "delete", "delete", "store", "disk"))
        if what == "put":
            size = rng.choice((0, 1, 1000, 60_000))
            answer = asked_to_put(core, client, size)
            if answer.startswith(b"INSERTED"):
                jobs.append(int(answer.split()[1]))
                put_bytes += size
        elif what == "delete" and jobs:
            core.send(client, b"delete %d\r\n" % jobs.pop(rng.randrange(len(jobs))))
        elif what == "store":
            core.store()
            disk_bytes -= put_bytes
            put_bytes = 0
            loaded = sum(engine.jobs[job_id].size + BODY_BYTES for job_id in jobs)
            assert engine.memory.body_bytes == loaded
            assert engine.admission.room_bytes == min(disk_bytes, engine.memory.room_bytes), f"MODEL_SEED={SEED}"
        else:
            disk_bytes = rng.choice((NO_BOUND, 200_000)) + put_bytes  # the batch being gathered still comes out of it
            engine.admission.accept_puts(disk_bytes)
    assert engine.memory.used_bytes <= 3 * MIB + 60_000


def test_job_once_reserved_counts_for_more_until_it_is_deleted():
    core = bounded(MIB)
    client, memory = core.client(), core.engine.memory
    job_id = put(core, client)
    assert memory.job_bytes == JOB_BYTES
    for _ in range(2):
        core.send(client, b"reserve\r\nrelease %d 0 0\r\n" % job_id)
        assert memory.job_bytes == JOB_BYTES + PAST_BYTES
    core.send(client, b"delete %d\r\n" % job_id)
    assert memory.job_bytes == 0


@pytest.mark.parametrize("reserve", [b"", b"reserve\r\nrelease 1 0 0\r\n"])
def test_past_of_a_kicked_job_counts_once(reserve):
    core = Core()
    client, memory = core.client(), core.engine.memory
    core.send(client, b"put 0 60 60 1\r\nx\r\nkick-job 1\r\n" + reserve)
    assert memory.job_bytes == JOB_BYTES + PAST_BYTES
    core.send(client, b"delete 1\r\n")
    assert memory.job_bytes == 0


TUBES_MAX = MIB // PART // TUBE_BYTES


@pytest.mark.parametrize("command", [b"use", b"watch"])
def test_tubes_have_a_sure_part_of_memory_and_more_if_there_is_room(command):
    core = bounded(MIB)
    jobs, client = core.client(), core.client()
    while asked_to_put(core, jobs, 10_000).startswith(b"INSERTED"):
        core.store()
    made = 0
    while True:
        if command == b"use":
            client = core.client()
        answer = core.send(client, command + b" t%d\r\n" % made)
        if answer == b"OUT_OF_MEMORY\r\n":
            break
        made += 1
    assert 0.7 * TUBES_MAX < made < TUBES_MAX
    assert core.refused == ["memory"]
    assert core.send(client, b"use default\r\nuse t1\r\n") == b"USING default\r\nUSING t1\r\n"  # they are there already
    core.engine.memory.max_bytes = 2 * core.engine.memory.used_bytes
    assert core.send(client, command + b" more\r\n") != b"OUT_OF_MEMORY\r\n"


def test_tubes_without_memory_get_no_jobs_by_a_put_or_a_move():
    core = bounded(MIB)
    operator = Operator(core)
    job_id = put(core, core.client())
    core.engine.memory.max_bytes = 1
    assert operator.raw("put-jobs", b'{"jobs": [{"body": "", "tube": "other"}]}') == b"OUT_OF_MEMORY\r\n"
    assert operator.ask("change-jobs", ids=[job_id], do="move", to="other")["stopped"] == "OUT_OF_MEMORY"
    assert list(core.engine.tubes) == [b"default"]


def test_jobs_take_no_room_from_the_tubes_that_were_promised_to_them():
    core = bounded(MIB)
    operator, memory = Operator(core), core.engine.memory
    core.send(core.client(), b"".join(b"watch t%d\r\n" % number for number in range(20)))
    memory.max_bytes = memory.used_bytes + 2 * TUBE_BYTES + 1
    jobs = [{"body": "", "tube": tube} for tube in ("one", "one", "two")]
    assert operator.ask("put-jobs", jobs=jobs) == {"ids": [1, 2, 3]}


def test_tubes_with_rules_are_made_for_all_jobs_of_a_request_or_none():
    core = bounded(MIB)
    operator, memory = Operator(core), core.engine.memory
    policy(core, b"r*", ttl="1d")
    core.send(core.client(), b"".join(b"watch t%d\r\n" % number for number in range(20)))
    tubes, jobs = set(core.engine.tubes), [{"body": "", "tube": tube} for tube in ("r1", "r2", "r3")]
    body = json.dumps({"jobs": jobs}).encode()
    memory.max_bytes = memory.used_bytes + 2 * (TUBE_BYTES + KEPT_BYTES)
    assert operator.raw("put-jobs", body) == b"OUT_OF_MEMORY\r\n"
    assert set(core.engine.tubes) == tubes
    memory.max_bytes = memory.used_bytes + 3 * (TUBE_BYTES + KEPT_BYTES) + 1
    assert operator.ask("put-jobs", jobs=jobs) == {"ids": [1, 2, 3]}
