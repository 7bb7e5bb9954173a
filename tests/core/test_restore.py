"""What the engine takes over from a journal at the start."""

import pytest

from beanlite.core.job import BURIED, DELAYED, READY, SECOND_NS
from tests.support.core import stored_job


def row(job_id, state=None, due_s=None, buried_seq=None, tube=b"default", pri=0, **facts):
    place = buried_seq if due_s is None else due_s * SECOND_NS
    counters = {"reserves": 1, "timeouts": 2, "releases": 3, "buries": 4, "kicks": 5}
    other = {"state": state, "place": place, "tube": tube, "pri": pri, "delay_s": 5, "since_ns": 999_001 * SECOND_NS}
    return stored_job(job_id, 999_000 * SECOND_NS, **(counters | other | facts))


def test_what_is_restored_is_where_it_was(core):
    rows = [
        row(1, "buried", buried_seq=9),
        row(2, "buried", buried_seq=4),
        row(3, "delayed", due_s=1_000_030),
        row(4, "delayed", due_s=999_990),
        row(5, "reserved", due_s=1_000_005),
        row(6, tube=b"other", pri=7),
    ]
    core.engine.restore(rows, core.now_ns)
    client = core.client()
    states = [core.engine.jobs[job_id].state for job_id in range(1, 7)]
    assert states == [BURIED, BURIED, DELAYED, READY, READY, READY]
    assert core.send(client, b"peek-buried\r\n").startswith(b"FOUND 2 ")
    job = core.engine.jobs[1]
    assert (job.reserves, job.past.timeouts, job.past.releases, job.past.buries, job.past.kicks) == (1, 2, 3, 4, 5)
    assert sorted(job.id for job in core.store().jobs) == [4, 5]  # whose state in the file is out of date
    core.wait(30)
    assert core.engine.jobs[3].state is READY


def test_what_is_restored_knows_since_when_who_and_why(core):
    worker = {"holder": "10.0.0.7:1234", "holder_conn": 8}
    rows = [
        row(1, "buried", buried_seq=9, **worker, why="client"),
        row(2, "delayed", due_s=1_000_030),
        row(3, "delayed", due_s=999_990),
        row(4, "reserved", due_s=1_000_005, **worker),
        row(5, since_ns=None),
    ]
    core.engine.restore(rows, core.now_ns)
    jobs = [core.engine.jobs[job_id] for job_id in range(1, 6)]
    start_s = core.now_ns // SECOND_NS
    assert [job.since_ns // SECOND_NS for job in jobs] == [999_001, 999_001, start_s, start_s, start_s]
    assert [job.why for job in jobs] == ["client", None, None, None, None]
    assert [job.last_holder and (job.last_holder.address, job.last_holder.number) for job in jobs] == [
        ("10.0.0.7:1234", 8), None, None, ("10.0.0.7:1234", 8), None,
    ]  # fmt: skip
    assert jobs[0].last_holder is jobs[3].last_holder


def test_a_holder_without_a_connection_is_refused(core):
    with pytest.raises(ValueError, match="a client has no address, or no number"):
        core.engine.restore([row(1, holder="unix")], core.now_ns)


def test_burials_after_a_restart_come_after_those_before_it(core):
    core.engine.restore([row(1, "buried", buried_seq=7), row(2, "buried", buried_seq=3), row(3)], core.now_ns)
    client = core.client()
    core.send(client, b"reserve\r\nbury 3 0\r\n")
    kicked = []
    for _ in range(3):
        kicked.append(int(core.send(client, b"peek-buried\r\n").split()[1]))
        core.send(client, b"kick 1\r\n")
    assert kicked == [2, 1, 3]


def test_a_restored_pause_holds_and_its_end_is_written(core):
    core.engine.restore_pause(b"idle", 60, 1_000_030 * SECOND_NS)
    assert core.send(core.client(), b"stats-tube idle\r\n").endswith(b"pause: 60\npause-time-left: 30\n\r\n")
    core.wait(30)
    (tube,) = core.store().pauses
    assert (tube.name, tube.pause_until_ns) == (b"idle", 0)
    assert b"idle" not in core.engine.tubes


def test_a_tube_that_only_a_restored_pause_kept_ends_with_it(core):
    core.engine.restore_pause(b"idle", 60, 1_000_030 * SECOND_NS)
    client = core.client()
    assert core.send(client, b"pause-tube idle 20\r\nlist-tubes\r\n").endswith(b"- default\n- idle\n\r\n")
    assert core.send(client, b"pause-tube idle 0\r\nlist-tubes\r\n").endswith(b"\n- default\n\r\n")
    (tube,) = core.store().pauses
    assert (tube.name, tube.pause_until_ns) == (b"idle", 0)
