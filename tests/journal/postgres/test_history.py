"""The history in a database: every event, in order, for as long as it is to be kept."""

import asyncio
import time

import asyncpg
import pytest

from beanlite.core.job import SECOND_NS
from beanlite.journal.event_rows import OPERATORS_KEPT_S, ROW_BYTES, HistoryBounds
from beanlite.journal.postgres import housekeeping, journal
from beanlite.journal.postgres.link import connect
from beanlite.journal.postgres.past import looking
from beanlite.journal.totals import DAY_S
from tests.journal.postgres.serving import SOON_S, Postgres, ServingPostgres, served, sql, until
from tests.journal.test_history import life
from tests.support.core import put
from tests.support.operators import Operator

ALL = HistoryBounds(7 * DAY_S, 1 << 30, bodies=False)
WEEK_S = 7 * DAY_S


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(journal, "_LOOKS_EVERY_S", 0.01)


async def recorded(url, bounds=ALL, **others):
    """Serve with a history."""
    serving = ServingPostgres(Postgres(url, history=bounds, **others))
    if bounds.kept_s is not None:
        serving.core.engine.ledger.start_recording()
    return await serving.start()


async def stored(serving):
    """Wait until all that has happened is stored."""
    async with asyncio.timeout(SOON_S):
        while serving.core.engine.ledger.is_changed or serving.core.engine.ledger.has_deferred:
            await serving.group.flush()
            await asyncio.sleep(0.001)


async def asked(postgres, database, statement):
    return [tuple(row) for row in await sql(postgres, database, statement)]


async def until_asked(postgres, database, statement, answer):
    async with asyncio.timeout(SOON_S):
        while (found := await asked(postgres, database, statement)) != answer:
            await asyncio.sleep(0.01)
    return found


async def test_history_has_all_of_a_life_within_one_batch(postgres, database):
    serving = await recorded(database)
    job_id, told = life(serving.core)
    await stored(serving)
    assert await asked(postgres, database, "SELECT what, by, pri, delay_s FROM history ORDER BY n") == told
    assert await asked(postgres, database, "SELECT DISTINCT job, tube, text FROM events") == [(job_id, "default", None)]
    assert await asked(postgres, database, "SELECT FROM jobs") == []
    await serving.stop()


@pytest.mark.parametrize("unloaded", [False, True])
async def test_bodies_of_deleted_jobs_are_kept_if_asked_for(postgres, database, unloaded):
    serving = await recorded(database, ALL._replace(bodies=True))
    job_id = await serving.put(b"the body")
    if unloaded:
        serving.core.engine.bodies.unload(serving.core.engine.jobs[job_id])
    serving.core.send(serving.client, b"delete %d\r\n" % job_id)
    await stored(serving)
    found = await asked(postgres, database, "SELECT what, body FROM history ORDER BY n")
    assert found == [("put", None), ("delete", b"the body")]
    ((between,),) = await asked(postgres, database, "SELECT max(n) - min(n) FROM history")
    assert between == ROW_BYTES + len(b"the body")
    assert serving.journal.facts().history_bodies_max == 1 << 30
    await serving.stop()


async def test_last_events_of_a_job_are_told_in_order(database):
    serving = await recorded(database)
    job_id, told = life(serving.core)
    await stored(serving)
    await serving.stop()

    def last(events):
        with looking(database) as look:
            return [event["what"] for event in (look.show_job(job_id, events) or {})["history"]]

    whats = [what for what, *_ in told]
    assert await asyncio.to_thread(last, 2) == whats[-2:]
    assert await asyncio.to_thread(last, 0) == whats


async def test_note_and_policy_are_kept_in_the_body(postgres, database):
    serving = await recorded(database)
    operator = Operator(serving.core)
    await serving.put()
    operator.ask("set-policy", pattern="mail", set={"max_tries": 5}, by="ann")
    await stored(serving)
    found = await asked(postgres, database, "SELECT what, tube, text LIKE '%max_tries%' FROM events ORDER BY n")
    assert found == [("put", "default", None), ("policy", "mail", True)]
    await serving.stop()


async def test_only_deeds_of_operators_are_kept_without_history(postgres, database):
    serving = await served(database)
    serving.core.engine.ledger.start_recording()  # as while somebody watches events
    await serving.put()
    Operator(serving.core).ask("change-jobs", do="bury", ids=[1], by="ann")
    await stored(serving)
    found = await asked(postgres, database, "SELECT job, what, by LIKE 'operator % for ann' FROM history")
    assert found == [(1, "bury", True)]
    await serving.stop()


async def test_person_behind_a_schedule_named_for_is_found(database):
    serving = await recorded(database)
    operator = Operator(serving.core)
    for name in ("for", "nightly"):
        operator.ask("set-schedule", name=name, when="every 1d", tube="mail", body="x")
        operator.ask("run-schedule", name=name, by="ann")
    await stored(serving)
    await serving.stop()

    def puts_by_ann():
        with looking(database) as look:
            return [each["by"]["address"] for each in look.history({"by": "ann", "what": ["put"]}, 10)]

    assert await asyncio.to_thread(puts_by_ann) == ["schedule for", "schedule nightly"]


async def test_numbers_go_on_after_a_takeover_and_restarts_are_told(postgres, database):
    first = await recorded(database)
    job_id = await first.put()
    first.core.send(first.client, b"reserve\r\n")
    await stored(first)
    await first.abandon()
    second = await recorded(database)
    await second.put()
    found = await asked(postgres, database, "SELECT job, what FROM history ORDER BY n")
    assert found == [(job_id, "put"), (job_id, "reserve"), (job_id, "restart"), (job_id + 1, "put")]
    await second.stop()


async def test_history_goes_on_after_a_takeover_with_a_copy(postgres, database, caplog):
    caplog.set_level("INFO", "beanlite")
    first = await recorded(database)
    await first.put()
    await first.put()
    starting = asyncio.create_task(recorded(database, node="other"))
    await until(lambda: "jobs are read ahead" in caplog.text)
    first.core.send(first.client, b"reserve-job 1\r\nreserve-job 2\r\ndelete 2\r\n")
    await first.put()
    await stored(first)
    await first.abandon()
    second = await starting
    assert "jobs were read ahead" in caplog.text
    await second.put()
    found = await asked(postgres, database, "SELECT job, what FROM history ORDER BY n")
    assert set(found[:-2]) == {(1, "put"), (2, "put"), (1, "reserve"), (2, "reserve"), (2, "delete"), (3, "put")}
    assert found[-2:] == [(1, "restart"), (4, "put")]
    await second.stop()


async def test_what_is_too_old_is_deleted_and_what_follows_it_stays(postgres, database, monkeypatch):
    monkeypatch.setattr(housekeeping, "_FORGET", housekeeping._FORGET.replace("LIMIT 1000", "LIMIT 2"))
    monkeypatch.setattr(housekeeping, "_SLICE", 2)
    serving = await recorded(database)
    for _ in range(5):
        put(serving.core, serving.client)
    await stored(serving)
    serving.core.now_ns += 3600 * SECOND_NS
    put(serving.core, serving.client)
    await stored(serving)
    serving.core.now_ns += (WEEK_S - 3000) * SECOND_NS
    await until_asked(postgres, database, "SELECT job FROM history", [(6,)])
    await serving.stop()


async def test_oldest_are_deleted_when_there_are_too_many_bytes(postgres, database):
    serving = await recorded(database, HistoryBounds(WEEK_S, 100 * ROW_BYTES, bodies=False))
    for _ in range(300):
        put(serving.core, serving.client)
    await stored(serving)
    counted = "SELECT min(job), max(job), count(*) FROM history"
    await until_asked(postgres, database, counted, [(200, 300, 101)])
    await serving.stop()


async def test_events_from_the_future_do_not_keep_older_ones(postgres, database, monkeypatch):
    """The clock was wrong for a while."""
    monkeypatch.setattr(housekeeping, "_FORGET", housekeeping._FORGET.replace("LIMIT 1000", "LIMIT 1"))
    serving = await recorded(database)
    serving.core.now_ns += 30 * DAY_S * SECOND_NS
    put(serving.core, serving.client)
    await stored(serving)
    serving.core.now_ns -= 30 * DAY_S * SECOND_NS
    put(serving.core, serving.client)
    await stored(serving)
    serving.core.now_ns += (WEEK_S + 60) * SECOND_NS
    await until_asked(postgres, database, "SELECT job FROM history", [(1,)])
    await serving.stop()


async def test_reload_shortens_the_history(postgres, database):
    serving = await recorded(database)
    put(serving.core, serving.client)
    await stored(serving)
    serving.core.now_ns += (WEEK_S - 1800) * SECOND_NS
    put(serving.core, serving.client)
    await stored(serving)
    serving.core.now_ns += 3600 * SECOND_NS
    await until_asked(postgres, database, "SELECT job FROM history", [(2,)])
    serving.journal.reconfigure(60, 1 << 30, history_bodies=False)
    await until_asked(postgres, database, "SELECT job FROM history", [])
    await serving.stop()


async def test_deeds_are_deleted_after_400_days(postgres, database):
    serving = await served(database)
    now_s = time.time()
    await serving.stop()
    connection = await asyncpg.connect(database)
    for n, at in ((60, now_s - OPERATORS_KEPT_S - 60), (120, now_s - OPERATORS_KEPT_S + 60)):
        row = "INSERT INTO history VALUES ($1, $2, 1, 'default', 'bury', 'operator unix', NULL, 0, 0)"
        await connection.execute(row, n, at)
    await connection.close()
    serving = await served(database)
    await until_asked(postgres, database, "SELECT n FROM history", [(120,)])
    assert serving.journal._history.last == 120
    await serving.stop()


@pytest.mark.parametrize("ahead_s", [10, 1000], ids=["not old yet", "in the future"])
async def test_event_from_before_the_clock_went_back_is_deleted_later(postgres, database, ahead_s):
    await (await served(database)).stop()
    row = "({}, {}, 1, 'default', 'bury', 'operator unix', NULL, 0, 0)"
    await sql(postgres, database, f"INSERT INTO history VALUES {row.format(1, ahead_s)}, {row.format(2, 0)}")  # noqa: S608
    upkeep = housekeeping.Housekeeping("it", lambda: connect(database, "it"))
    assert not await upkeep.forget(0, 5, 5)
    assert await sql(postgres, database, "SELECT n FROM history") == [(1,)]
    await upkeep.forget(0, 2000, 2000)
    assert await sql(postgres, database, "SELECT n FROM history") == []
    upkeep.close()


async def test_locked_history_is_trimmed_later(postgres, database, caplog):
    serving = await recorded(database)
    put(serving.core, serving.client)
    await stored(serving)
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE history IN SHARE ROW EXCLUSIVE MODE")
        serving.core.now_ns += (WEEK_S + 60) * SECOND_NS
        async with asyncio.timeout(SOON_S):
            while "could not delete old history" not in caplog.text:
                await asyncio.sleep(0.01)
    await holder.close()
    await until_asked(postgres, database, "SELECT job FROM history", [])
    assert serving.failures == []
    await serving.stop()
