"""What the engine hands to the journal, and which replies have to wait for it."""

import sys

import pytest

from beanlite.core import ledger as ledger_module
from beanlite.core.job import DELAYED, GONE, RESERVED, SECOND_NS, SLICE
from beanlite.core.ledger import PASSED_EACH, TALLIES
from beanlite.core.wide import PART
from tests.support.core import put, stored_job


def test_job_deleted_in_the_batch_of_its_put_leaves_only_its_id(core):
    client = core.client()
    job_id = put(core, client)
    core.send(client, b"delete %d\r\n" % job_id)
    changes = core.store()
    assert changes.jobs == []
    assert changes.last_id == job_id


def test_a_job_is_in_a_batch_once_in_its_latest_state(core):
    client = core.client()
    job_id = put(core, client)
    core.send(client, b"reserve\r\nbury %d 7\r\nkick 1\r\nreserve\r\nrelease %d 9 5\r\n" % (job_id, job_id))
    (job,) = core.store().jobs
    assert (job.state, job.pri, job.delay_s) == (DELAYED, 9, 5)
    assert (job.past.timeouts, job.past.releases, job.past.buries, job.past.kicks) == (0, 1, 1, 1)
    assert core.store().jobs == []


def test_a_stored_job_that_is_deleted_is_in_the_next_batch_as_gone(core):
    client = core.client()
    job_id = put(core, client)
    core.store()
    core.send(client, b"delete %d\r\n" % job_id)
    (job,) = core.store().jobs
    assert (job.id, job.state) == (job_id, GONE)


def test_reservations_are_deferred_until_they_are_asked_for(core):
    client = core.client()
    put(core, client)
    core.store()
    core.send(client, b"reserve\r\n")
    assert core.engine.take_changes(deferred=False).jobs == []
    (job,) = core.engine.take_changes(deferred=True).jobs
    assert job.state is RESERVED


def test_deferred_changes_come_a_slice_a_batch_each_job_once(core):
    client = core.client()
    for _ in range(2 * SLICE + 5):
        put(core, client, delay_s=5)
    core.store()
    core.wait(5)
    for job_id in (2, SLICE):
        core.send(client, b"reserve-job %d\r\ndelete %d\r\n" % (job_id, job_id))
    batches = [core.store().jobs for _ in range(4)]
    assert [len(jobs) for jobs in batches] == [SLICE + 2, SLICE, 3, 0]
    assert sorted(job.id for jobs in batches for job in jobs) == list(range(1, 2 * SLICE + 6))


def test_deferred_changes_that_were_taken_along_give_memory_back(core):
    client = core.client()
    ids = [put(core, client) for _ in range(2_000)]
    core.store()
    for _ in ids:
        core.send(client, b"reserve\r\n")
    assert len(core.engine.ledger.deferred) == len(ids)
    for job_id in ids:
        core.send(client, b"bury %d 0\r\n" % job_id)
    core.engine.take_changes(deferred=True)
    assert sys.getsizeof(core.engine.ledger.deferred) < 1_000


def test_no_dict_of_deferred_changes_grows_large_and_all_of_them_come(core, monkeypatch):
    monkeypatch.setattr(ledger_module, "DEFERRED_MAX", 100)
    client = core.client()
    jobs = 4 * SLICE
    for _ in range(jobs):
        put(core, client, delay_s=5)
    core.store()
    core.now_ns += 5 * SECOND_NS
    while core.engine.counts.delayed:
        core.engine.tick(core.now_ns)
        core.engine.ledger.bound_deferred(jobs)
        assert len(core.engine.ledger.deferred) <= 100 + SLICE
    core.send(client, b"delete 3\r\n")
    ids = set()
    while core.engine.ledger.has_deferred:
        changes = core.store()
        assert len(changes.jobs) <= SLICE + 1
        ids.update(job.id for job in changes.jobs)
    assert ids == set(range(1, jobs + 1))


def test_a_deferred_change_of_a_job_deleted_meanwhile_is_written_once(core):
    client = core.client()
    job_id = put(core, client)
    core.store()
    core.send(client, b"reserve\r\ndelete %d\r\n" % job_id)
    (job,) = core.store().jobs
    assert job.state is GONE


def test_batches_are_numbered_without_a_gap(core):
    client = core.client()
    numbers = []
    for _ in range(3):
        put(core, client)
        numbers.append(core.store().batch)
    assert numbers == [1, 2, 3]


@pytest.mark.parametrize(
    ("command", "waits"),
    [
        (b"put 0 0 1 1\r\nx\r\n", True),
        (b"delete 1\r\n", True),
        (b"reserve-job 2\r\nrelease 2 0 0\r\n", True),
        (b"reserve-job 2\r\nbury 2 0\r\n", True),
        (b"kick 1\r\n", True),
        (b"kick-job 3\r\n", True),
        (b"pause-tube default 1\r\n", True),
        (b"reserve\r\n", False),
        (b"reserve-job 2\r\ntouch 2\r\n", False),
        (b"peek 1\r\n", False),
        (b"delete 99\r\n", False),
        (b"kick-job 1\r\n", False),
        (b"stats\r\n", False),
    ],
)
def test_which_replies_wait_for_the_journal(core, command, waits):
    client = core.client()
    for delay_s in (0, 0, 100):
        put(core, client, delay_s=delay_s)
    core.store()
    client.receive(command, core.now_ns)
    assert client.waits is waits


def test_job_that_is_not_stored_yet_is_neither_handed_out_nor_shown(core):
    producer, worker, looker = core.client(), core.client(), core.client()
    core.send(worker, b"reserve\r\n")
    producer.receive(b"put 0 0 10 1\r\nx\r\n", core.now_ns)
    ((woken, job),) = core.engine.clients.take_woken()
    assert woken is worker.client
    worker.wake(job)
    assert worker.waits
    looker.receive(b"peek 1\r\n", core.now_ns)
    assert looker.waits
    core.store()
    looker.take_replies()
    looker.receive(b"peek 1\r\n", core.now_ns)
    assert not looker.waits


def test_tubes_that_are_made_and_left_do_not_pile_up_for_their_totals(core):
    client = core.client()
    for batch in range(60):
        for number in range(2 * TALLIES):
            core.send(client, b"use %d-%d\r\nput 0 0 60 1\r\nx\r\n" % (batch, number))
            core.send(client, b"delete %d\r\n" % core.engine.last_id)
        core.engine.take_changes(deferred=True, totals=True, now_ns=core.now_ns)
        assert len(core.engine.ledger.tallied) <= TALLIES


def test_totals_of_many_tubes_that_are_there_are_taken_in_slices(core):
    client = core.client()
    for number in range(20 * TALLIES):
        core.send(client, b"use %d\r\nput 0 0 60 1\r\nx\r\n" % number)
    changes = core.engine.take_changes(deferred=True, totals=True, now_ns=core.now_ns)
    assert len(changes.tallies) == TALLIES


def test_deferred_changes_of_the_same_jobs_do_not_pile_up(core, monkeypatch):
    monkeypatch.setattr(ledger_module, "DEFERRED_MAX", 10)
    client = core.client()
    jobs = [put(core, client, ttr_s=1000) for _ in range(40)]
    core.store()
    for _ in jobs:
        core.send(client, b"reserve\r\n")
    for _ in range(100):
        for job_id in jobs:
            core.send(client, b"touch %d\r\n" % job_id)
        core.engine.ledger.bound_deferred(len(core.engine.jobs))
    earlier = core.engine.ledger._older_deferred
    assert len(earlier) <= 2 * len(jobs) // 10 + 1
    while core.engine.ledger.has_deferred:
        core.store()
    assert not earlier


def test_deleted_jobs_are_not_kept_behind_deferred_changes_of_others(core, monkeypatch):
    monkeypatch.setattr(ledger_module, "DEFERRED_MAX", 10)
    client, ledger = core.client(), core.engine.ledger
    for _ in range(20):
        put(core, client, delay_s=5)
    core.wait(5)
    ledger.bound_deferred(20)
    assert not ledger.deferred
    job_id = put(core, client, pri=0)
    core.engine.take_changes(deferred=False)
    core.send(client, b"reserve-job %d\r\ndelete %d\r\n" % (job_id, job_id))
    assert not ledger.deferred
    job_id = put(core, client)
    core.send(client, b"reserve-job %d\r\ndelete %d\r\n" % (job_id, job_id))
    assert not ledger.deferred


def test_batch_passes_few_deferred_changes_of_deleted_jobs(core, monkeypatch):
    monkeypatch.setattr(ledger_module, "DEFERRED_MAX", 10)
    monkeypatch.setattr(ledger_module, "SLICE", 5)
    client, ledger = core.client(), core.engine.ledger
    jobs = [put(core, client, ttr_s=1000) for _ in range(300)]
    core.store()
    for _ in jobs:
        core.send(client, b"reserve\r\n")
        ledger.bound_deferred(10_000)
    for job_id in jobs[:-1]:
        core.send(client, b"delete %d\r\n" % job_id)
    looks = 5 + 5 * PASSED_EACH
    for batch in range(1, 4):
        ledger._take_deferred()
        assert sum(map(len, ledger._older_deferred)) == 297 - batch * looks
    ledger._take_deferred()
    assert ledger.changed[jobs[-1]].state is RESERVED
    assert not ledger.has_deferred


def test_jobs_that_a_start_makes_ready_are_not_all_in_one_dict(core, monkeypatch):
    monkeypatch.setattr(ledger_module, "DEFERRED_MAX", 10)
    rows = [stored_job(job_id, core.now_ns, state="reserved") for job_id in range(1, 101)]
    core.engine.restore(rows, core.now_ns)
    ledger = core.engine.ledger
    assert max(map(len, (*ledger._older_deferred, ledger.deferred))) == 11
    core.engine.recovered(100, 1)
    assert [job.id for job in ledger.take_restarted(core.now_ns).jobs] == list(range(1, 101))


def test_what_nobody_needs_recorded_any_more_is_freed_in_parts(core):
    client, ledger = core.client(), core.engine.ledger
    ledger.start_recording()
    for _ in range(3 * PART):
        put(core, client, delay_s=5)
    core.store()
    core.wait(5)
    events = len(ledger._waiting)
    assert events == 3 * PART
    ledger.stop_recording()
    assert len(ledger._waste) == 1
    assert not ledger._waiting
    batches = 0
    while ledger._waste:
        core.store()
        batches += 1
    assert batches > 3


def test_earliest_deferred_changes_are_taken_first(core, monkeypatch):
    monkeypatch.setattr(ledger_module, "DEFERRED_MAX", 10)
    client = core.client()
    put(core, client)
    for number in range(3):
        core.engine.ledger.deferred = dict.fromkeys(range(100 * number, 100 * number + 11), core.engine.jobs[1])
        core.engine.ledger.bound_deferred(1000)
    core.engine.ledger.slices = 1
    monkeypatch.setattr(ledger_module, "SLICE", 5)
    core.engine.ledger._take_deferred()
    assert set(core.engine.ledger.changed) == {0, 1, 2, 3, 4}
