"""What ``beanlite verify --database`` finds, and what a start refuses: rows that are not what a server has written."""

import asyncio
import io

import pytest

from beanlite.core.job import SECOND_NS
from beanlite.errors import JournalRefused
from beanlite.journal.postgres.dump import export
from beanlite.journal.postgres.soundness import verify
from beanlite.journal.postgres.status import status
from tests.journal.postgres.serving import made_by_an_older_version, refusal, served, sql
from tests.journal.postgres.test_dump import beanlite
from tests.support.core import put
from tests.support.operators import Operator
from tests.support.servers import free_port


async def checked(url):
    return await asyncio.to_thread(lambda: list(verify(url)))


async def exported_lines(url):
    lines = io.BytesIO()
    await asyncio.to_thread(export, url, lines)
    return len(lines.getvalue().splitlines())


async def stored(serving):
    while serving.core.engine.ledger.is_changed or serving.core.engine.ledger.has_deferred:
        await serving.group.flush()
        await asyncio.sleep(0.001)


async def lived(database):
    """Store jobs in each state, notes, a pause, a policy and a schedule; then stop."""
    serving = await served(database)
    core, client = serving.core, serving.client
    core.now_ns += 123_456_789  # no whole second
    for body in (b"ready", b"delayed", b"buried", b"again", b""):
        put(core, client, body, delay_s=100 if body == b"delayed" else 0)
    await stored(serving)
    core.now_ns += 5 * SECOND_NS + 987
    core.send(client, b"reserve-job 3\r\nbury 3 7\r\nreserve-job 4\r\nrelease 4 9 0\r\npause-tube default 60\r\n")
    core.send(client, b"use mail\r\nput 1 0 60 1\r\nx\r\nreserve-job 6\r\n")
    operator = Operator(core)
    operator.ask("set-policy", pattern="mail", set={"max_tries": 5}, by="ann")
    await stored(serving)
    await serving.stop()


async def test_what_a_server_has_written_is_sound(database):
    await lived(database)
    found = await checked(database)
    assert [(each.check, each.sound) for each in found] == [
        (check, True) for check in ("file", "schema", "state", "jobs", "bodies")
    ]
    assert found[3].said == "1 buried, 1 delayed, 3 ready, 1 reserved"
    assert "1 pauses, 1 policies" in found[2].said
    serving = await served(database)  # and so finds each start
    assert len(serving.core.engine.jobs) == 6
    await serving.stop()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("pri = 5", "its checksum differs"),
        ("tube = 'other'", "its checksum differs"),
        ("created_at = created_at + 0.001", "its checksum differs"),
        ("why = 'because', state = 'ready'", "its checksum differs"),
        ("forgiven = 2", "its checksum differs"),
        ("row_crc32 = NULL", "its checksum differs"),
        ("id = 99", "its checksum differs"),
    ],
)
async def test_changed_row_is_found_and_refused(postgres, database, change, what):
    await lived(database)
    await sql(postgres, database, f"UPDATE jobs SET {change} WHERE id = 1")  # noqa: S608
    (fault,) = [each for each in await checked(database) if not each.sound]
    job_id = 99 if change == "id = 99" else 1
    assert (fault.check, f"the row of job {job_id} has changed ({what})" in fault.said) == ("jobs", True)
    assert f"the row of job {job_id} has changed; restore a backup" in await refusal(database)
    with pytest.raises(JournalRefused, match=f"the row of job {job_id} has changed; restore a backup"):
        await exported_lines(database)


async def test_job_above_the_last_id_is_found_and_refused(postgres, database):
    """A put would be given its id again. The last id is in the row of the last batch."""
    serving = await served(database)
    for _ in range(2):
        await serving.put()
    await serving.abandon()
    await sql(postgres, database, "DELETE FROM batches")
    faults = [each.said for each in await checked(database) if not each.sound]
    assert ["(id)" in fault for fault in faults] == [True, True]
    assert "there is a job 2, and the last id is 0; restore a backup" in await refusal(database)


async def test_checksums_are_right_at_any_fraction_of_a_second(database):
    serving = await served(database)
    for _ in range(50):
        serving.core.now_ns += 1_234_567_891
        put(serving.core, serving.client)
    await stored(serving)
    assert [each.said for each in await checked(database) if not each.sound] == []
    await serving.stop()


async def test_changed_body_is_found(postgres, database):
    await lived(database)
    await sql(postgres, database, "UPDATE jobs SET body = 'other' WHERE id < 3")
    faults = [each.said for each in await checked(database) if each.check == "bodies"]
    assert ["the body of job 1 has changed" in faults[0], "the body of job 2 has changed" in faults[1]] == [True, True]


async def test_many_faults_are_summed(postgres, database):
    serving = await served(database)
    for _ in range(30):
        put(serving.core, serving.client)
    await stored(serving)
    await sql(postgres, database, "UPDATE jobs SET pri = 5")
    faults = [each.said for each in await checked(database) if not each.sound]
    assert (len(faults), "10 more of jobs have changed" in faults[-1]) == (21, True)
    await serving.stop()


@pytest.mark.parametrize(
    ("damage", "check", "what"),
    [
        ("UPDATE policies SET value = 'none'", "state", "max_tries"),
        ("INSERT INTO notes VALUES (77, 'stray')", "state", "the note of job 77 has no job"),
        ("CREATE RULE mine AS ON DELETE TO jobs DO INSTEAD NOTHING", "schema", "the rule mine of jobs"),
    ],
)
async def test_other_damage_is_found(postgres, database, damage, check, what):
    await lived(database)
    await sql(postgres, database, damage)
    (fault,) = [each for each in await checked(database) if not each.sound]
    assert (fault.check, what in fault.said) == (check, True)


async def test_rows_of_an_older_version_need_no_checksum(postgres, database):
    await made_by_an_older_version(database, 6)
    columns = "id, tube, state, pri, delay_s, ttr_s, created_at, reserves, timeouts, releases, buries, kicks, since"
    values = "7, 'default', 'ready', 0, 0, 60, 1.5e9, 0, 0, 0, 0, 0, 1.5e9, 2363233923, 'x'"
    await sql(postgres, database, f"INSERT INTO jobs ({columns}, crc32, body) VALUES ({values})")  # noqa: S608
    await sql(postgres, database, "UPDATE lease SET last_id = 7")
    assert await exported_lines(database) == 3
    serving = await served(database)
    await serving.put()
    assert await exported_lines(database) == 4
    assert "2 ready; 1 rows of an older version have no checksum" in [each.said for each in await checked(database)]
    serving.core.send(serving.client, b"reserve-job 7\r\nbury 7 0\r\n")  # gives it one
    await stored(serving)
    assert "1 buried, 1 ready" in [each.said for each in await checked(database)]
    await serving.stop()


async def test_exit_codes_are_those_of_files(postgres, database):
    async def run(*flags):
        return await asyncio.to_thread(beanlite, "verify", *flags)

    assert (await run("--database", database))[0] == 3
    await lived(database)
    code, said, _ = await run("--database", database)
    assert (code, said.count(b" ok ")) == (0, 5)
    await sql(postgres, database, "UPDATE jobs SET pri = 5 WHERE id = 1")
    code, said, _ = await run("--database", database, "--json")
    assert (code, b'"check": "jobs", "sound": false' in said) == (3, True)
    await sql(postgres, database, "DELETE FROM lease")
    code, said, errors = await run("--database", database)
    assert (code, said.count(b"DAMAGED"), errors.count("\n")) == (3, 1, 1)
    assert b"its table lease is empty" in said
    await sql(postgres, database, "UPDATE schema_version SET number = 99")
    code, _, said = await run("--database", database)
    assert (code, "can't be checked" in said) == (3, True)
    assert (await run("--database", f"postgresql://queue@127.0.0.1:{free_port()}/queue"))[0] == 1
    assert (await run())[0] == 2


async def test_queue_is_served_and_checked_behind_an_empty_schema(postgres, database):
    """PostgreSQL looks first into the schema that is called as the user, which may be made at any time."""
    await lived(database)
    await sql(postgres, database, "CREATE SCHEMA queue")
    serving = await served(database)
    assert len(serving.core.engine.jobs) == 6
    await serving.stop()
    assert (await asyncio.to_thread(status, database))["dead_rows"].keys() > {"jobs", "lease"}
    await sql(postgres, database, "CREATE RULE nothing AS ON DELETE TO jobs DO ALSO NOTHING")
    assert [each.said for each in await checked(database) if not each.sound] == [
        f"{database} is damaged: it has the rule nothing of jobs; restore a backup"
    ]
