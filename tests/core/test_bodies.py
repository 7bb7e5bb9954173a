"""Which bodies are left to the journal, and which are fetched ahead."""

import os
import random

import pytest

from beanlite.core import bodies as bodies_module, table as table_module
from beanlite.core.bodies import LOOKED_AT_MAX
from beanlite.core.job import READY
from beanlite.core.memory import BODY_BYTES
from tests.support.core import put, stored_job
from tests.support.fetching import FetchingCore

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))
BODY = b"x" * 952
EACH = len(BODY) + BODY_BYTES
"""What a job with this body has in memory: 1000 bytes."""


def room_for(jobs):
    return FetchingCore(body_max_bytes=jobs * EACH)


def put_many(core, client, jobs, pri=0):
    return [put(core, client, BODY, pri) for _ in range(jobs)]


def loaded(core):
    jobs = core.engine.jobs
    return [job_id for _, part in jobs.segments() for job_id in sorted(part) if jobs[job_id].body is not None]


# -- out of memory


def test_nothing_is_unloaded_before_it_is_stored():
    core = room_for(5)
    client = core.client()
    batches = []
    for _ in range(3):
        jobs = put_many(core, client, 10)
        batches.append((core.engine.take_changes(deferred=False), jobs))
    assert core.engine.memory.unloaded == 0
    for changes, jobs in batches:
        core.engine.stored(changes.batch, changes.last_id)
        assert set(loaded(core)) >= set(range(jobs[-1] + 1, 31))
    assert core.engine.memory.unloaded == 25


def test_while_there_is_room_all_bodies_stay():
    core = room_for(20)
    client = core.client()
    for _ in range(20):
        put(core, client, BODY)
        core.store()
        assert core.engine.memory.unloaded == 0
    put(core, client, BODY)
    core.store()
    assert core.engine.memory.unloaded == 1


def test_later_jobs_are_unloaded_first_but_not_the_very_latest():
    core = room_for(20)
    client = core.client()
    for _ in range(100):
        put(core, client, BODY)
        core.store()
    assert loaded(core) == [*range(1, 16), *range(96, 101)]
    core.compare_counts()


def test_large_batch_unloads_earlier_jobs_the_latest_of_them_first():
    core = room_for(20)
    client = core.client()
    put_many(core, client, 15)
    core.store()
    core.send(client, b"put 0 0 10 10000\r\n%b\r\n" % (b"x" * 10_000))
    core.store()
    assert core.engine.jobs[16].body is None
    for _ in range(3):
        put(core, client, BODY)
        core.store()
    core.engine.bound_memory(1 << 40, 5 * EACH, fetches=True)
    core.store()
    assert loaded(core) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("fetches", [True, False])
def test_a_journal_that_fetches_no_bodies_is_not_left_any(fetches):
    core = room_for(1)
    core.engine.bound_memory(1 << 40, 0, fetches=fetches)
    put_many(core, core.client(), 5)
    core.store()
    assert core.engine.memory.unloaded == (5 if fetches else 0)


def test_jobs_that_take_all_memory_leave_bodies_a_part_of_it():
    core = FetchingCore(max_bytes=1 << 20, body_max_bytes=1 << 19)
    memory = core.engine.memory
    assert memory.body_room_bytes == 1 << 19
    assert memory.body_room_beside(1 << 20) == (1 << 16) - (1 << 16) // 5  # some of it is lost to gaps
    assert memory.body_room_beside((1 << 20) - 100_000) == (100_000 - memory.other_bytes) * 4 // 5


def restored(core, ids):
    """As after a start that had room for all bodies."""
    core.engine.restore([stored_job(n, core.now_ns, body=BODY) for n in ids], core.now_ns)
    core.shelf |= dict.fromkeys(ids, BODY)
    core.engine.recovered(ids[-1], 1)


def test_after_a_start_the_earliest_jobs_are_not_the_ones_that_go():
    core = room_for(20)
    restored(core, range(1, 20))
    client = core.client()
    for _ in range(10):
        put(core, client, BODY)
        core.store()
    assert loaded(core) == [*range(1, 20), 29]


def test_jobs_with_far_larger_ids_than_the_rest_go_at_once():
    """As when a backlog that nearly fills the room has stood for long beside jobs that have come and gone."""
    core = room_for(20)
    client = core.client()
    put_many(core, client, 16)
    core.store()
    engine = core.engine
    engine.last_id = engine.ledger.taken_id = engine.ledger.stored_id = 1000 * LOOKED_AT_MAX
    for _ in range(3):
        put_many(core, client, 10)
        core.store()
        core.store()  # what is looked at for a batch has a bound
        assert engine.memory.body_bytes <= 20 * EACH


@pytest.mark.parametrize("is_put", [False, True])
def test_older_jobs_are_unloaded_if_no_newest_one_is_left_or_stored(monkeypatch, is_put):
    monkeypatch.setattr(table_module, "NEWEST_MAX", 20)
    core = room_for(40)
    client = core.client()
    put_many(core, client, 20)
    core.store()
    changes = core.engine.take_changes(deferred=False)
    assert not core.engine.jobs.newest
    if is_put:
        put(core, client, BODY)
    core.engine.bound_memory(1 << 40, 5 * EACH, fetches=True)
    core.engine.stored(changes.batch, changes.last_id)
    assert loaded(core) == [*[21] * is_put, 1, 2, 3, 4, 5]
    core.compare_counts()


# -- into memory


def test_whoever_waits_for_a_body_will_need_the_next_ones():
    core = room_for(20)
    client = core.client()
    for _ in range(100):
        put(core, client, BODY)
        core.store()
    for job_id in range(1, 16):
        assert core.send(client, b"reserve\r\n").startswith(b"RESERVED %d " % job_id)
        assert not core.engine.bodies.due
        core.send(client, b"delete %d\r\n" % job_id)
    assert core.send(client, b"reserve\r\n").startswith(b"RESERVED 16 ")
    ahead = list(range(17, 27))  # half of the room is for these
    assert [job.id for job in core.fetch_ahead()] == ahead
    assert loaded(core) == [*ahead, *range(96, 101)]
    for job_id in ahead:
        assert bool(core.engine.bodies.due) == (job_id >= ahead[len(ahead) // 2])  # half of them are left
        assert core.send(client, b"reserve\r\n").startswith(b"RESERVED %d " % job_id)
        assert core.engine.jobs[job_id].body is None  # it is handed out, and the file has it
    assert core.engine.bodies.due
    core.compare_counts()


def test_what_a_small_body_takes_besides_its_content_counts_as_well():
    core = FetchingCore(body_max_bytes=0)
    client = core.client()
    for _ in range(100):
        put(core, client, b"x")
    core.store()
    assert loaded(core) == []
    core.engine.bound_memory(1 << 40, 20 * (1 + BODY_BYTES), fetches=True)
    core.engine.bodies.due[core.engine.tubes[b"default"]] = None
    assert len(core.fetch_ahead()) == 10  # half of the room
    core.compare_counts()


def test_each_job_is_fetched_ahead_once_in_the_order_of_the_queue():
    core = room_for(0)
    client = core.client()
    pris = random.Random(SEED).choices(range(100), k=100)
    jobs = [put(core, client, BODY, pri) for pri in pris]
    core.store()
    assert loaded(core) == []
    core.engine.bound_memory(1 << 40, 1000 * EACH, fetches=True)
    # The entry of a job that leaves the middle of a heap stays there for a while, even if the job comes back elsewhere.
    for job_id in jobs[30:40]:
        core.send(client, b"reserve-job %d\r\nbury %d 0\r\n" % (job_id, job_id))
    tube = core.engine.tubes[b"default"]
    for number, job_id in enumerate([*jobs[:30], *jobs[40:]]):
        if number >= 30 and len(tube.ready.keys) > len(tube.ready):  # the heap may just have been cleared of them
            break
        core.send(client, b"reserve-job %d\r\nrelease %d %d 0\r\n" % (job_id, job_id, job_id))
    assert len(tube.ready.keys) > len(tube.ready)
    ready = [job for job in core.engine.jobs.newest.values() if job.state is READY and job.body is None]
    core.engine.bodies.due[tube] = None
    fetched = [job.id for job in core.fetch_ahead()]
    assert fetched == [job.id for job in sorted(ready, key=lambda job: (job.pri, job.id))], f"MODEL_SEED={SEED}"
    assert core.engine.bodies.due == {}
    core.compare_counts()


def test_very_many_tubes_are_looked_at_in_slices(monkeypatch):
    monkeypatch.setattr(bodies_module, "LOOKED_AT_MAX", 10)
    core = room_for(0)
    client = core.client()
    for number in range(30):
        core.send(client, b"use %d\r\nwatch %d\r\n" % (number, number))
        put(core, client, BODY)
        core.store()
    last = put(core, client, BODY)
    core.store()
    for job_id in range(1, 31):
        assert core.send(client, b"reserve\r\n").startswith(b"RESERVED %d " % job_id)
    core.engine.bound_memory(1 << 40, 1000 * EACH, fetches=True)
    fetched = []
    for left in (20, 10, 0):
        fetched += [job.id for job in core.fetch_ahead()]
        assert len(core.engine.bodies.due) == left
    assert fetched == [last]
    core.compare_counts()


def test_no_more_is_fetched_ahead_in_one_go_than_is_handed_out_soon(monkeypatch):
    monkeypatch.setattr(bodies_module, "AHEAD_JOBS", 10)
    core = room_for(1000)
    client = core.client()
    core.engine.bound_memory(1 << 40, 0, fetches=True)
    put_many(core, client, 50)
    core.store()
    core.engine.bound_memory(1 << 40, 1000 * EACH, fetches=True)
    assert core.send(client, b"reserve\r\n").startswith(b"RESERVED 1 ")
    assert [job.id for job in core.fetch_ahead()] == list(range(2, 12))
    for job_id in range(2, 7):
        assert not core.engine.bodies.due
        assert core.send(client, b"reserve\r\n").startswith(b"RESERVED %d " % job_id)
    assert [job.id for job in core.fetch_ahead()] == list(range(12, 22))  # long before it has none left
    monkeypatch.setattr(bodies_module, "AHEAD_BYTES", 2 * len(BODY))
    core.engine.bodies.due[core.engine.tubes[b"default"]] = None
    assert [job.id for job in core.fetch_ahead()] == [22, 23]


def test_bodies_fetched_ahead_for_all_tubes_share_half_of_the_room():
    core = room_for(0)
    client = core.client()
    for tube in (b"one", b"two"):
        core.send(client, b"use %b\r\nwatch %b\r\n" % (tube, tube))
        put_many(core, client, 20)
    core.store()
    core.engine.bound_memory(1 << 40, 20 * EACH, fetches=True)
    core.engine.bodies.due[core.engine.tubes[b"one"]] = None
    assert [job.id for job in core.fetch_ahead()] == list(range(1, 11))
    core.engine.bodies.due[core.engine.tubes[b"two"]] = None
    assert core.fetch_ahead() == []
    core.compare_counts()


def test_job_that_has_moved_is_fetched_ahead_for_its_own_tube_only():
    """Its entry in the heap of the other one may still be there."""
    core = room_for(20)
    rows = [stored_job(job_id, core.now_ns, body=952, tube=b"one") for job_id in range(1, 6)]
    core.engine.restore(rows, core.now_ns)
    core.engine.recovered(5, 1)
    client = core.client()
    core.send(client, b"use two\r\n")
    core.engine.operator.move(core.engine.jobs[2], client.client.use, client.client.peer, core.now_ns)
    core.engine.bodies.due[core.engine.tubes[b"one"]] = None
    assert [job.id for job in core.engine.bodies.take_due()] == [1, 3, 4, 5]


def test_a_body_that_comes_too_late_is_not_kept():
    core = room_for(20)
    core.engine.bound_memory(1 << 40, 0, fetches=True)
    client = core.client()
    jobs = put_many(core, client, 3)
    core.store()
    core.engine.bound_memory(1 << 40, 20 * EACH, fetches=True)
    on_its_way = [core.engine.jobs[job_id] for job_id in jobs]
    core.send(client, b"delete %d\r\n" % jobs[1])
    for job in (*on_its_way, *on_its_way):
        core.engine.bodies.load(job, BODY)
    assert on_its_way[1].body is None
    assert loaded(core) == [jobs[0], jobs[2]]
    core.compare_counts()


def test_looking_at_a_job_does_not_make_the_next_ones_needed():
    core = room_for(0)
    client = core.client()
    put_many(core, client, 3)
    core.store()
    assert core.send(client, b"peek 1\r\n") == b"FOUND 1 952\r\n%b\r\n" % BODY
    assert not core.engine.bodies.due
    assert core.engine.jobs[1].body is None


def test_fetcher_is_told_once_that_bodies_are_due():
    core = room_for(0)
    told = []
    core.engine.bodies.attach(lambda: told.append(1))
    client = core.client()
    put_many(core, client, 3)
    core.store()
    core.send(client, b"reserve\r\n" * 3)
    assert told == [1]
    core.engine.bodies.take_due()
    core.send(client, b"release 1 0 0\r\nreserve\r\n")
    core.store()
    assert told == [1, 1]
