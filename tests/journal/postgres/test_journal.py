"""The journal in PostgreSQL, on a real database: what it stores, and reads back."""

import re
import sqlite3

from beanlite.core.job import BURIED, DELAYED, ID_BITS, READY, SECOND_NS
from beanlite.host.clock import Clock
from beanlite.journal.sqlite.file.database import open_database
from tests.journal.postgres.serving import Postgres, ServingPostgres, served, sql

# The views that have no rows while there is just one job, and those that have some after a second.
EMPTY = {"delayed", "reserved", "buried", "tube_policies", "all_schedules", "events"}
OF_TOTALS = {"hours", "days", "rates"}


def told(core):
    """Return everything that is known of each job; ages and times left are in seconds, by the same clock."""
    tell = {}
    for job_id in range(1, core.engine.last_id + 1):
        job = core.engine.jobs.find(job_id)
        if job is not None:
            near_ns = SECOND_NS // 1000
            due_ns = job.key >> ID_BITS if job.state is not READY else 0
            due_ns //= 1 if job.state is BURIED else near_ns
            past = job.past
            tell[job_id] = (
                job.tube.name, job.state, job.pri, job.delay_s, job.ttr_s, job.created_ns // near_ns, due_ns, job.body,
                job.reserves, past.timeouts, past.releases, past.buries, past.kicks, job.why,
                job.last_holder and (job.last_holder.address, job.last_holder.number),
            )  # fmt: skip
    return tell


async def test_restart_keeps_all_that_is_known_of_jobs_and_pauses(postgres, database):
    serving = await served(database)
    core = serving.core
    worker = core.client()
    for line in (
        b"use mail\r\n", b"watch mail\r\n",
        b"put 5 0 60 5\r\nready\r\n", b"put 4294967295 1000 4294967295 4\r\n\x00\xff\r\n\r\n", b"put 1 0 9 0\r\n\r\n",
        b"put 0 0 60 2000\r\n" + b"x" * 2000 + b"\r\n", b"reserve-job 3\r\n", b"bury 3 7\r\n", b"reserve-job 4\r\n",
        b"release 4 9 0\r\n", b"put 2 0 50 4\r\nkick\r\n", b"reserve-job 5\r\n", b"bury 5 1\r\n", b"kick-job 5\r\n",
        b"pause-tube mail 1000\r\n", b"put 0 0 60 4\r\ngone\r\n", b"delete 6\r\n",
    ):  # fmt: skip
        assert not re.match(rb"NOT_FOUND|BAD|EXPECTED|UNKNOWN", core.send(worker, line)), line
    await serving.put()
    core.send(worker, b"reserve-job 1\r\n")  # reservations are not promised
    before = told(core)
    await serving.stop()
    again = await served(database)
    after = told(again.core)
    assert before[1][1].value == "reserved"
    assert after.pop(1)[1].value == "ready"
    before.pop(1)
    assert after == before
    paused = again.core.engine.tubes[b"mail"]
    assert (paused.pause_s, paused.pause_until_ns // SECOND_NS) == (
        1000,
        core.engine.tubes[b"mail"].pause_until_ns // SECOND_NS,
    )
    assert again.core.engine.last_id == core.engine.last_id
    (totals,) = await sql(postgres, database, "SELECT put, buried, kicked, deleted FROM days WHERE tube = 'mail'")
    assert tuple(totals) == (6, 2, 1, 1)
    await again.stop()


async def test_two_nodes_whose_clocks_differ_have_the_same_time(database):
    serving = await served(database)
    assert serving.core.send(serving.client, b"put 0 1000 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
    await serving.put()
    await serving.stop()
    other = ServingPostgres(Postgres(database))
    clock = Clock(utc_ns=lambda: Clock().utc_ns() + 3600 * SECOND_NS)
    other.core.clock = lambda: clock  # type: ignore[method-assign]
    await other.start()
    job = other.core.engine.jobs.find(1)
    assert job.state is DELAYED
    assert 900 < ((job.key >> ID_BITS) - clock()) // SECOND_NS <= 1000
    await other.stop()


async def test_the_views_show_what_those_of_the_file_show(postgres, database, tmp_path):
    open_database(tmp_path / "q.db").close()
    file = sqlite3.connect(tmp_path / "q.db")
    serving = await served(database)
    await serving.put("größer\n".encode() + b"\xff")
    views = {name for (name,) in file.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")}
    columns = await sql(postgres, database, "SELECT table_name, column_name FROM information_schema.columns")
    for view in views:
        rows = await sql(postgres, database, f"TABLE {view}")
        ours = {name for shown, name in columns if shown == view}
        theirs = {name for (name,) in file.execute("SELECT name FROM pragma_table_info(?)", (view,))}
        assert theirs - ours == set(), view
        assert bool(rows) == (view not in EMPTY) or view in OF_TOTALS, view
    file.close()
    await serving.stop()


async def test_bodies_are_fetched_in_the_order_in_which_they_are_asked_for(database):
    serving = await served(database)
    small, large = [await serving.put(body) for body in (b"small", b"large" * 1000)]
    assert await serving.journal.fetch([large, 4711, small]) == [b"large" * 1000, None, b"small"]
    await serving.stop()


async def test_bodies_for_which_there_is_no_memory_stay_in_the_database(database):
    serving = await served(database)
    for _ in range(200):
        serving.begin_to_put(b"x" * 60_000)
    await serving.put()
    await serving.stop()
    again = ServingPostgres(Postgres(database))
    again.core.engine.bound_memory(64 << 20, 1 << 20, fetches=True)
    await again.start()
    memory = again.core.engine.memory
    assert memory.body_bytes <= 1 << 20
    assert 180 < memory.unloaded < 201  # the last one is small
    assert memory.unloaded_bytes == (memory.unloaded - 1) * 60_000 + len(b"job")
    assert len(again.core.engine.jobs) == 201
    await again.stop()
