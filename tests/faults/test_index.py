"""The -shm of a killed server keeps its blocks over the next start: on a full disk another program would take them."""

from pathlib import Path

import pytest

from tests.faults.promises import build_armed
from tests.faults.record import read_trace
from tests.support.servers import start_beanlite
from tests.support.sqlite_tool import tell
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def library(compiler, tmp_path_factory):
    """The compiled armed.c."""
    del compiler
    return build_armed(tmp_path_factory.mktemp("library") / "armed.so")


@pytest.mark.parametrize("moved", [False, True])
def test_start_after_a_kill_does_not_cut_the_shm(library, tmp_path, moved):
    folder = tmp_path / "q"
    with start_beanlite(folder) as server, Wire(server.connect()) as wire:
        ids = [wire.put(b"x" * 3000) for _ in range(100)]
        if moved:
            assert tell(folder / "queue.db", "PRAGMA wal_checkpoint(RESTART)") == ""
        server.kill()
    trace = tmp_path / "trace"
    armed = {"FAULTS_BELOW": str(folder), "FAULTS_TRACE": str(trace), "FAULTS_FAULT": "0 0 0 0"}
    with start_beanlite(folder, environment={"LD_PRELOAD": str(library), **armed}) as server:
        with Wire(server.connect()) as wire:
            assert int(wire.stats()["current-jobs-ready"]) == len(ids)
        server.kill()
    done = {(each.kind, Path(each.name).name) for each in read_trace(trace)}
    assert ("allocate", "queue.db-shm") in done
    assert ("truncate", "queue.db-shm") not in done
