"""What several files say together: by their numbers, damaged, torn, lost, of both formats. All are made by hand."""

import sqlite3
from contextlib import closing

import pytest

from beanlite.binlog.importing import import_binlog
from beanlite.binlog.survey import Omission
from beanlite.errors import BeanliteError, BinlogRefused
from tests.support.binlogs import BURIED, CREATED_S, DELAYED, GONE, READY, RESERVED, begin, record, write
from tests.support.journal_files import snapshot


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def db(tmp_path):
    return tmp_path / "queue.db"


def rows(db, columns):
    with closing(sqlite3.connect(db)) as connection:
        return connection.execute(f"SELECT {columns} FROM jobs ORDER BY id").fetchall()  # noqa: S608


def bodies(log, db, **options):
    """Import, and give each job's body."""
    result = import_binlog(log, db, **options)
    found = dict(rows(db, "id, coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id))"))
    db.unlink()
    assert len(found) == result.jobs
    return found, result


def buried(log, db):
    """Import, and give the buried jobs in their order."""
    import_binlog(log, db)
    order = [job_id for _, job_id in sorted((seq, job_id) for seq, job_id in rows(db, "buried_seq, id") if seq)]
    db.unlink()
    return order


@pytest.mark.parametrize("version", [5, 7])
def test_each_column_of_both_formats(version, log, db):
    counters = {"reserve_ct": 1, "timeout_ct": 2, "release_ct": 3, "bury_ct": 4, "kick_ct": 5}
    full = {"version": version, "tube": "t", "ttr_s": 9}
    write(
        log,
        begin(version)
        + record(1, b"ready", pri=2**32 - 1, **full)
        + record(2, b"delayed", state=DELAYED, delay_s=30, due_s=CREATED_S + 30.5, **full)
        + record(3, b"buried", **full)
        + record(4, b"reserved", **full)
        + record(3, version=version, ttr_s=9, size=6, state=BURIED, pri=7, **counters)
        + record(4, version=version, ttr_s=9, size=8, state=RESERVED, reserve_ct=1)
        + record(5, b"x" * 1025, **full),
    )
    found, result = bodies(log, db)
    assert found == {1: b"ready", 2: b"delayed", 3: b"buried", 4: b"reserved", 5: b"x" * 1025}
    assert (result.jobs, result.ready, result.delayed, result.buried, result.last_id) == (5, 3, 1, 1, 5)
    import_binlog(log, db)
    columns = "id, tube, state, pri, delay_s, ttr_s, created_at, due_at, reserves, timeouts, releases, buries, kicks"
    created_at = float(CREATED_S)
    assert rows(db, columns) == [
        (1, "t", "ready", 2**32 - 1, 0, 9, created_at, None, 0, 0, 0, 0, 0),
        (2, "t", "delayed", 0, 30, 9, created_at, created_at + 30.5, 0, 0, 0, 0, 0),
        (3, "t", "buried", 7, 0, 9, created_at, None, 1, 2, 3, 4, 5),
        (4, "t", "ready", 0, 0, 9, created_at, None, 1, 0, 0, 0, 0),
        (5, "t", "ready", 0, 0, 9, created_at, None, 0, 0, 0, 0, 0),
    ]


def test_a_newer_beanstalkd_has_gone_on_where_an_old_one_was(log, db):
    """1.5 and later read the files of 1.4, and write new ones of their own."""
    write(
        log,
        begin(5) + record(1, b"one", version=5, ttr_s=5) + record(2, b"two", version=5),
        begin(7) + record(1, size=3, ttr_s=5, state=BURIED, pri=9) + record(2, state=GONE) + record(3, b"three"),
    )
    assert bodies(log, db)[0] == {1: b"one", 3: b"three"}
    import_binlog(log, db)
    assert rows(db, "id, state, pri, ttr_s, created_at") == [
        (1, "buried", 9, 5, CREATED_S),
        (3, "ready", 0, 60, CREATED_S),
    ]


def test_files_are_read_by_number_and_others_are_none_of_it(log, db):
    write(log, *[begin() + (record(1, b"%d" % number)) for number in range(1, 12)])
    for other in ("binlog.x", "binlog.", "binlog.12~", "binlog.012", "lock", "notes"):
        (log / other).write_bytes(b"not a binlog")
    assert bodies(log, db)[0] == {1: b"11"}


def test_a_full_record_of_a_known_job_replaces_it(log, db):
    write(
        log,
        begin() + record(1, b"old", tube="old") + record(1, size=3, state=BURIED, bury_ct=1),
        begin() + record(1, b"newer one", tube="new", pri=5),
    )
    assert bodies(log, db)[0] == {1: b"newer one"}
    import_binlog(log, db)
    assert rows(db, "tube, state, pri, buries, buried_seq") == [("new", "ready", 5, 0, None)]


def test_a_body_is_as_long_as_its_own_record_says(log, db):
    write(log, begin() + record(1, b"body") + record(1, size=3) + record(2, b"body") + record(2, size=300))
    assert bodies(log, db)[0] == {1: b"body", 2: b"body"}


def test_the_id_of_a_job_that_was_deleted_is_not_given_out_again(log, db):
    write(log, begin() + record(8, b"x") + record(9, b"x") + record(9, state=GONE))
    assert import_binlog(log, db).last_id == 9


@pytest.mark.parametrize("empty", [b"", bytes(3), bytes(4096), begin(), begin() + bytes(500)])
def test_files_in_which_nothing_was_written_are_skipped(empty, log, db):
    write(log, begin() + record(1, b"one"), empty, begin() + record(2, b"two"))
    assert bodies(log, db) == ({1: b"one", 2: b"two"}, import_binlog(log, db))


def test_buried_jobs_keep_their_order(log, db):
    names = [record(job_id, b"body") for job_id in (1, 2, 3, 4)]
    write(
        log,
        begin() + b"".join(names) + record(3, state=BURIED) + record(2, state=BURIED) + record(4, state=BURIED),
        begin() + record(2, state=READY) + record(1, state=BURIED) + record(3, state=BURIED),
    )
    assert buried(log, db) == [4, 1, 3]


def test_buried_jobs_keep_their_order_though_compaction_moved_them(log, db):
    """What had the full records is gone. The burials are still told before them."""
    write(
        log,
        begin() + record(2, state=BURIED) + record(1, state=BURIED) + record(3, state=BURIED) + record(3, state=READY),
        begin() + b"".join(record(job_id, b"body", state=BURIED) for job_id in (3, 1, 2)),
    )
    assert buried(log, db) == [2, 1, 3]


def test_survey_passes_over_updates_of_deleted_jobs_of_older_files(log, db):
    write(log, begin() + record(1, state=BURIED) + record(1, state=GONE) + record(2, b"two") + record(3, state=GONE))
    found, result = bodies(log, db)
    assert found == {2: b"two"}
    assert (result.without_body, result.last_id) == ([], 3)


def test_jobs_of_which_only_changes_are_left_are_told(log, db):
    """Somebody has removed the first file."""
    write(log, begin() + record(2, state=BURIED) + record(1, state=DELAYED) + record(3, b"three"))
    assert bodies(log, db)[1].without_body == [1, 2]


def test_each_file_may_have_a_torn_end(log, db):
    torn = record(2, b"two")[:-3]
    write(log, begin() + record(1, b"one") + torn, begin() + record(3, b"three") + torn + bytes(4000))
    found, result = bodies(log, db)
    assert found == {1: b"one", 3: b"three"}
    assert [(part.file, part.size) for part in result.left_out] == [("binlog.1", len(torn)), ("binlog.2", len(torn))]


def test_a_torn_copy_of_a_job_leaves_the_one_before(log, db):
    write(log, begin() + record(1, b"one") + record(1, b"one")[:-3])
    assert bodies(log, db)[0] == {1: b"one"}


DAMAGED = begin() + record(1, b"one") + b"\xff" * 200 + record(2, b"two")


@pytest.mark.parametrize(
    ("files", "said", "left_out", "saved"),
    [
        (
            [DAMAGED, begin() + record(3, b"three")],
            r"binlog\.1 is damaged: 200 bytes from byte 100 on are no record; --salvage goes on without that",
            Omission("binlog.1", 100, 200, "200 bytes from byte 100 on are no record"),
            {1: b"one", 2: b"two", 3: b"three"},
        ),
        (
            [begin() + record(1, b"one"), None, None, begin() + record(3, b"three")],
            r"binlog\.4 is damaged: the files between binlog\.1 and this one are missing; --salvage goes on",
            Omission("binlog.4", 0, 0, "the files between binlog.1 and this one are missing"),
            {1: b"one", 3: b"three"},
        ),
        (
            [begin() + record(1, b"one"), begin(8) + bytes(50), begin() + record(3, b"three")],
            r"binlog\.2 is of version 8, and only 5 and 7 can be read",
            Omission("binlog.2", 0, 54, "it does not begin as a binlog"),
            {1: b"one", 3: b"three"},
        ),
        *(
            (
                [begin(8) + record(1, b"one", version=version) + record(2, b"two", version=version)],
                r"binlog\.1 is of version 8, and only 5 and 7 can be read",
                Omission("binlog.1", 0, 4, "it does not begin as a binlog, but has records"),
                {1: b"one", 2: b"two"},
            )
            for version in (7, 5)
        ),
    ],
    ids=["garbage", "missing", "version", "head", "old head"],
)
def test_damage_in_the_middle_stops_unless_it_is_to_be_salvaged(files, said, left_out, saved, log, db):
    write(log, *[data or b"" for data in files])
    for number, data in enumerate(files, 1):
        if data is None:
            (log / f"binlog.{number}").unlink()
    before = snapshot(log)
    with pytest.raises(BinlogRefused, match=said):
        import_binlog(log, db)
    assert not db.exists()
    found, result = bodies(log, db, salvage=True)
    assert found == saved
    assert result.left_out == [left_out]
    assert snapshot(log) == before


def test_a_directory_without_a_binlog(tmp_path, db):
    with pytest.raises(BinlogRefused, match="has no binlog"):
        import_binlog(tmp_path, db)
    assert not db.exists()
    with pytest.raises(BeanliteError, match="none can't be read: No such file or directory"):
        import_binlog(tmp_path / "none", db)


def test_a_file_that_cannot_be_read(log, db):
    write(log, begin() + record(1, b"one"))
    (log / "binlog.2").mkdir()
    with pytest.raises(BeanliteError, match=r"binlog\.2 can't be read: it is a directory"):
        import_binlog(log, db)
    assert list(log.parent.iterdir()) == [log]
