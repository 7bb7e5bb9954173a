"""What rules do to many jobs is done in slices, and nobody waits for it."""

from zlib import crc32

import pytest

from beanlite.core.job import SECOND_NS, SLICE
from beanlite.core.ledger import BYTES_AT_ONCE
from tests.support.core import Core, put
from tests.support.ruled_core import change, policy, state


def test_wait_ends_while_a_policy_is_applied_to_many_jobs():
    core = Core()
    producer, worker = core.client(), core.client()
    for _ in range(4 * SLICE):
        put(core, producer)
    assert core.send(worker, b"watch empty\r\nignore default\r\nreserve-with-timeout 1\r\n").endswith(b"WATCHING 1\r\n")
    core.now_ns += 2 * SECOND_NS
    policy(core, unique="present")
    core.engine.tick(core.now_ns)
    core.now_ns += SECOND_NS // 10
    core.engine.tick(core.now_ns)
    core._wake()
    assert worker.take_replies() == b"TIMED_OUT\r\n"
    assert core.engine.timers.next_ns <= core.now_ns


def test_jobs_put_while_a_policy_reaches_other_tubes_are_known():
    core = Core()
    client = core.client()
    put(core, client)
    for number in range(2 * SLICE):
        core.send(client, b"watch t%d\r\n" % number)
    policy(core, b"*", ttl="1s", unique="present")
    late = core.engine.tubes[b"default"]
    assert late.rules is None
    for number in range(SLICE):
        put(core, client, body=b"%d" % number)
    core.wait(0)
    assert (late.kept.expiry_count, late.kept.twin_count) == (SLICE + 1, SLICE + 1)


def test_large_bodies_are_entered_in_slices_by_their_size():
    core = Core(max_job_size=1 << 20)
    producer = core.client()
    for each in range(8):
        put(core, producer, body=bytes([each]) * (1 << 20))
    policy(core, unique="present")
    kept = core.engine.tubes[b"default"].kept
    assert 0 < kept.twin_count < 8
    core.wait(0)
    assert kept.twin_count == 8


def test_large_dead_jobs_are_moved_to_a_unique_tube_in_slices():
    core = Core(max_job_size=1 << 20)
    policy(core, max_tries=1, then="move:dead")
    policy(core, b"dead", unique="present")
    worker = core.client()
    for each in range(8):
        put(core, worker, body=bytes([each]) * (1 << 20))
        assert core.send(worker, b"reserve\r\n").startswith(b"RESERVED")
    core.close(worker)
    assert 0 < len(core.engine.tubes[b"dead"].ready) < 8
    core.wait(0)
    assert len(core.engine.tubes[b"dead"].ready) == 8


def test_wakes_by_expired_jobs_that_move_are_counted():
    core = Core()
    policy(core, ttl="1s", expired="move:old")
    producer = core.client()
    watches = b"".join(b"watch w%d\r\n" % each for each in range(160))
    for _ in range(100):
        worker = core.client()
        core.send(worker, watches + b"watch old\r\nignore default\r\nreserve\r\n")
        put(core, producer)
    core.now_ns += 2 * SECOND_NS
    core.engine.tick(core.now_ns)
    assert 0 < len(core.engine.clients.woken) < 100


def test_body_fetched_ahead_is_known_to_the_unique_tube_it_moves_to():
    core = Core()
    policy(core, ttl="1s", expired="move:old")
    policy(core, b"old", unique="present")
    producer = core.client()
    put(core, producer, body=b"again")
    core.store()
    bodies, job = core.engine.bodies, core.engine.jobs[1]
    bodies.unload(job)
    bodies.load(job, b"again")
    core.wait(2)
    assert job.tube.name == b"old"
    assert job.body is None
    core.send(producer, b"use old\r\nput 1 0 60 5\r\nagain\r\n")
    assert producer.gathering.jobs == [job]


def test_expired_jobs_are_not_deleted_faster_than_batches_are_taken():
    core = Core()
    producer = core.client()
    for _ in range(20 * SLICE):
        put(core, producer)
    core.store()
    policy(core, ttl="1s", expired="delete")
    core.wait(5)
    engine = core.engine
    assert 0 < len(engine.ledger.changed) < 10 * SLICE
    assert core.now_ns < engine.timers.next_ns < core.now_ns + SECOND_NS // 10
    while engine.jobs.newest:
        core.store()
        core.wait(0.01)
    assert engine.counts.expiries == 0


def test_expired_jobs_with_large_bodies_are_deleted_a_few_a_batch():
    core = Core()
    core.engine.ledger.start_recording()
    core.engine.ledger.keeps_bodies = True
    producer = core.client()
    size, jobs = 60_000, 5 * BYTES_AT_ONCE // 60_000
    for _ in range(jobs):
        put(core, producer, body=b"x" * size)
    core.store()
    policy(core, ttl="1s", expired="delete")
    left = len(core.engine.jobs)
    while left:
        core.wait(1.1)
        changes = core.store()
        assert 0 < sum(event.size for event in changes.events) < BYTES_AT_ONCE + size
        assert len(core.engine.jobs) < left
        left = len(core.engine.jobs)


def test_what_a_tube_knew_of_many_jobs_is_freed_in_slices():
    core = Core()
    policy(core, unique="present", ttl="1d")
    producer = core.client()
    for each in range(20 * SLICE):
        put(core, producer, body=b"%d" % each)
    core.engine.set_policies([], [(b"default", "unique"), (b"default", "ttl")], core.now_ns)
    ruled = core.engine._queues.ruled
    assert len(ruled.waste) == 1
    core.engine.tick(core.now_ns)
    assert len(ruled.waste) == 1
    core.wait(0)
    assert not ruled.waste
    assert (core.engine.counts.twins, core.engine.counts.expiries) == (0, 0)


def test_put_does_not_pass_reserved_jobs_with_its_body():
    core = Core()
    policy(core, unique="waiting")
    client = core.client()
    for _ in range(5):
        put(core, client)
        assert core.send(client, b"reserve\r\n").startswith(b"RESERVED")
    kept = core.engine.tubes[b"default"].kept
    key = kept.twin_key(1, crc32(b"x"))
    assert list(kept.twins(key)) == []
    assert core.send(client, b"release 3 0 0\r\n") == b"RELEASED\r\n"
    assert list(kept.twins(key)) == [3]
    assert put(core, client) == 3


@pytest.mark.parametrize("expired", ["delete", "bury", "move:old"])
@pytest.mark.parametrize("many", [False, True])
def test_put_is_not_answered_with_a_job_that_is_too_old(expired, many):
    """Its turn to be ended has not come yet."""
    core = Core()
    policy(core, unique="waiting", ttl="60s", expired=expired)
    session = core.client(operator=True)
    put(core, session, body=b"again", ttr_s=1000)
    core.now_ns += 61 * SECOND_NS
    if many:
        request = b'{"jobs": [{"tube": "default", "body": "again"}]}'
        core.send(session, b"put-jobs %d\r\n%b\r\n" % (len(request), request))
    else:
        assert put(core, session, body=b"again") == 2
    core.wait(2)
    job = core.engine.jobs[2]
    assert (job.tube.name, job.state.value, job.body) == (b"default", "ready", b"again")


def release_too_old(core, client):
    """Put a job, and give it back after a minute."""
    put(core, client, ttr_s=1000)
    assert core.send(client, b"reserve\r\n")
    core.wait(61)
    assert core.send(client, b"release 1 0 0\r\n") == b"RELEASED\r\n"


@pytest.mark.parametrize("expired", ["bury", "move:default", "move:on"])
def test_job_that_is_too_old_but_stays_in_its_tube_is_repeated(expired):
    core = Core()
    policy(core, b"on", ttl="50s", expired="move:default")  # where it would go on at once
    policy(core, unique="present", ttl="60s", expired=expired)
    client = core.client()
    release_too_old(core, client)
    assert put(core, client) == 1
    core.wait(2)
    assert state(core) == ("buried", "expired")
    assert put(core, client) == 1


def test_job_that_is_too_old_and_leaves_its_tube_is_not_repeated():
    core = Core()
    policy(core, unique="present", ttl="60s", expired="move:old")
    client = core.client()
    release_too_old(core, client)
    assert put(core, client) == 2
    core.wait(2)
    assert core.engine.jobs[1].tube.name == b"old"


def test_buried_jobs_take_no_room_for_bodies_fetched_ahead():
    core = Core()
    policy(core, ttl="1m")
    operator = core.client(operator=True)
    put(core, operator)
    put(core, operator)
    core.store()
    bodies, (expired, by_hand) = core.engine.bodies, (core.engine.jobs[1], core.engine.jobs[2])
    for job in (expired, by_hand):
        bodies.unload(job)
        bodies.load(job, b"x")
    assert bodies.ahead_bytes > 0
    change(core, operator, b'{"do": "bury", "ids": [2]}')
    core.wait(62)
    assert [state(core, job.id)[0] for job in (expired, by_hand)] == ["buried", "buried"]
    assert bodies.ahead_bytes == 0
