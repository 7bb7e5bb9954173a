"""The machine's clock is set while a server in its own process runs; the next server keeps the first one's time."""

import signal
import struct
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers import start_beanlite
from tests.support.wire import Wire

HOUR_S = 3600


class MachineClock:
    """The machine's clock, shifted by a library (shifted.c)."""

    def __init__(self, folder):
        self._folder = folder
        self._by = folder / "shifted-by"
        self.library = folder / "shifted.so"
        source = Path(__file__).with_name("shifted.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", self.library, source, "-ldl"], check=True)
        self._by.write_bytes(struct.pack("l", 0))

    def set(self, by_s):
        """Make it show this many seconds more than the true time."""
        with self._by.open("r+b") as file:
            file.write(struct.pack("l", by_s))

    @contextmanager
    def server(self):
        environment = {"LD_PRELOAD": str(self.library), "SHIFTED_BY": str(self._by)}
        with start_beanlite(self._folder, environment=environment) as server, server.connect() as client:
            yield server, Wire(client)


@pytest.mark.parametrize(("wrong_s", "end"), [(-2 * HOUR_S, signal.SIGKILL), (2 * HOUR_S, signal.SIGTERM)])
@pytest.mark.usefixtures("compiler")
def test_a_clock_that_is_set_right(wrong_s, end, tmp_path):
    machine = MachineClock(tmp_path)
    machine.set(wrong_s)
    with machine.server() as (server, client):
        client.put(b"delayed", delay_s=HOUR_S)
        assert client.ask("pause-tube default 3600") == "PAUSED"
        machine.set(0)
        client.put(b"ready")
        server.signal(end)
        server.process.wait()
    with machine.server() as (_, client):
        delayed, ready, tube = (client.stats(of) for of in ("stats-job 1", "stats-job 2", "stats-tube default"))
        assert all(0 <= int(job["age"]) < HOUR_S // 2 for job in (delayed, ready))
        assert HOUR_S // 2 < int(delayed["time-left"]) <= HOUR_S
        assert HOUR_S // 2 < int(tube["pause-time-left"]) <= HOUR_S
