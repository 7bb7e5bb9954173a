"""Salvage: it saves everything that is sound and nothing else, and leaves the source unchanged."""

import json
import re
import shutil
import sqlite3
import struct
from contextlib import closing, suppress
from pathlib import Path

import pytest

from beanlite.cli import main
from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE, wal_of
from beanlite.journal.sqlite.file.replay import read_state
from beanlite.journal.sqlite.file.wal import commit_frames, last_frame_offset
from beanlite.journal.sqlite.tools.btree import LEAF_TABLE, Pages
from beanlite.journal.sqlite.tools.salvage import salvage
from beanlite.journal.sqlite.tools.verify import verify
from beanlite.journal.validity import COUNTER_MAX
from tests.faults.rot import JOB_WIDTH, Rot, jobs_of
from tests.support.journal_files import LARGE, flip, make, make_killed, put, snapshot, unchecked, writer
from tests.support.sqlite_tool import tell

SEEDS = 20


@pytest.fixture
def path(tmp_path):
    (tmp_path / "source").mkdir()
    return tmp_path / "source" / "queue.db"


@pytest.fixture
def dest(tmp_path):
    return tmp_path / "saved.db"


def root_of(path, table):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()[0]


def wipe(path, page):
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE_SIZE)
        file.write(bytes(PAGE_SIZE))


@pytest.mark.parametrize("orderly", [True, False])
def test_random_damages(tmp_path, orderly):
    rot = Rot(tmp_path, jobs=150, orderly=orderly)
    assert [each for seed in range(SEEDS) for each in rot.try_seed(seed)] == []


def page_of(rot, table, rowid):
    """Return the page on which a row of a table is."""
    with closing(Pages(rot.origin)) as pages:
        spans = pages.spans(pages.in_use())
    return next(page for page, each in spans.items() if any(name == table and a < rowid <= b for name, a, b in each))


def free_page_of(rot, job_id):
    """Return the page on which the row of a deleted job is left."""
    with closing(Pages(rot.origin)) as pages:
        free = set(range(2, pages.count + 1)).difference(pages.in_use())
        rows = {page: {rowid for rowid, row in pages.rows(page) if len(row) == JOB_WIDTH} for page in free}
    return next(page for page in free if job_id in rows[page])


def test_page_in_place_of_another_page_of_jobs_is_refused_in_a_line(tmp_path):
    rot = Rot(tmp_path)
    assert rot.try_copy(root_of(rot.origin, "bodies"), page_of(rot, "bodies", 559)) == []


def test_jobs_overwritten_with_those_of_another_page_are_told(tmp_path):
    rot = Rot(tmp_path)
    assert rot.try_copy(page_of(rot, "bodies", 669), page_of(rot, "jobs", 83)) == []


@pytest.mark.parametrize(("job_id", "other_id"), [(302, 214), (349, 351)])
def test_deleted_jobs_on_an_old_page_that_fits_where_it_is_are_told(tmp_path, job_id, other_id):
    rot = Rot(tmp_path)
    assert rot.try_copy(free_page_of(rot, job_id), page_of(rot, "jobs", other_id)) == []


def test_export_does_not_take_a_doubled_page_for_the_jobs_it_replaced(tmp_path):
    """The number of jobs is as before."""
    rot = Rot(tmp_path)
    page, other = page_of(rot, "jobs", 642), page_of(rot, "jobs", 204)
    assert [len([job for job in rot.pages if each in rot.pages[job]]) for each in (page, other)] == [9, 9]
    assert rot.try_copy(page, other) == []


@pytest.mark.parametrize("orderly", [True, False])
def test_page_of_a_small_table_with_rows_of_another_is_told(tmp_path, orderly):
    rot = Rot(tmp_path, orderly=orderly)
    small = ("pauses", "policies", "schedules", "server")
    for source in (*small, "meta", "jobs", "bodies"):
        for target in {*small} - {source}:
            assert rot.try_copy(root_of(rot.origin, source), root_of(rot.origin, target)) == [], (source, target)


@pytest.mark.parametrize("root", [0, -5, 1, 99_999, 1 << 40, 1 << 62])
def test_wrong_root_of_a_table_is_told(path, dest, root):
    make(path, batches=1)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET rootpage = ? WHERE name = 'policies'", (root,))
    result = salvage(path, dest)
    assert (result.jobs, result.is_all) == (3, False)


@pytest.mark.parametrize("table", ["jobs", "sqlite_schema"])
def test_bodies_that_another_tables_inner_page_leads_to_are_saved(tmp_path, table):
    rot = Rot(tmp_path)
    page = page_of(rot, table, 630 if table == "jobs" else 1)
    assert rot.try_copy(root_of(rot.origin, "bodies"), page) == []


@pytest.mark.parametrize("table", ["jobs", "pauses", "server"])
def test_a_page_that_has_lost_a_row_is_told(path, dest, table):
    make(path, batches=1)
    with closing(open_database(path)) as database:
        database.connection.execute("INSERT INTO pauses VALUES ('default', 60, 4e9)")
        database.connection.execute(CLOCK)
    rows = (root_of(path, table) - 1) * PAGE_SIZE + 4
    content = bytearray(path.read_bytes())
    content[rows] -= 1
    path.write_bytes(content)
    result = salvage(path, dest)
    assert (result.unreadable, result.lost_clock, result.is_all) == (1, False, False)


@pytest.mark.parametrize("said", ["CAST(said AS BLOB)", "replace(said, 't 6', 't!6')", "replace(said, 'd', 'D')"])
def test_a_pause_that_has_changed_is_told(path, dest, said):
    make(path, batches=1)
    with closing(open_database(path)) as database:
        database.connection.execute("INSERT INTO pauses VALUES ('default', 60, 4e9)")
    with unchecked(path) as connection:
        connection.execute(f"UPDATE pauses SET said = {said}")  # noqa: S608 - our own words
    result = salvage(path, dest)
    assert (result.pauses, result.lost_pauses, result.is_all) == (0, 1, False)


def test_a_sound_file_is_saved_whole_and_only_read(path, dest):
    make(path, batches=40)
    with closing(open_database(path)) as database:
        database.connection.execute("INSERT INTO pauses VALUES ('default', 60, 4e9)")
    before = snapshot(path.parent)
    result = salvage(path, dest)
    assert (result.jobs, result.pauses, result.last_id, result.is_all) == (120, 1, 120, True)
    assert snapshot(path.parent) == before
    assert jobs_of(dest) == jobs_of(path)
    assert [finding for finding in verify(dest) if not finding.sound] == []


def test_a_page_that_tells_which_pages_are_free_is_no_page_of_rows(path, dest):
    make(path)
    with closing(open_database(path)) as database:
        for number in (1, 2):
            put(database.connection, number, b"x" * 4_000_000, large=True)
        database.connection.execute("DELETE FROM bodies WHERE id = 2")
        database.connection.execute("DELETE FROM jobs WHERE id = 2")
    result = salvage(path, dest)
    assert (result.jobs, result.unreadable, result.is_all) == (1, 0, True)


def test_a_table_of_another_program_is_none_of_bodies(path, dest):
    """Though its rows are like those of bodies."""
    make(path, batches=2)
    tell(path, "CREATE TABLE theirs (id INTEGER PRIMARY KEY, data BLOB)")
    tell(path, "INSERT INTO theirs SELECT value, randomblob(100) FROM generate_series(3, 9000)")
    result = salvage(path, dest)
    assert (result.jobs, result.lost, result.last_id, result.is_all) == (6, [], 6, True)
    assert jobs_of(dest) == jobs_of(path)


def test_id_that_damage_has_made_does_not_raise_the_next_ids(path, dest):
    make(path, batches=40)
    with unchecked(path) as connection:
        connection.execute("UPDATE meta SET last_id = last_id + 1")
        connection.execute("UPDATE jobs SET id = ? WHERE id = 7", (COUNTER_MAX - 1,))
    result = salvage(path, dest)
    assert (result.jobs, result.last_id, result.lost) == (119, None, [COUNTER_MAX - 1])
    with closing(open_database(dest)) as database:
        assert 120 < read_state(database.connection, dest).last_id < 1 << 32


def test_what_a_killed_server_has_left_is_saved_with_its_wal(path, dest):
    make_killed(path, batches=60)
    expected = jobs_of(path)
    assert salvage(path, dest).jobs == len(expected) == 150
    assert jobs_of(dest) == expected


@pytest.mark.parametrize("offset", [0, 3, 8, 17, 24 + 100], ids=["no page", "another page", "salt", "checksum", "page"])
def test_a_damaged_frame_of_the_wal_is_told(path, dest, capsys, offset):
    """The page is as it was before, where the frame can't be told to be its own: a deleted job is back."""
    origin = path.with_name("origin.db")
    with closing(open_database(origin)) as database:
        for number in range(1, 301):
            put(database.connection, number)
        database.connection.execute("DELETE FROM jobs WHERE id = 3")
        database.connection.execute("DELETE FROM jobs WHERE id = 298")  # on another page
        for file, name in ((origin, path), (wal_of(origin), wal_of(path))):
            shutil.copy(file, name)
    deletes = commit_frames(path)[-2:]
    assert salvage(path, dest).is_all
    dest.unlink()
    flip(wal_of(path), last_frame_offset(deletes[0]) + offset)
    assert main(["salvage", str(path), str(dest)]) == 3
    assert re.search(r"what stood on \d pages? that can't be read, or not understood", capsys.readouterr().err)


@pytest.mark.parametrize("table", ["jobs", "bodies"])
def test_the_first_page_of_a_table_is_not_needed(path, dest, table):
    make(path, batches=45)
    wipe(path, root_of(path, table))
    result = salvage(path, dest)
    assert (result.jobs, result.lost, result.unreadable) == (135, [], 1)


def test_the_schema_is_not_needed(path, dest):
    make(path, batches=45)
    wipe(path, 1)
    result = salvage(path, dest)
    assert (result.jobs, result.lost) == (135, [])


def test_jobs_that_were_deleted_stay_so_whatever_one_page_says(path, dest):
    make(path, batches=50)
    with closing(open_database(path)) as database:
        database.connection.execute("DELETE FROM jobs WHERE id > 20")
        database.connection.execute("DELETE FROM bodies WHERE id > 20")
    content = path.read_bytes()
    assert content.count(b"small") > 20  # remains of deleted jobs
    for page in (1, 2, *range(3, len(content) // PAGE_SIZE + 1, 9)):
        path.write_bytes(content)
        wipe(path, page)
        dest.unlink(missing_ok=True)
        with suppress(JournalRefused):
            salvage(path, dest)
            assert all(json.loads(line)["id"] <= 20 for line in jobs_of(dest))


@pytest.fixture
def old_pages(path):
    """The table of each page, and the free pages with remains of deleted jobs."""
    with closing(open_database(path)) as database:
        execute = database.connection.execute
        execute("BEGIN")
        for number in range(1, 401):
            put(database.connection, number, LARGE if number % 20 == 0 else b"small", large=number % 20 == 0)
        execute("UPDATE meta SET last_id = 400")
        execute("COMMIT")
        for table in ("jobs", "bodies"):
            execute(f"DELETE FROM {table} WHERE id BETWEEN 100 AND 300")  # noqa: S608 - our own words
    with closing(Pages(path)) as pages:
        tables = {number: table for number, [(table, *_)] in pages.spans(pages.in_use()).items()}
        free = [number for number in pages._free() if pages.read(number)[0] == LEAF_TABLE]
        old = {number: {job_id for job_id, values in pages.rows(number) if len(values) == JOB_WIDTH} for number in free}
    return tables, {number: jobs for number, jobs in old.items() if any(100 <= job_id <= 300 for job_id in jobs)}


def copy_page(path, source, target):
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek((target - 1) * PAGE_SIZE)
        file.write(content[(source - 1) * PAGE_SIZE : source * PAGE_SIZE])


@pytest.mark.parametrize("target", ["meta", "bodies", "jobs"])
def test_an_old_page_in_a_wrong_place_brings_nothing_back(path, dest, old_pages, target):
    tables, old = old_pages
    place = max(number for number, table in tables.items() if table == target)
    copy_page(path, next(iter(old)), place)
    assert not salvage(path, dest).is_all
    assert not {json.loads(line)["id"] for line in jobs_of(dest)} & set(range(100, 301))


def test_a_page_that_sqlite_has_moved_is_saved(path, dest, old_pages):
    """A free page at the old place may hold a copy. The number of jobs shows that the moved page is not the old one."""
    tables, old = old_pages
    page = max(number for number, table in tables.items() if table == "jobs")
    copy_page(path, page, next(iter(old)))
    expected = jobs_of(path)
    result = salvage(path, dest)
    assert (result.is_all, len(result.doubtful) > 0) == (False, True)
    assert jobs_of(dest) == expected
    dest.unlink()
    with closing(open_database(path)) as database:
        database.connection.execute("UPDATE meta SET jobs = ?", (len(expected),))
        database.connection.execute(CLOCK)
    expected = jobs_of(path)
    assert salvage(path, dest).is_all
    assert jobs_of(dest) == expected


def test_number_of_jobs_at_the_last_stop_is_told_if_fewer_are_left(path, dest, capsys):
    make(path, batches=1)
    with closing(open_database(path)) as database:
        database.connection.execute("UPDATE meta SET jobs = 5")
    assert main(["salvage", str(path), str(dest)]) == 3
    assert "3 jobs saved, and 5 were there at the last stop" in capsys.readouterr().err


def test_a_body_that_has_changed_loses_its_job_alone(path, dest, capsys):
    make(path, batches=3)
    flip(path, path.read_bytes().index(LARGE[:100]))
    assert main(["salvage", str(path), str(dest)]) == 3
    printed = capsys.readouterr()
    assert "saved.db: 8 jobs, 0 pauses" in printed.out
    assert "1 job of which only a part is left (" in printed.err
    assert printed.err.count("\n") == 1


def test_the_last_id_is_kept_or_left_far_behind(path, dest):
    make(path, batches=3)
    content = path.read_bytes()
    assert content.count(b"3 9 0 -") == 1
    path.write_bytes(content.replace(b"3 9 0 -", b"3 8 0 -"))
    result = salvage(path, dest)
    assert (result.jobs, result.last_id, result.is_all) == (9, None, False)
    with closing(sqlite3.connect(dest)) as connection:
        assert connection.execute("SELECT last_id FROM meta").fetchone() == (1_000_009,)


def test_nothing_is_overwritten_or_made_of_nothing(path, dest, capsys):
    make(path, batches=1)
    dest.write_bytes(b"mine")
    with pytest.raises(BeanliteError, match="exists; name a file that does not"):
        salvage(path, dest)
    assert dest.read_bytes() == b"mine"
    dest.unlink()
    other = Path(path.with_name("other"))
    other.write_bytes(b"text" * 5000)
    with pytest.raises(JournalRefused, match="has nothing that can be saved"):
        salvage(other, dest)
    assert not dest.exists()
    assert main(["salvage", str(path.with_name("none")), str(dest), "--json"]) == 1
    assert "can't be opened" in capsys.readouterr().err
    assert main(["salvage", str(path), str(dest), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 3


CLOCK = "INSERT INTO server VALUES (1, '1', 1, 'unix:socket', 1.7e9, 1.7e9 + 0.25, NULL, 7200.5, 'boot', 123456789)"
LOOK = "SELECT seen_at, ahead_s, boot, offset_ns FROM server"


def test_the_clock_by_which_the_times_are_comes_along(path, dest):
    make(path, batches=1)
    with closing(open_database(path)) as database:
        database.connection.execute(CLOCK)
    assert salvage(path, dest).is_all
    assert jobs_of(dest) == jobs_of(path)
    with closing(sqlite3.connect(dest)) as connection:
        assert connection.execute(LOOK).fetchall() == [(1.7e9 + 0.25, 7200.5, "boot", 123456789)]


@pytest.mark.parametrize("damage", ["boot = x'41'", "seen_at = 1e10", "offset_ns = 'text'"])
def test_clock_that_no_server_has_written_does_not_come_along(path, dest, capsys, damage):
    make(path, batches=1)
    with closing(open_database(path)) as database:
        database.connection.execute(CLOCK)
    with unchecked(path) as connection:
        connection.execute(f"UPDATE server SET {damage}")  # noqa: S608 - our own words
    assert main(["salvage", str(path), str(dest)]) == 3
    assert "what clock the times are by" in capsys.readouterr().err
    assert [finding for finding in verify(dest) if not finding.sound] == []


def test_clock_that_has_changed_does_not_come_along(path, dest):
    make(path, batches=1)
    with closing(open_database(path)) as database:
        database.connection.execute(CLOCK)
    content = path.read_bytes()
    place = content.index(struct.pack(">d", 7200.5), content.index(b"unix:socket"))
    flip(path, place + 1)
    result = salvage(path, dest)
    assert (result.jobs, result.lost_clock, result.is_all) == (3, True, False)


def test_clock_without_a_row_is_missed_only_after_an_orderly_stop(path, dest):
    make(path, batches=1)
    assert not salvage(path, dest).lost_clock
    dest.unlink()
    with closing(open_database(path)) as database:
        database.connection.execute("UPDATE meta SET jobs = 3")
    assert salvage(path, dest).lost_clock


@pytest.mark.usefixtures("poor_locks")
def test_file_that_nobody_can_lock_is_saved(path, dest):
    make(path, batches=1)
    assert salvage(path, dest).jobs == 3


def test_a_file_that_a_server_has_is_refused(path, dest):
    with writer(path, "idle"), pytest.raises(JournalRefused, match="a server or another command holds"):
        salvage(path, dest)
