"""An import amid which a sync fails says that nothing was added, or everything, only where that is so."""

import errno
import shutil
import sqlite3
from contextlib import closing

from beanlite.journal.sqlite.file.database import open_database
from tests.faults.forker import DATABASE, FAIL_ONCE, Fault, mask
from tests.support.journal_files import export_to_file, make_killed

SYNCS = 10  # more than an import makes


def jobs_in(path):
    with closing(open_database(path)) as database:
        return database.connection.execute("SELECT count(*) FROM jobs").fetchone()[0]


def test_sync_that_fails_amid_an_import_beside_a_reader(forkers, tmp_path):
    """The reader keeps the -wal from being emptied: a recovery finds a commit there whose sync has failed."""
    origin, export = tmp_path / "origin", tmp_path / "jobs.jsonl"
    origin.mkdir()
    make_killed(origin / DATABASE, batches=1)
    export_to_file(origin / DATABASE, export)

    def fail(forker, number):
        data = tmp_path / str(number)
        shutil.copytree(origin, data)
        path = data / DATABASE
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM jobs").fetchall()
            fault = Fault(FAIL_ONCE, mask("sync"), number, errno.EIO)
            ended = forker.command(["import", str(export), "--new-ids", "--db", str(path)], data, fault=fault)
        in_doubt = "it is not known whether everything was added to" in ended.stderr
        return ended.code, in_doubt, jobs_in(path)

    found = set(forkers.map(fail, range(1, SYNCS + 1)))
    assert found == {(3, False, 3), (1, True, 6), (0, False, 6)}
