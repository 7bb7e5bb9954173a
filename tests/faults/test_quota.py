"""A used-up quota counts as a full disk, although statvfs does not show it and SQLite reports an I/O error."""

import os

import pytest

from tests.faults.promises import build_armed
from tests.support.servers import start_beanlite
from tests.support.wire import Wire


@pytest.fixture
def start(compiler, tmp_path):
    """Return a function that starts a server that may write the given number of bytes."""
    del compiler
    library = build_armed(tmp_path / "armed.so")
    folder = tmp_path / "queue"
    folder.mkdir()

    def do(quota):
        armed = {"FAULTS_BELOW": str(folder), "FAULTS_TRACE": os.devnull, "FAULTS_FAULT": "0 0 0 0"}
        return start_beanlite(folder, environment={"LD_PRELOAD": str(library), "FAULTS_QUOTA": str(quota), **armed})

    return do


def test_puts_are_refused_and_the_queue_drains_and_nothing_is_lost(start, tmp_path):
    body = b"x" * 10_000
    with start(12 << 20) as server, Wire(server.connect()) as wire:
        ids = []
        while (reply := wire.ask("put 0 0 60 10000", body)) != "OUT_OF_MEMORY":
            ids.append(int(reply.removeprefix("INSERTED ")))
        assert wire.stats()["disk-full"] == "true"
        for job_id in ids[::2]:
            assert wire.ask(f"delete {job_id}") == "DELETED"
        server.kill()
    (tmp_path / "queue" / "queue.db-reserve").unlink(missing_ok=True)  # it is there if half of the jobs made room
    with start(0) as server, Wire(server.connect()) as wire:
        assert wire.ask("put 0 0 60 10000", body) == "OUT_OF_MEMORY"
        server.kill()
    with start(-1) as server, Wire(server.connect()) as wire:
        assert int(wire.stats()["current-jobs-ready"]) == len(ids[1::2])
        for job_id in ids[1::2]:
            assert wire.ask(f"peek {job_id}") == f"FOUND {job_id} 10000"
        assert wire.put(b"again") > max(ids)
