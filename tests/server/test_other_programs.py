"""Another program locks the file, or changes it, while it is served."""

import threading

import pytest

from tests.support.servers import start_beanlite
from tests.support.sqlite_tool import ask, outsider, tell
from tests.support.wire import Wire, put_bytes, until


@pytest.mark.parametrize("size", [5, 9 << 20])
def test_a_locked_file_makes_commits_wait_and_nothing_else(tmp_path, size):
    with (
        start_beanlite(tmp_path, "--max-job-size", str(16 << 20)) as server,
        Wire(server.connect()) as wire,
        Wire(server.connect()) as other,
        outsider(tmp_path / "queue.db") as do,
    ):
        wire.put(b"job")
        do("BEGIN IMMEDIATE;")
        wire.send(put_bytes(b"x" * size))
        until(lambda: other.stats()["current-jobs-ready"] == "2")
        until(lambda: "commits wait" in server.log_text())
        assert other.ask("list-tubes").startswith("OK")
        wire.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            wire.reply()
        wire.socket.settimeout(10)
        do("COMMIT;")
        assert wire.reply() == "INSERTED 2"
        assert wire.put(b"job") == 3


def test_jobs_that_change_while_their_commit_waits(tmp_path):
    """The batch is retried as it was, whatever has happened to its jobs meanwhile."""
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire, Wire(server.connect()) as other:
        for _ in range(3):
            wire.put(b"stored", delay_s=1000)
        with outsider(tmp_path / "queue.db") as do:
            do("BEGIN IMMEDIATE;")
            wire.send(b"kick-job 1\r\nkick-job 2\r\npause-tube default 100\r\n" + put_bytes(b"new") * 3)
            until(lambda: other.stats()["total-jobs"] == "6")
            other.send(b"delete 1\r\ndelete 4\r\nreserve-job 2\r\nrelease 2 7 1000\r\nreserve-job 5\r\nbury 5 9\r\n")
            other.send(b"pause-tube default 0\r\n")
            with Wire(server.connect()) as third:
                until(lambda: third.stats("stats-tube default")["cmd-pause-tube"] == "2")
            do("COMMIT;")
        assert [wire.reply() for _ in range(6)] == "KICKED KICKED PAUSED".split() + [f"INSERTED {n}" for n in (4, 5, 6)]
        replies = [other.reply() for _ in range(7)]
        assert replies == ["DELETED", "DELETED", "RESERVED 2 6", "RELEASED", "RESERVED 5 3", "BURIED", "PAUSED"]
        server.kill()
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert [wire.ask(f"peek {job_id}").split()[0] for job_id in (1, 4)] == ["NOT_FOUND", "NOT_FOUND"]
        states = {job_id: wire.stats(f"stats-job {job_id}") for job_id in (2, 3, 5, 6)}
        assert {job_id: stats["state"] for job_id, stats in states.items()} == {
            2: "delayed",
            3: "delayed",
            5: "buried",
            6: "ready",
        }
        assert (states[2]["kicks"], states[2]["releases"], states[2]["pri"]) == ("1", "1", "7")
        assert wire.stats("stats-tube default")["pause"] == "0"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM jobs",
        "UPDATE jobs SET pri = 1",
        "UPDATE meta SET last_id = 0",
        "INSERT INTO pauses VALUES ('default', 1, 1)",
    ],
)
def test_an_outside_write_is_refused(tmp_path, statement):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        wire.put(b"job")
        assert "only_the_beanlite_server_may_write" in tell(tmp_path / "queue.db", statement)
        assert wire.ask("reserve") == "RESERVED 1 3"
        assert wire.ask("delete 1") == "DELETED"


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE pauses",
        "DROP TRIGGER jobs_update",
        "DROP TRIGGER jobs_update; UPDATE jobs SET pri = 9; {jobs_update}",
        "DROP VIEW ready",
        "ALTER TABLE jobs ADD COLUMN mine TEXT",
        "PRAGMA user_version = 9",
        "PRAGMA auto_vacuum = NONE; VACUUM",
    ],
)
def test_an_outside_change_of_what_is_ours_stops_it(tmp_path, statement):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire, Wire(server.connect()) as other:
        wire.put(b"before")
        guard = ask(tmp_path / "queue.db", "SELECT sql FROM sqlite_schema WHERE name = 'jobs_update'")
        assert tell(tmp_path / "queue.db", statement.format(jobs_update=guard)) == ""
        for each in (wire, other):
            each.send(put_bytes(b"after"))
        for each in (wire, other):
            with pytest.raises(ConnectionError):
                each.reply()
        assert server.process.wait(20) == 4
    why = f"another program has changed {tmp_path}/queue.db; it no longer is what was served"
    assert [line for line in server.log_text().splitlines() if line.startswith("beanlite:")] == [f"beanlite: {why}"]
    assert "Traceback" not in server.log_text()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE TRIGGER mine AFTER INSERT ON JOBS BEGIN DELETE FROM jobs WHERE id = NEW.id; END", "a trigger"),
        ("CREATE UNIQUE INDEX mine ON jobs (tube)", "an index"),
        ("CREATE INDEX mine ON jobs (json_extract(CAST(body AS TEXT), '$.a'))", "an index"),
        ("CREATE INDEX mine ON jobs (tube) WHERE json_extract(CAST(body AS TEXT), '$.a') = 1", "an index"),
    ],
)
def test_what_would_change_jobs_unnoticed_stops_it(tmp_path, statement, what):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        wire.put(b"1")
        assert tell(tmp_path / "queue.db", statement) == ""
        wire.send(put_bytes(b"no JSON"))
        with pytest.raises(ConnectionError):
            wire.reply()
        assert server.process.wait(20) == 4
    said = [line for line in server.log_text().splitlines() if line.startswith("beanlite:")]
    assert len(said) == 1
    assert f"{tmp_path}/queue.db has {what} of another program on its table jobs, mine, which" in said[0]


@pytest.mark.parametrize(
    "statement",
    [
        "ANALYZE",
        "VACUUM",
        "REINDEX",
        "CREATE INDEX mine ON jobs (tube COLLATE NOCASE, pri)",
        "CREATE VIEW mine AS SELECT 1",
        "CREATE TABLE mine (x); INSERT INTO mine VALUES (1)",
        "PRAGMA optimize",
        "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA wal_checkpoint(TRUNCATE)",
    ],
)
def test_what_others_do_beside_the_queue_is_no_harm(tmp_path, statement):
    """Clients notice nothing while the sqlite3 tool uses the file again and again."""
    file = tmp_path / "queue.db"
    stop = threading.Event()
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire, Wire(server.connect()) as other:
        kept = [wire.put(b"x" * size, pri=size) for size in (1, 100, 5000, 60_000) * 5]
        ids = []

        def work():
            while not stop.is_set():
                ids.append(other.put(b"job", pri=1 << 20))
                if len(ids) % 3 == 0:
                    assert other.ask(f"delete {ids.pop()}") == "DELETED"

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(5):
                until(lambda: tell(file, statement) == "" or "locked" not in tell(file, statement))
                wire.put(b"more")
        finally:
            stop.set()
            worker.join()
        assert server.process.poll() is None
        server.kill()
    noticed = "another program wrote to the file; the queue is unchanged" in server.log_text()
    assert noticed is (statement != "PRAGMA optimize")  # which finds nothing to do
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert {wire.ask(f"peek {job_id}").split()[0] for job_id in kept + ids} == {"FOUND"}
