"""What the sqlite3 command-line tool can see and do while a server has the file open."""

import os
import subprocess
import time

import pytest

from beanlite.host.clock import Clock
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.heartbeat import Heartbeat
from tests.support.journal_files import put
from tests.support.sqlite_tool import need_it

TABLES = ("jobs", "bodies", "pauses", "meta", "server")
VIEWS = ("tubes", "ready", "delayed", "reserved", "buried", "all_jobs", "alive")


@pytest.fixture
def database(tmp_path):
    database = open_database(tmp_path / "queue.db")
    yield database
    database.close()


@pytest.fixture
def cli(database):
    """A function that runs a statement in sqlite3, and returns the exit code, the output lines and the errors."""
    need_it()

    def run(sql):
        done = subprocess.run(["sqlite3", database.path, sql], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


def test_outside_writes_are_refused(database, cli):
    execute = database.connection.execute
    put(database.connection, 1, large=True)
    execute("INSERT INTO pauses VALUES ('default', 60, 0)")
    before = [execute(f"SELECT * FROM {table}").fetchall() for table in TABLES]  # noqa: S608
    writes = [
        "INSERT INTO jobs (id, tube, state) SELECT 2, tube, state FROM jobs",
        "INSERT INTO bodies VALUES (2, x'00')",
        "INSERT INTO pauses VALUES ('other', 60, 0)",
        "INSERT INTO meta VALUES (2, 0, 0, 0, 0)",
        "REPLACE INTO meta VALUES (1, 9, 9, 0, 0)",
        "INSERT INTO server (one, version, pid, address, started_at, seen_at) VALUES (1, '0', 1, '', 0, 0)",
        "UPDATE jobs SET state = 'buried' WHERE id = 1",
        "UPDATE jobs SET id = 2",
        "UPDATE bodies SET body = x'00'",
        "UPDATE pauses SET until = 0 WHERE tube = 'none'",
        "UPDATE meta SET last_id = 0",
        *(f"DELETE FROM {table}" for table in TABLES),  # noqa: S608
        "DELETE FROM jobs WHERE id = 1",
    ]
    for write in writes:
        code, _, errors = cli(write)
        assert code != 0, write
        assert "no such function: only_the_beanlite_server_may_write" in errors
    assert [execute(f"SELECT * FROM {table}").fetchall() for table in TABLES] == before  # noqa: S608


@pytest.mark.parametrize("name", TABLES + VIEWS)
def test_outside_reads_are_served(database, cli, name):
    for number, state in enumerate(("ready", "delayed", "reserved", "buried"), 1):
        put(database.connection, number, state=state, due_at=2e9, buried_seq=1, large=True)
    database.connection.execute("INSERT INTO pauses VALUES ('default', 60, 0)")
    Heartbeat(database.connection, "127.0.0.1:11300", Clock()).beat(1.0)
    code, lines, errors = cli(f"SELECT * FROM {name}")  # noqa: S608
    assert (code, errors) == (0, "")
    assert lines


def test_reading_during_a_transaction_of_the_server(database, cli):
    database.connection.execute("BEGIN IMMEDIATE")
    put(database.connection, 1)
    assert cli("SELECT count(*) FROM jobs") == (0, ["0"], "")
    database.connection.execute("COMMIT")
    assert cli("SELECT count(*) FROM jobs") == (0, ["1"], "")


def test_tubes(database, cli):
    now = time.time()
    put(database.connection, 1, created_at=now - 100)
    put(database.connection, 2, created_at=now - 1000, state="delayed")
    put(database.connection, 3, created_at=now - 10, state="reserved")
    put(database.connection, 4, created_at=now - 10, state="buried")
    put(database.connection, 5, created_at=now - 10, state="buried")
    put(database.connection, 6, created_at=now - 10, tube="a")
    database.connection.execute(
        "INSERT INTO pauses VALUES ('a', 60, ?), ('default', 60, ?), ('empty', 9, ?), ('long ago', 9, 1)",
        (now - 2, now + 1000.5, now + 2000.5),
    )
    code, lines, _ = cli("SELECT tube, ready, delayed, reserved, buried, total, oldest_s, paused_until FROM tubes")
    assert code == 0
    a, default, empty = (line.split("|") for line in lines)
    assert a[:6] == ["a", "1", "0", "0", "0", "1"]
    assert a[7] == ""
    assert default[:6] == ["default", "1", "1", "1", "2", "5"]
    assert int(default[6]) in range(999, 1010)
    assert float(default[7]) == pytest.approx(now + 1000.5)
    assert empty[:7] == ["empty", "0", "0", "0", "0", "0", ""]
    assert float(empty[7]) == pytest.approx(now + 2000.5)


def test_queue_order(database, cli):
    rows = [  # id, state, tube, pri, due_at, buried_seq; jobs of each state are not in the order of their queue
        (1, "ready", "b", 0, None, None),
        (2, "ready", "a", 9, None, None),
        (3, "ready", "a", 10, None, None),
        (4, "ready", "a", 9, None, None),
        (11, "delayed", "b", 0, 5, None),
        (12, "delayed", "a", 0, 30, None),
        (13, "delayed", "a", 5, 4, None),
        (14, "delayed", "a", 0, 30, None),
        (21, "reserved", "a", 0, 9, None),
        (22, "reserved", "b", 0, 10, None),
        (23, "reserved", "a", 0, 8, None),
        (31, "buried", "b", 0, None, 1),
        (32, "buried", "a", 0, None, 10),
        (33, "buried", "a", 9, None, 9),
    ]
    for number, state, tube, pri, due_at, buried_seq in rows:
        put(database.connection, number, state=state, tube=tube, pri=pri, due_at=due_at, buried_seq=buried_seq)
    assert {view: cli(f"SELECT id FROM {view}")[1] for view in VIEWS[1:5]} == {  # noqa: S608
        "ready": ["2", "4", "3", "1"],
        "delayed": ["13", "12", "14", "11"],
        "reserved": ["23", "21", "22"],
        "buried": ["33", "32", "31"],
    }


def test_what_is_shown_of_a_job(database, cli):
    now = time.time()
    put(database.connection, 7, b"inline", state="delayed", created_at=now - 50, due_at=now + 500, kicks=3)
    put(database.connection, 8, b"apart", large=True, state="reserved", created_at=now - 50, due_at=now + 500)
    _, delayed, _ = cli("SELECT id, tube, pri, kicks, body, age_s, delay_left_s FROM delayed")
    _, reserved, _ = cli("SELECT id, tube, pri, kicks, body, age_s, ttr_left_s FROM reserved")
    *fields, age_s, left_s = delayed[0].split("|")
    assert fields == ["7", "default", "0", "3", "inline"]
    assert int(age_s) in range(49, 60)
    assert int(left_s) in range(490, 502)
    *fields, age_s, left_s = reserved[0].split("|")
    assert fields == ["8", "default", "0", "0", "apart"]
    assert int(age_s) in range(49, 60)
    assert int(left_s) in range(490, 502)


def test_since_when_who_and_why(database, cli):
    now = time.time()
    facts = {"holder": "10.0.0.7:1234", "holder_conn": 8}
    put(database.connection, 1, b"three\nlines\r\nwith a \xc3\xa9", since=now - 100, created_at=now - 200, pri=3)
    put(database.connection, 2, state="reserved", due_at=now + 60, since=now - 10, **facts)
    put(
        database.connection,
        3,
        b"x" * 5000,
        large=True,
        state="buried",
        buried_seq=1,
        since=1.7e9,
        why="client",
        **facts,
    )
    put(database.connection, 4, state="delayed", due_at=1.9e9, since=None)
    assert cli("SELECT id, holder, holder_conn FROM reserved")[1] == ["2|10.0.0.7:1234|8"]
    assert cli("SELECT id, since, why, holder, size, length(preview) FROM buried")[1] == [
        "3|2023-11-14 22:13:20|client|10.0.0.7:1234|5000|60"
    ]
    assert cli("SELECT id, due, since, in_state_s FROM delayed")[1] == ["4|2030-03-17 17:46:40||"]
    assert cli("SELECT preview FROM ready WHERE text LIKE '%lines%'")[1] == ["three lines  with a é"]
    assert cli("SELECT id FROM all_jobs WHERE text = 'body' ORDER BY id")[1] == ["2", "4"]
    ages = cli("SELECT ready.in_state_s, ready.age_s, reserved.ttr_left_s FROM ready, reserved")[1][0]
    ready_s, age_s, left_s = map(int, ages.split("|"))
    assert ready_s in range(100, 110)
    assert age_s in range(200, 210)
    assert left_s in range(50, 60)
    oldest_s, bytes_ = cli("SELECT oldest_ready_s, bytes FROM tubes")[1][0].split("|")
    assert int(oldest_s) in range(100, 110)
    assert int(bytes_) == 22 + 4 + 5000 + 4


def test_ages_are_right_to_the_second(database):
    now = time.time()
    for number in range(6):
        put(database.connection, number, created_at=now - 1 - number / 10, since=now - 2 - number / 10)
    ages = database.connection.execute("SELECT DISTINCT age_s, in_state_s FROM ready").fetchall()
    assert ages == [(1, 2)]


def test_whether_the_server_lives(database, cli):
    heartbeat = Heartbeat(database.connection, "127.0.0.1:11300", Clock())
    heartbeat.beat(1.0)
    _, lines, _ = cli("SELECT status, pid, address, stopped, seen_s < 30 FROM alive")
    assert lines == [f"serving|{os.getpid()}|127.0.0.1:11300||1"]
    database.connection.execute("UPDATE server SET seen_at = seen_at - 100")
    assert cli("SELECT status FROM alive")[1][0].startswith("not heard of for 10")
    heartbeat.end()
    assert cli("SELECT status, stopped = seen, seen_s < 30 FROM alive")[1] == ["stopped in an orderly way|1|1"]


def test_a_server_may_listen_on_a_path_that_is_no_text(database):
    Heartbeat(database.connection, os.fsdecode(b"unix:queue\xff"), Clock()).beat(1.0)
    assert database.connection.execute("SELECT address FROM server").fetchone() == ("unix:queue\\udcff",)


def test_a_sign_of_life_is_given_when_it_is_due_and_not_sooner(database, monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    heartbeat = Heartbeat(database.connection, "unix:socket", Clock())
    heartbeat.beat(1.0)
    assert [heartbeat.beat(1.0), heartbeat.beat(10.0)] == [False, False]
    now_s += 1
    assert [heartbeat.beat(10.0), heartbeat.beat(1.0), heartbeat.beat(1.0)] == [False, True, False]
    now_s += 10
    assert heartbeat.beat(10.0)
