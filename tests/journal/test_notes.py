"""Notes in the file: a restart finds them, they leave with their jobs, and damage is noticed."""

import json
import sqlite3
from contextlib import closing

import pytest

from beanlite.cli import main
from beanlite.core.notes import NOTE_MAX
from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.sqlite.served.batch import FRAMES_BESIDE_ROWS, FRAMES_PER_ROW, batch_of
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.compact import compact
from beanlite.journal.sqlite.tools.load import load
from beanlite.journal.sqlite.tools.look import looking
from beanlite.journal.sqlite.tools.salvage import salvage
from beanlite.journal.sqlite.tools.verify import verify
from beanlite.journal.totals import DAY_S
from tests.journal.test_audit import around_the_guards
from tests.journal.test_base import Serving, Sqlite
from tests.journal.test_dump import lines_of
from tests.journal.test_history import ALL, keep
from tests.support.core import put
from tests.support.inside import ask, connect, serving, until
from tests.support.journal_files import unchecked
from tests.support.operators import Operator
from tests.support.sqlite_tool import tell

__all__ = ["keep"]

LONG = ("Größe " * 1000).encode()[: NOTE_MAX - 1]
NOTES = {1: b"why\nit failed", 3: LONG}


@pytest.fixture
def medium(tmp_path, disk):
    return Sqlite(tmp_path / "q.db", disk)


def note(serving, job_id, text):
    """Leave a note as an operator; it is stored with the next put."""
    job = serving.core.engine.jobs[job_id]
    serving.core.engine.notes.set(job, text, serving.client.client.peer, serving.core.now_ns, by_operator=True)


def notes_of(serving):
    engine = serving.core.engine
    return {job.id: engine.notes.text(job) for job in engine.jobs.newest.values() if engine.notes.text(job)}


async def fill_with_notes(serving):
    """Have jobs 1 and 3 of 5 with a note, one that is deleted with its note, and one whose note was taken away."""
    for _ in range(4):
        await serving.put()
    for job_id, text in {**NOTES, 2: b"gone", 4: b"taken away"}.items():
        note(serving, job_id, text)
    await serving.put()
    note(serving, 4, b"")
    serving.core.send(serving.client, b"delete 2\r\n")
    await serving.put()


async def filled(medium):
    serving = await Serving(medium).start()
    await fill_with_notes(serving)
    return serving


@pytest.fixture
async def path(medium):
    """The file of a stopped server, with notes on jobs 1 and 3 of 5."""
    await (await filled(medium)).stop()
    return medium._path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target.db"


def stored(path):
    with closing(sqlite3.connect(path)) as connection:
        return {job_id: text.encode() for job_id, text in connection.execute("SELECT id, note FROM notes")}


def faults(path):
    return [finding.said for finding in verify(path) if not finding.sound]


async def test_restart_finds_notes(medium, path):
    assert stored(path) == NOTES
    assert faults(path) == []
    again = await Serving(medium).start()
    assert notes_of(again) == NOTES
    note(again, 1, b"another")
    again.core.send(again.client, b"delete 3\r\n")
    await again.put()
    await again.stop()
    assert stored(path) == {1: b"another"}


async def test_note_of_a_job_that_is_put_in_the_same_batch_is_stored(keep):
    kept = await keep(ALL)
    session, operator = kept.core.client(), Operator(kept.core)
    for _ in range(2):
        put(kept.core, session)
    operator.change("note", note="new", tube="default")
    kept.core.send(session, b"delete 2\r\n")
    kept.store()
    assert kept.ask("SELECT id, note FROM notes") == [(1, "new")]


async def test_frames_of_notes_are_counted(keep):
    kept = await keep(ALL)
    session, operator = kept.core.client(), Operator(kept.core)
    for _ in range(300):
        put(kept.core, session)
    kept.store()
    for text in ("x" * NOTE_MAX, "y" * NOTE_MAX, ""):
        operator.change("note", note=text, tube="default")
        batch = batch_of(kept.core.engine.take_changes(deferred=True), kept.writer.chronicle.history)
        rows = FRAMES_PER_ROW * 5 * 300  # the job and its note, and its event with those that are pruned
        assert batch.frames == FRAMES_BESIDE_ROWS + rows + 2 * 300 * len(text) // 4000
        before = kept.writer.frames.committed
        kept.writer.write(batch)
        assert kept.writer.frames.committed - before <= batch.frames


@pytest.mark.parametrize("bodies", [False, True])
async def test_history_has_notes_even_of_jobs_that_are_gone(keep, bodies):
    kept = await keep(HistoryBounds(7 * DAY_S, 1 << 30, bodies=bodies))
    session = kept.core.client()
    put(kept.core, session)
    kept.core.send(session, b"reserve\r\nnote 1 3\r\nwhy\r\nnote 1 0\r\n\r\ndelete 1\r\n")
    kept.store()
    rows = kept.ask("SELECT what, text, by FROM events ORDER BY n")
    body = "x" if bodies else None
    assert rows[2:] == [("note", "why", "10.0.0.1:1"), ("note", "", "10.0.0.1:1"), ("delete", body, "10.0.0.1:1")]
    with looking(kept.writer._database.path) as look:
        job = look.show_job(1) or {}
    assert [event.get("note") for event in job["history"]] == [None, None, "why", "", None]


async def test_operators_notes_are_recorded_without_a_history(keep):
    kept = await keep(HistoryBounds(None, 1 << 30, bodies=False), recording=False)
    put(kept.core, kept.core.client())
    Operator(kept.core).change("note", note="seen", tube="default", by="ann")
    kept.store()
    assert kept.ask("SELECT what, text, by FROM events") == [("note", "seen", "operator 10.0.0.1:2 for ann")]


async def test_views_and_lists_of_a_file_have_notes(path):
    with looking(path) as look:
        shown = [look.show_job(job_id) or {} for job_id in (3, 5)]
        assert [job["note"] for job in shown] == [LONG.decode(), None]
        listed = look.list_jobs({"limit": 3, "notes": True})["jobs"]
        assert [job["note"] for job in listed] == ["why", LONG.decode()[:200], None]
        assert "note" not in look.list_jobs({"limit": 3})["jobs"][0]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT note FROM all_jobs WHERE id = 1").fetchall() == [("why\nit failed",)]
        assert connection.execute("SELECT note FROM buried").fetchall() == []


async def test_memory_has_less_room_for_bodies_beside_notes(medium, path):
    del path
    again = Serving(medium)
    again.core.engine.bound_memory(1 << 20, 1 << 20, fetches=True)
    await again.start()
    memory = again.core.engine.memory
    assert memory.note_bytes == sum(200 + len(text) for text in NOTES.values())
    assert memory.other_bytes >= memory.note_bytes
    await again.stop()


# -- damage


DAMAGES = {
    "UPDATE notes SET note = 'when' WHERE id = 1": "the note of job 1 has changed",
    "UPDATE notes SET note = CAST('why' AS BLOB) WHERE id = 1": "a note has the id of a job, and a text",
    "UPDATE notes SET crc32 = crc32 + 1 WHERE id = 1": "the note of job 1 has changed",
    "UPDATE notes SET note = '' WHERE id = 1": "the note of job 1 is no text of 1 to 4096 bytes",
    "UPDATE notes SET id = 9 WHERE id = 1": "the note of job 9 has changed",
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_changed_note_is_refused_and_named(medium, path, damage):
    with unchecked(path) as connection:
        connection.execute(damage)
    assert any(DAMAGES[damage] in fault for fault in faults(path))
    with pytest.raises(JournalRefused, match=DAMAGES[damage]):
        await Serving(medium).start()
    with pytest.raises(JournalRefused, match=DAMAGES[damage]):
        lines_of(path)


async def test_note_without_a_job_is_refused(medium, path):
    around_the_guards(path, "DELETE FROM jobs WHERE id = 3; UPDATE meta SET jobs = NULL")
    assert any("the note of job 3 has no job" in fault for fault in faults(path))
    with pytest.raises(JournalRefused, match="the note of job 3 has no job"):
        await Serving(medium).start()


async def test_audit_notices_a_note_that_another_program_has_changed(tmp_path):
    path = tmp_path / "q.db"
    async with serving(path) as (server, _):
        client = await connect(server)
        await ask(client, b"put 0 0 60 1\r\nx\r\n")
        assert await ask(client, b"reserve-job 1\r\n") == b"RESERVED 1 1\r\n"
        assert await client[0].readline() == b"x\r\n"
        assert await ask(client, b"note 1 3\r\nwhy\r\n") == b"NOTED\r\n"
        around_the_guards(path, "UPDATE notes SET note = 'who'")
        client[1].write(b"put 0 0 60 1\r\ny\r\n")
        await until(lambda: server._failure)
        assert "the note of job 1" in str(server._failure)


def test_other_programs_may_not_write_notes(path):
    for statement in ("DELETE FROM notes", "UPDATE notes SET note = 'x'", "INSERT INTO notes VALUES (5, 'x', 0)"):
        with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.Error):
            connection.execute(statement)


# -- tools


def test_export_and_import_keep_notes(path, target):
    jobs = [json.loads(line) for line in lines_of(path)]
    assert {job["id"]: job["note"].encode() for job in jobs if "note" in job} == NOTES
    load(lines_of(path), target)
    assert stored(target) == NOTES
    assert faults(target) == []
    load(lines_of(path), target, new_ids=True)
    assert list(stored(target).values()) == list(NOTES.values()) * 2
    assert faults(target) == []


@pytest.mark.parametrize("wrong", [5, "", "x" * (NOTE_MAX + 1), "a\0", ["x"]])
def test_import_of_what_is_no_note_is_refused(path, target, wrong):
    jobs = [json.loads(line) for line in lines_of(path)][1:-1]
    lines = [json.dumps({**job, "note": wrong}).encode() for job in jobs]
    with pytest.raises(BeanliteError, match="line 1: "):
        load(lines, target)


def test_backup_and_compacted_file_have_notes(path, target):
    backup(path, target)
    assert stored(target) == NOTES
    compact(path)
    assert stored(path) == NOTES


def test_salvage_saves_notes(path, target):
    assert salvage(path, target).is_all
    assert stored(target) == NOTES
    assert faults(target) == []


def test_salvage_tells_of_a_lost_note(path, target, capsys):
    with unchecked(path) as connection:
        connection.execute("UPDATE notes SET note = 'when' WHERE id = 1")
    result = salvage(path, target)
    assert (result.lost_notes, result.is_all) == (1, False)
    assert stored(target) == {3: LONG}
    assert main(["salvage", str(path), str(target.with_name("again.db"))]) != 0
    assert f"not saved from {path}: 1 note" in capsys.readouterr().err


def test_salvage_saves_no_note_of_a_lost_job(path, target):
    with unchecked(path) as connection:
        connection.execute("UPDATE jobs SET body = x'00' WHERE id = 3")
    assert salvage(path, target).lost == [3]
    assert stored(target) == {1: NOTES[1]}
    assert faults(target) == []


def test_salvage_takes_no_row_of_a_foreign_table_for_a_note(path, target):
    tell(path, "CREATE TABLE theirs (id INTEGER PRIMARY KEY, a TEXT, b INTEGER)")
    tell(path, "INSERT INTO theirs VALUES (5, 'text', 7)")
    assert salvage(path, target).is_all
    assert stored(target) == NOTES
