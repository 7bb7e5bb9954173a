"""Notes in a database: a restart finds them, they leave with their jobs, and are exported and imported."""

import asyncio
import json

import pytest

from beanlite.errors import BeanliteError
from beanlite.journal.postgres import dump
from beanlite.journal.sqlite.tools.load import load
from tests.journal.postgres.serving import made_by_an_older_version, refusal, served, sql
from tests.journal.postgres.test_policy_rows import exported
from tests.journal.test_notes import NOTES, fill_with_notes, note, notes_of


async def filled(database):
    serving = await served(database)
    await fill_with_notes(serving)
    return serving


async def test_note_has_any_character_whatever_encoding_the_url_names(postgres, database):
    serving = await served(f"{database}?client_encoding=latin1")
    await serving.put()
    note(serving, 1, "5 €".encode())
    await serving.put()
    assert serving.failures == []
    assert await sql(postgres, database, "SELECT note FROM notes") == [("5 €",)]
    await serving.stop()


async def test_restart_finds_notes(postgres, database):
    await (await filled(database)).stop()
    assert await sql(postgres, database, "SELECT id FROM notes ORDER BY id") == [(1,), (3,)]
    assert await sql(postgres, database, "SELECT note FROM all_jobs WHERE id = 1") == [("why\nit failed",)]
    again = await served(database)
    assert notes_of(again) == NOTES
    note(again, 1, b"another")
    again.core.send(again.client, b"delete 3\r\n")
    await again.put()
    await again.abandon()
    assert await sql(postgres, database, "SELECT id, note FROM notes") == [(1, "another")]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM jobs WHERE id = 3", "the note of job 3 has no job"),
        ("UPDATE notes SET note = repeat('x', 5000) WHERE id = 1", "the note of job 1 is no text"),
    ],
)
async def test_note_that_no_server_writes_is_refused(postgres, database, damage, said):
    await (await filled(database)).stop()
    await sql(postgres, database, damage)
    assert said in await refusal(database)


async def test_export_and_import_keep_notes(postgres, database, tmp_path):
    await (await filled(database)).stop()
    lines = await exported(database)
    jobs = [json.loads(line) for line in lines]
    assert {job["id"]: job["note"].encode() for job in jobs if "note" in job} == NOTES
    load(lines, tmp_path / "q.db")
    other = await asyncio.to_thread(postgres.new_database)
    for new_ids in (False, True):
        await asyncio.to_thread(dump.load, tmp_path / "q.db", other, new_ids=new_ids)
    again = await served(other)
    assert list(notes_of(again).values()) == list(NOTES.values()) * 2
    await again.stop()


async def test_older_database_is_exported_and_migrated(database):
    await made_by_an_older_version(database, 4)
    assert len(await exported(database)) >= 2
    serving = await served(database)
    assert notes_of(serving) == {}
    await serving.stop()


async def import_into_older(postgres, database, path, *, notes, version=5):
    await (await filled(database)).stop()
    lines = [json.loads(line) for line in await exported(database)]
    load([json.dumps({key: line[key] for key in line if notes or key != "note"}).encode() for line in lines], path)
    older = await asyncio.to_thread(postgres.new_database)
    await made_by_an_older_version(older, version)
    await asyncio.to_thread(dump.load, path, older, new_ids=False)
    return older


async def test_jobs_without_notes_are_imported_into_an_older_database(postgres, database, tmp_path):
    serving = await served(await import_into_older(postgres, database, tmp_path / "q.db", notes=False))
    assert list(serving.core.engine.jobs.newest) == [1, 3, 4, 5, 6]
    await serving.stop()


async def test_notes_are_not_imported_into_an_older_database(postgres, database, tmp_path):
    with pytest.raises(BeanliteError, match="has no notes yet; serve it once"):
        await import_into_older(postgres, database, tmp_path / "q.db", notes=True)


async def test_nothing_is_imported_into_a_database_without_policies(postgres, database, tmp_path):
    with pytest.raises(BeanliteError, match="was last served by an older version; serve it once"):
        await import_into_older(postgres, database, tmp_path / "q.db", notes=False, version=3)
