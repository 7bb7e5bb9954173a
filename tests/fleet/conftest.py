"""Two servers between which tubes move."""

import pytest

from beanlite.cli import main
from tests.support.servers import start_beanlite
from tests.support.wire import Wire

BODIES = {"ready": b"r", "delayed": b"d", "buried": b"b"}


class Servers:
    """Two servers, named one and two, and the file that lists them."""

    def __init__(self, folder, servers):
        self.processes = servers
        self.file = folder / "servers.toml"
        self.wires = {name: Wire(server.connect()) for name, server in servers.items()}
        tables = [
            f'[servers.{name}]  # by hand\nnumber = {number}\nconnect = "127.0.0.1:{server.port}"\n'
            for number, (name, server) in enumerate(servers.items(), 1)
        ]
        self.file.write_text("\n".join(tables) + 'tubes = ["*"]\n\n')
        self.old, self.new = "two", "one"

    def move(self, tube="mail", *words):
        return main(["shard", "move", tube, "--to", self.new, "--servers", str(self.file), *words])

    def fill(self, each=2, tube="mail"):
        """Put so many jobs in each state into the tube of the old server; return what becomes of them elsewhere."""
        wire = self.wires[self.old]
        wire.ask(f"use {tube}")
        wire.ask(f"watch {tube}")
        jobs = []
        for state, letter in BODIES.items():
            for number in range(each):
                pri = 7 + number
                line = b"put %d %d 45 2\r\n%b%d" % (pri, 500 if state == "delayed" else 0, letter, number)
                job_id = wire.ask(line.decode()).split()[1]
                if state == "buried":
                    assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
                    assert wire.ask(f"bury {job_id} {pri}") == "BURIED"
                note = f"moved from {self.old}:{job_id}{', buried' if state == 'buried' else ''}"
                jobs.append((state, (letter + b"%d" % number).decode(), pri, 45, note))
        return jobs

    def jobs(self, server, tube="mail"):
        """What is in a tube of a server."""
        reply = self.wires[server].request("list-jobs", tube=tube, notes=True, preview=100, limit=200)
        return [(job["state"], job["preview"], job["pri"], job["ttr_s"], job["note"]) for job in reply["jobs"]]


@pytest.fixture
def servers(tmp_path, monkeypatch):
    monkeypatch.setattr("beanlite.console.moving.FOLLOW_S", 0.0)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with start_beanlite(tmp_path / "one") as one, start_beanlite(tmp_path / "two", "--max-job-size", "100000") as two:
        servers = Servers(tmp_path, {"one": one, "two": two})
        yield servers
        for wire in servers.wires.values():
            wire.close()
