"""Directories that a real beanstalkd has written, imported: each job is what beanstalkd itself makes of them."""

import os
import random
import shutil
import sys
import time

import pytest

from beanlite.binlog.importing import import_binlog
from beanlite.binlog.survey import lock
from beanlite.errors import BinlogRefused
from beanlite.journal.sqlite.file.database import open_database
from tests.support.beanstalkd_jobs import TUBES, Producer, as_beanstalkd_reads, kick_order, stats_of_all
from tests.support.journal_files import snapshot
from tests.support.servers import ServerDied, beanstalkd_program, start_beanlite, start_beanstalkd
from tests.support.wire import Wire

pytestmark = pytest.mark.skipif(beanstalkd_program() is None, reason="beanstalkd is not installed")

GONE = ({"state": "gone"}, b"")


def check_same(log, db, buried):
    """All that a beanstalkd reads from a directory is in the database, and what was buried is in order.

    ``buried`` None: the order is not looked at.
    """
    db.parent.mkdir()
    before = snapshot(log)
    result = import_binlog(log, db)
    assert snapshot(log) == before
    assert (result.left_out, result.without_body, result.left) == ([], [], None)
    last_id = result.last_id + 10
    expected = as_beanstalkd_reads(log, last_id)
    shutil.copy(db, db.parent / "queue.db")
    with start_beanlite(db.parent) as server:
        assert stats_of_all(server, last_id) == expected
        for tube, job_ids in (buried or {}).items():
            in_order = [job_id for job_id in job_ids if expected.get(job_id, GONE)[0]["state"] == "buried"]
            assert kick_order(server, tube) == in_order
        with Wire(server.connect()) as wire:
            assert wire.put(b"") > result.last_id
    states = [stats["state"] for stats, _ in expected.values()]
    assert [result.jobs, result.ready, result.delayed, result.buried] == [
        len(states),
        *(states.count(state) for state in ("ready", "delayed", "buried")),
    ]
    return result


@pytest.fixture
def log(tmp_path):
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


@pytest.mark.parametrize("segment_bytes", [4096, 10 << 20], ids=["many files", "one file"])
def test_whatever_was_done_to_jobs(segment_bytes, log, tmp_path):
    seed = int(os.environ.get("BINLOG_SEED", random.SystemRandom().randrange(1 << 32)))
    sys.stdout.write(f"BINLOG_SEED={seed}\n")
    producer = Producer(seed)
    migrated = 0
    for _ in range(2):
        with (
            start_beanstalkd(tmp_path, "-b", str(log), "-s", str(segment_bytes)) as server,
            Wire(server.connect()) as wire,
        ):
            producer.begin(wire)
            producer.go(400)
            migrated += int(wire.stats()["binlog-records-migrated"])
            server.kill()
    # Compaction may lose the order in which jobs were buried.
    result = check_same(log, tmp_path / "new" / "imported.db", producer.buried if not migrated else None)
    assert result.ready
    assert result.delayed
    assert result.buried


def test_jobs_that_compaction_has_moved_on(log, tmp_path):
    """With the records of the burials their order is gone: what is left is the order in which jobs were moved."""
    with start_beanstalkd(tmp_path, "-b", str(log), "-s", "4096") as server, Wire(server.connect()) as wire:
        for number in range(6):
            wire.put(b"body %d" % number, pri=number)
        for _ in range(6):
            wire.ask("reserve")
        for command in ("bury 3 30", "bury 1 10", "release 2 20 1000", "bury 5 50", "release 4 40 0"):
            wire.ask(command)
        while int(wire.stats()["binlog-oldest-index"]) < 4:
            wire.ask(f"delete {wire.put(bytes(1000))}")
        assert int(wire.stats()["binlog-records-migrated"]) >= 6
        server.kill()
    assert not (log / "binlog.1").exists()
    result = check_same(log, tmp_path / "new" / "imported.db", {**{tube: [] for tube in TUBES}, "default": [1, 3, 5]})
    assert (result.ready, result.delayed, result.buried) == (2, 1, 3)


def test_times_are_right_to_the_fraction_of_a_second(log, tmp_path):
    with start_beanstalkd(tmp_path, "-b", str(log)) as server, Wire(server.connect()) as wire:
        before_s = time.time()
        wire.put(b"", delay_s=1000)
        after_s = time.time()
    import_binlog(log, tmp_path / "queue.db")
    database = open_database(tmp_path / "queue.db")
    created_at, due_at = database.connection.execute("SELECT created_at, due_at FROM jobs").fetchone()
    database.close()
    # As binary fractions the times are right to a quarter of a microsecond.
    assert before_s - 1e-5 <= created_at <= after_s + 1e-5
    assert created_at + 1000 - 1e-5 <= due_at <= after_s + 1000 + 1e-5


def test_a_directory_that_a_beanstalkd_holds_is_refused(log, tmp_path):
    with start_beanstalkd(tmp_path, "-b", str(log)):
        with pytest.raises(BinlogRefused, match=r"^a beanstalkd is running on .*log; stop it first$"):
            import_binlog(log, tmp_path / "queue.db")
        assert not (tmp_path / "queue.db").exists()
    import_binlog(log, tmp_path / "queue.db")


def test_no_beanstalkd_starts_on_a_directory_that_is_being_imported(log, tmp_path):
    with start_beanstalkd(tmp_path, "-b", str(log)):
        pass
    with lock(log), pytest.raises(ServerDied, match="failed to lock wal dir"):
        start_beanstalkd(tmp_path, "-b", str(log))


def test_a_torn_end_takes_only_what_was_torn(log, tmp_path):
    """Cut anywhere in the last record, or with zeros from there on, as files have that were killed."""
    with start_beanstalkd(tmp_path, "-b", str(log), "-s", "4096") as server, Wire(server.connect()) as wire:
        wire.put(b"kept")
        wire.put(b"torn")
    file = log / "binlog.1"
    whole = file.read_bytes()
    file.chmod(0o600)
    end = len(whole.rstrip(b"\0"))
    for rest in (b"", bytes(len(whole) - end)):
        for size in range(whole.rindex(b"default") + 1, end, 11):
            file.write_bytes(whole[:size] + rest)
            db = tmp_path / "queue.db"
            result = import_binlog(log, db)
            db.unlink()
            assert (result.jobs, result.last_id) == (1, 1)
            [torn] = result.left_out
            assert (torn.file, torn.at) == ("binlog.1", whole.rindex(b"default") - 4)
            assert torn.why.startswith("the last record, of which no more than ")
