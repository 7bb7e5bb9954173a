"""Policies and schedules in a database: a restart keeps them, damage is refused, and they can be exported."""

import asyncio
import io
import json
import os
import random

import asyncpg
import pytest

from beanlite.errors import BeanliteError
from beanlite.host.clock import utc_s
from beanlite.journal.event_rows import DEEDS_ONLY, EventRows
from beanlite.journal.policy_rows import line_of_policy, row_of_policy
from beanlite.journal.postgres import dump
from beanlite.journal.postgres.batch import batch_of
from beanlite.journal.postgres.past import looking
from beanlite.journal.schedule_rows import line_of_schedule
from beanlite.journal.sqlite.tools.load import load
from beanlite.journal.totals import Totals
from tests.journal.postgres.serving import made_by_an_older_version, refusal, served, sql
from tests.support.core import Core
from tests.support.policies import (
    effective,
    policies_by_chance,
    policy,
    schedule,
    set_policies,
    set_schedules,
    told,
    unset_schedule,
)

SEED = int(os.environ.get("POLICIES_SEED") or random.randrange(1 << 32))
COUNTED = "dead, expired, refused, duplicates, client_gone, delay_over"
RETRY = policy("mail.*", "retry", "5s..1h")
JOB = {
    "kind": "job",
    "tube": "a",
    "state": "ready",
    "pri": 1,
    "delay_s": 0,
    "ttr_s": 1,
    "created_at": 1.0,
    "since": 1.0,
    "reserves": 3,
    "timeouts": 0,
    "releases": 0,
    "buries": 0,
    "kicks": 0,
    "body": "x",
}


async def filled(database):
    """Serve the database once, with policies, schedules and a job."""
    serving = await served(database)
    set_policies(serving.core.engine, RETRY, policy("a", "fair", "off"))
    set_schedules(serving.core.engine, schedule("nightly", last_job=1), schedule("new", last_at=None, last_job=None))
    await serving.put()
    await serving.stop()
    return told(serving.core.engine)


async def exported(database):
    sink = io.BytesIO()
    await asyncio.to_thread(dump.export, database, sink)
    return sink.getvalue().splitlines(keepends=True)


async def test_restart_keeps_policies_and_schedules(database):
    before = await filled(database)
    again = await served(database)
    assert told(again.core.engine) == before
    assert len(before[0]) == len(before[1]) == 2
    await again.stop()


async def test_restart_knows_policies_before_it_restores_jobs(database):
    serving = await served(database)
    set_policies(serving.core.engine, policy("default", "ttl", "1h"))
    await serving.put()
    await serving.stop()
    again = await served(database)
    assert again.core.engine.tubes[b"default"].kept.expiry_count == 1
    await again.stop()


async def test_batch_that_sets_and_unsets_a_key_stores_what_came_last(database):
    serving = await served(database)
    engine = serving.core.engine
    set_policies(engine, RETRY, policy("a", "ttl", "1h"))
    set_schedules(engine, schedule("gone"), schedule("back"))
    await serving.put()
    set_policies(engine, policy("b", "ttl", "1h"))
    set_policies(engine, unset=[(b"b", "ttl"), (b"mail.*", "retry"), (b"a", "ttl")])
    set_policies(engine, policy("a", "ttl", "2h"))
    unset_schedule(engine, "gone")
    unset_schedule(engine, "back")
    set_schedules(engine, schedule("back", pri=9), schedule("short-lived"))
    unset_schedule(engine, "short-lived")
    await serving.put()
    before = told(engine)
    await serving.stop()
    again = await served(database)
    assert told(again.core.engine) == before
    assert before[0] == [policy("a", "ttl", "2h")]
    assert {name: values["pri"] for name, values in before[1].items()} == {"back": 9}
    await again.stop()


def test_schedule_is_stored_as_it_was_when_its_batch_was_taken():
    core, each = Core(), schedule("nightly")
    set_schedules(core.engine, each)
    before = each.next_at
    batch = batch_of(core.engine.take_changes(deferred=True), Totals(), 0.0, EventRows(DEEDS_ONLY, utc_s))
    each.next_at = 1.0
    assert (before,) in batch.parameters


async def test_forgiven_reservations_outlive_a_restart(postgres, database):
    serving = await served(database)
    job = serving.core.engine.jobs[await serving.put()]
    job.reserves = 3
    job.own_past().forgiven = 2
    serving.core.engine.ledger.note(job)
    await serving.put()
    await serving.stop()
    assert await sql(postgres, database, "SELECT forgiven, tries FROM all_jobs WHERE id = 1") == [(2, 1)]
    again = await served(database)
    assert again.core.engine.jobs[1].past.forgiven == 2
    await again.stop()


async def test_totals_have_what_happens_without_a_command(postgres, database):
    for _ in range(2):
        serving = await served(database)
        await serving.put()
        ledger = serving.core.engine.ledger
        tally = ledger.tally(serving.core.engine.tubes[b"default"])
        tally.dead, tally.expired, tally.refused, tally.duplicates = 2, 3, 4, 5
        tally.client_gone, tally.delay_over = 6, 7
        await serving.stop()
    (row,) = await sql(postgres, database, f"SELECT put, {COUNTED} FROM days")  # noqa: S608
    assert tuple(row) == (2, 4, 6, 8, 10, 12, 14)
    (rates,) = await sql(postgres, database, f"SELECT {COUNTED} FROM rates")  # noqa: S608
    assert [0.0, *rates] == sorted({0.0, *rates})
    await sql(postgres, database, "UPDATE totals SET at = at + 3 * 86400")  # as a clock that was ahead leaves them
    assert await sql(postgres, database, "SELECT * FROM rates") == []

    def recent():
        with looking(database) as look:
            return [*look.totals(3600, 24, ["default"]), *look.totals_of_all(86400, 7)]

    assert await asyncio.to_thread(recent) == []


async def test_view_has_what_holds_for_each_tube(postgres, database):
    print(f"POLICIES_SEED={SEED}")  # noqa: T201 - shown if it fails
    await (await served(database)).stop()
    policies, names = policies_by_chance(random.Random(SEED), 200)
    connection = await asyncpg.connect(database)
    await connection.executemany("INSERT INTO policies VALUES ($1, $2, $3, $4, $5)", map(row_of_policy, policies))
    await connection.executemany("INSERT INTO pauses VALUES ($1, 1, 1)", [(name,) for name in names])
    await connection.close()
    expected = effective(policies, names)
    assert len(expected) > 100
    assert [tuple(row) for row in await sql(postgres, database, "SELECT * FROM tube_policies")] == expected


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE policies SET value = 'soon' WHERE key = 'retry'", "retry: 'soon' is no duration"),
        ("UPDATE policies SET pattern = 'a b' WHERE key = 'fair'", "'a b' is neither the name of a tube nor a pattern"),
        ("UPDATE schedules SET pri = 8 WHERE name = 'nightly'", "the schedule 'nightly' has changed"),
        ("UPDATE schedules SET if_absent = NOT if_absent WHERE name = 'new'", "the schedule 'new' has changed"),
        ("UPDATE schedules SET body = 'other' WHERE name = 'new'", "the schedule 'new' has changed"),
    ],
)
async def test_damaged_row_is_refused(postgres, database, damage, said):
    await filled(database)
    await sql(postgres, database, damage)
    assert f"is damaged: {said}" in await refusal(database)
    with pytest.raises(BeanliteError, match="is damaged"):
        await exported(database)


async def test_import_of_an_export_is_exact(database, tmp_path):
    await filled(database)
    lines = await exported(database)
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["queue", "policy", "policy", "schedule", "schedule", "job", "end"]
    file = tmp_path / "queue.db"
    load(lines, file)
    connection = await asyncpg.connect(database)
    await connection.execute("DELETE FROM policies; DELETE FROM jobs; UPDATE schedules SET pri = 99")
    await connection.close()
    await asyncio.to_thread(dump.load, file, database, new_ids=False)
    assert await exported(database) == lines


async def test_import_with_new_ids_follows_the_last_job(postgres, database, tmp_path):
    await filled(database)
    lines = [line for line in await exported(database) if b'"policy"' not in line]
    load(lines, tmp_path / "queue.db", new_ids=True)
    await asyncio.to_thread(dump.load, tmp_path / "queue.db", database, new_ids=True)
    (schedule_row,) = await sql(postgres, database, "SELECT last_job FROM schedules WHERE name = 'nightly'")
    (last_job,) = await sql(postgres, database, "SELECT max(id) AS id FROM jobs")
    assert schedule_row["last_job"] == last_job["id"] > 1
    assert len(await exported(database)) == len(lines) + 3  # two policies and a job were there already


async def test_import_takes_no_job_of_others_for_a_last_job(postgres, database, tmp_path):
    serving = await served(database)
    await serving.put()
    await serving.stop()
    lines = [line_of_schedule(schedule(name, last_job=number)) for number, name in enumerate(("other", "own"), 1)]
    load([line.encode() for line in lines] + [json.dumps(JOB | {"id": 2}).encode()], tmp_path / "queue.db")
    await asyncio.to_thread(dump.load, tmp_path / "queue.db", database, new_ids=False)
    rows = await sql(postgres, database, "SELECT name, last_job FROM schedules ORDER BY name")
    assert [tuple(row) for row in rows] == [("other", None), ("own", 2)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [[line_of_policy(policy(f"{name}{number}.*", "ttl", "1h")) for number in range(51)] for name in "ab"],
            "there would be 102 patterns with \\* or \\?; there can be 100",
        ),
        (
            [[line_of_schedule(schedule(f"{name}{number}")) for number in range(501)] for name in "ab"],
            "there would be 1002 schedules; there can be 1000",
        ),
    ],
    ids=["patterns", "schedules"],
)
async def test_import_of_more_than_a_server_would_take_is_refused(database, tmp_path, lines, said):
    await (await served(database)).stop()
    for number, part in enumerate(lines):
        load([line.encode() for line in part], tmp_path / f"{number}.db")
    await asyncio.to_thread(dump.load, tmp_path / "0.db", database, new_ids=False)
    before = await exported(database)
    with pytest.raises(BeanliteError, match=f"nothing was imported: {said}"):
        await asyncio.to_thread(dump.load, tmp_path / "1.db", database, new_ids=False)
    assert await exported(database) == before


async def test_database_of_the_version_before_has_none_and_can_be_exported(postgres, database, tmp_path):
    await made_by_an_older_version(database, 3)
    columns = [name for name in JOB if name not in {"kind", "body"}]
    values = ", ".join(f"'{JOB[name]}'" for name in columns)
    await sql(
        postgres,
        database,
        f"INSERT INTO jobs (id, {', '.join(columns)}, crc32, body) VALUES (1, {values}, 2363233923, 'x')",  # noqa: S608
    )
    await sql(postgres, database, "UPDATE lease SET last_id = 1")
    lines = await exported(database)
    assert [json.loads(line)["kind"] for line in lines] == ["queue", "job", "end"]
    assert json.loads(lines[1])["forgiven"] == 0
    load(lines, tmp_path / "queue.db")
    serving = await served(database)  # which brings it up to date
    assert told(serving.core.engine) == ([], {})
    await serving.stop()
    assert await exported(database) == lines
