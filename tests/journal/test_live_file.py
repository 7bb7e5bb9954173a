"""The database file of a running server: read with the sqlite3 tool, and backed up, while clients are at work."""

import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.history import Shared
from tests.support.servers import start_beanlite
from tests.support.sqlite_tool import ask
from tests.support.wire import Wire, until

ROOT = Path(__file__).parents[2]
LOOKS = 20
BACKUPS = 2


@contextmanager
def load(server, clients=4):
    """Have clients work until the block ends; yield what they know of the jobs."""
    shared = Shared(lambda: None)
    wires = [Wire(server.connect()) for _ in range(clients)]
    errors = []

    def work(wire, chance):
        try:
            shared.work(wire, chance)
        except OSError:
            pass  # its socket was shut
        except Exception as error:  # noqa: BLE001 - raised when the load ends
            errors.append(error)

    threads = [threading.Thread(target=work, args=(wire, random.Random(n))) for n, wire in enumerate(wires)]
    for thread in threads:
        thread.start()
    try:
        yield shared
    finally:
        for wire in wires:
            wire.socket.shutdown(2)
        for thread in threads:
            thread.join()
        for wire in wires:
            wire.close()
    assert not errors, errors[0]


def sqlite(file, statement):
    """Run a statement in the sqlite3 command-line tool, and return the lines of its output."""
    return ask(file, statement).splitlines()


def look(wire):
    """Yield, for each tube with jobs, the server's counts: tube, ready, delayed, reserved, buried, total."""
    wire.ask("list-tubes")
    for tube in [line.removeprefix("- ") for line in wire.body.decode().splitlines()[1:]]:
        stats = wire.stats(f"stats-tube {tube}")
        counts = [int(stats[f"current-jobs-{state}"]) for state in ("ready", "delayed", "reserved", "buried")]
        if sum(counts):
            yield "|".join(map(str, (tube, *counts, sum(counts))))


def test_the_views_answer_under_load_and_agree_when_it_stops(tmp_path):
    file = tmp_path / "queue.db"
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        for tube, delay_s in (("some", 0), ("some", 0), ("some", 100), ("others", 0)):
            wire.ask(f"use {tube}")
            wire.put(b"job", delay_s=delay_s)
        wire.ask("watch some")
        assert wire.ask("reserve") == "RESERVED 1 3"
        assert wire.ask("reserve") == "RESERVED 2 3"
        assert wire.ask("bury 2 5") == "BURIED"
        with load(server) as shared:
            until(lambda: shared.deleted)
            until(lambda: sqlite(file, "SELECT id FROM reserved WHERE tube = 'some'"))
            for _ in range(LOOKS):
                assert any(line.startswith("some|0|1|1|1|3|") for line in sqlite(file, "SELECT * FROM tubes"))
            assert sqlite(file, "PRAGMA integrity_check") == ["ok"]
        counts = "SELECT tube, ready, delayed, reserved, buried, total FROM tubes"
        until(lambda: sqlite(file, counts) == sorted(look(wire)))
        assert sqlite(file, "SELECT id, tube, pri, body FROM buried") == ["2|some|5|job"]
        assert sqlite(file, "SELECT id, tube, ttr_s FROM reserved") == ["1|some|60"]
        assert sqlite(file, "SELECT id, tube, delay_left_s > 90 FROM delayed") == ["3|some|1"]
        assert sqlite(file, "SELECT id FROM ready WHERE tube = 'others'") == ["4"]


def test_a_backup_under_load_is_the_state_of_one_moment(tmp_path):
    with start_beanlite(tmp_path / "q") as server, Wire(server.connect()) as wire:
        wire.put(b"kept", pri=9, delay_s=1000)
        copies = [tmp_path / f"copy-{number}" / "queue.db" for number in range(BACKUPS)]
        moments = []
        with load(server) as shared:
            for copy in copies:
                copy.parent.mkdir()
                before = shared.inserted.copy(), shared.deleted.copy()
                command = [sys.executable, "-m", "beanlite", "backup", str(copy), "--db", str(tmp_path / "q/queue.db")]
                done = subprocess.run(command, capture_output=True, cwd=ROOT, text=True, check=False)
                assert (done.returncode, done.stderr) == (0, "")
                moments.append((*before, shared.delete_sent.copy()))
        assert "Traceback" not in server.log_text()
    for copy, (inserted, deleted, delete_sent) in zip(copies, moments, strict=True):
        assert [path.name for path in copy.parent.iterdir()] == ["queue.db"]
        with start_beanlite(copy.parent) as server, Wire(server.connect()) as wire:
            with closing(sqlite3.connect(f"file:{copy}?mode=ro", uri=True)) as database:
                # Reserved jobs are ready again, which reaches the file a little later.
                bodies = dict(
                    database.execute(
                        "SELECT id, body FROM ready UNION ALL SELECT id, body FROM delayed"
                        " UNION ALL SELECT id, body FROM reserved"
                    )
                )
            assert not inserted.keys() - delete_sent - bodies.keys(), "what was acknowledged before is not in it"
            assert not deleted & bodies.keys(), "what was deleted before is in it"
            assert bodies[1] == b"kept"
            for job_id, body in bodies.items():
                assert job_id == 1 or body in shared.sent
                assert wire.ask(f"peek {job_id}") == f"FOUND {job_id} {len(body)}"
                assert wire.body == body
            stats = wire.stats()
            assert int(stats["current-jobs-ready"]) + 1 == len(bodies)
            assert wire.stats("stats-job 1")["state"] == "delayed"
