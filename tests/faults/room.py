"""The free space of a disk rises and falls while servers start on it, serve, and are stopped or killed.

::

    python -m tests.faults.room FOLDER --rounds 100

FOLDER is a small disk with nothing else on it, such as one on a loop device. A server may refuse to start for lack of
space, in one line, and it may refuse puts. But everything that it acknowledged is there once there is space again.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.support.servers import ServerDied, start_beanlite
from tests.support.wire import Wire

DRAINED = "TIMED_OUT"
LINE_END = "\n"
COMMANDS = 60
ENOUGH_BYTES = 12 << 20
WAITS_S = 3
SIZES = (10, 900, 5000, 60_000)


class Room:
    """The free space of the disk."""

    def __init__(self, disk):
        self._disk = disk
        self._filler = disk / "filler"
        self._filler.touch()

    def leave(self, free_bytes):
        """Leave about this many bytes free."""
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            size = os.fstat(file.fileno()).st_size + shutil.disk_usage(self._disk).free - free_bytes
            if size < os.fstat(file.fileno()).st_size:
                os.ftruncate(file.fileno(), max(0, size))
            else:
                os.posix_fallocate(file.fileno(), 0, size)


class Ledger:
    """What servers have acknowledged: the bodies, by id, of jobs that must be there, and the ids of deleted jobs."""

    def __init__(self):
        self.there = {}
        self.gone = set()
        self.refused = 0
        self.not_started = 0
        self.waited = 0
        self._number = 0

    def put(self, wire, size, room):
        self._number += 1
        body = f"{self._number} ".encode().ljust(size, b".")
        try:
            reply = wire.ask(f"put 0 0 60 {len(body)}", body)
        except TimeoutError:  # the put would be refused, but a batch before it waits for space
            room.leave(ENOUGH_BYTES)
            reply = wire.reply()
            self.waited += 1
        word, *job_id = reply.split()
        if word == "INSERTED":
            assert int(job_id[0]) not in self.there.keys() | self.gone, "an id came twice"
            self.there[int(job_id[0])] = body
        else:
            assert word == "OUT_OF_MEMORY", word
            self.refused += 1

    def delete(self, wire, job_id, room):
        try:
            reply = wire.ask(f"delete {job_id}")
        except TimeoutError:  # the filler has taken even the server's reserve
            room.leave(ENOUGH_BYTES)
            reply = wire.reply()
            self.waited += 1
        assert reply == "DELETED"
        del self.there[job_id]
        self.gone.add(job_id)

    def check(self, wire):
        """Check that all jobs that must be there are, as they were put, and no others."""
        found = {}
        while (line := wire.ask("reserve-with-timeout 0")) != DRAINED:
            job_id = int(line.split()[1])
            found[job_id] = wire.body
            assert wire.ask(f"bury {job_id} 0") == "BURIED"
        assert found == self.there, f"{sorted(found.keys() ^ self.there.keys())} differ"
        while wire.ask("kick 1000") != "KICKED 0":
            pass


def serve(disk, room, ledger, chance, log):
    """Run a server from its start to its end."""
    try:
        server = start_beanlite(log, "--db", str(disk / "queue.db"), "--log-level", "error")
    except ServerDied as died:
        if " ended with 4: beanlite: no space left " not in str(died) or str(died).count(LINE_END) > 1:
            raise
        ledger.not_started += 1
        return
    with server, Wire(server.connect(WAITS_S)) as wire:
        for _ in range(chance.randrange(COMMANDS)):
            what = chance.random()
            if what < 0.03:
                room.leave(chance.choice((0, 5000, 1 << 20, 3 << 20, 8 << 20, 12 << 20)))
            elif what < 0.4 and ledger.there:
                ledger.delete(wire, chance.choice(sorted(ledger.there)), room)
            else:
                ledger.put(wire, chance.choice(SIZES), room)
        if chance.random() < 0.5:
            server.kill()
        else:
            assert server.stop() in {0, 3}, server.log_text()


def run(disk, rounds, seed, log):
    """Run servers in turn, and then one with enough space, which is checked; return the ledger."""
    chance = random.Random(seed)
    room, ledger = Room(disk), Ledger()
    for _ in range(rounds):
        room.leave(chance.choice((0, 100_000, 3 << 20, 9 << 20, 12 << 20, 20 << 20, 40 << 20, 40 << 20)))
        serve(disk, room, ledger, chance, log)
    room.leave(1 << 40)
    with start_beanlite(log, "--db", str(disk / "queue.db")) as server, Wire(server.connect()) as wire:
        ledger.check(wire)
    return ledger


def main():
    """Read the flags and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    flags = parser.parse_args()
    print(f"seed {flags.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="beanlite-room-") as log:
        ledger = run(flags.folder.resolve(), flags.rounds, flags.seed, Path(log))
    print(f"{len(ledger.there)} jobs are there, {len(ledger.gone)} were deleted")
    print(f"{ledger.refused} puts and {ledger.not_started} starts were refused, {ledger.waited} waited for room")


if __name__ == "__main__":
    sys.exit(main())
