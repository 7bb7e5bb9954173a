"""What servers promise, and what they keep: prints a table of the same failures for beanlite and for beanstalkd.

::

    python -m tests.faults.promises [--moments N] [--images N] [--seed N]

A client puts, deletes and buries jobs, and keeps a ledger of the acknowledgements, while the server is killed at one of
its file operations, or its disk is full or fails from some operation on, or the power fails after an operation. The
server is then started again on the contents of the disk, and asked for each job.
"""

import argparse
import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults.forker import CHANGES, FAIL_ON, KILL_BEFORE, KINDS, RECORD, Fault, mask
from tests.faults.power import VARIANTS, Disk, write_image
from tests.faults.record import read_trace
from tests.support.servers import RunningServer, ServerDied, start_beanlite, start_beanstalkd
from tests.support.wire import Wire

PEERS = [(program, mode) for program in ("beanlite", "beanstalkd") for mode in ("always", "50ms", "never")]
SYNC = {"always": ("-f", "0"), "50ms": ("-f", "50"), "never": ("-F",)}
JOBS = 24
EACH_WRITE = mask("write", "allocate")
SYNCS = "syncs fail, then the power"
FAILURES = {
    "killed": (KILL_BEFORE, CHANGES, 0),
    "writes fail": (FAIL_ON, EACH_WRITE, errno.EIO),
    SYNCS: (FAIL_ON, mask("sync"), errno.EIO),
}
POWER = "power fails"
FULL = "disk full"
ROOM = "disk full, then room"
PAUSE_S = 0.01
"""The pause between jobs, so that the work takes longer than the time between two syncs."""
PATIENCE_S = 2.0
"""How long to wait for a reply that may never come because nothing can be stored."""
DISK_BYTES = 24 << 20
LOST, NOT_STARTED = "lost", "not started"


@dataclass
class Event:
    """A change of a job's state."""

    job_id: int
    state: str | None
    """The state as in stats-job; None if the job is deleted."""
    body: bytes
    acked: int = sys.maxsize
    """The number of its acknowledgement."""


class Ledger:
    """What a client has done, and which of its changes were acknowledged."""

    def __init__(self, trace: Path | None = None) -> None:
        self.events: list[Event] = []
        self._acked_ns: list[int] = []
        self._trace = trace

    def acknowledged(self, event: Event) -> None:
        """Note an acknowledgement, also in the record, to place it among the file operations."""
        self._acked_ns.append(time.monotonic_ns())
        event.acked = self.acked
        if self._trace is not None:
            with self._trace.open("ab") as file:
                file.write(f"note acked {self.acked} 0\n\n".encode())

    @property
    def acked(self) -> int:
        """The number of acknowledgements."""
        return len(self._acked_ns)

    def acked_before(self, time_ns: int, acked: int | None = None) -> int:
        """Return the number of acknowledgements up to ``time_ns`` before the last one, or before number ``acked``."""
        times = self._acked_ns[:acked]
        return bisect_right(times, times[-1] - time_ns) if times else 0

    def holds(self, wire: Wire, acked: int) -> bool:
        """Return whether the server at the other end has everything up to acknowledgement number ``acked``."""
        known = {event.job_id: event for event in self.events if event.acked <= acked}
        for event in self.events:
            if event.acked > acked:
                known.pop(event.job_id, None)  # this change may have been under way
        return all(self._holds(wire, event) for event in known.values())

    def _holds(self, wire: Wire, event: Event) -> bool:
        if not wire.ask(f"peek {event.job_id}").startswith("FOUND"):
            return event.state is None
        return wire.body == event.body and wire.stats(f"stats-job {event.job_id}")["state"] == event.state


def work(wire: Wire, ledger: Ledger) -> None:
    """Put, delete and bury until everything is done or the server is gone."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        for number in range(JOBS):
            time.sleep(PAUSE_S)
            body = b"%d." % number * (20 if number % 5 else 150)
            word, _, job_id = wire.ask(f"put 0 0 60 {len(body)}", body).partition(" ")
            if word != "INSERTED":
                continue
            ledger.events.append(Event(int(job_id), "ready", body))
            ledger.acknowledged(ledger.events[-1])
            if number % 3 == 1:
                wire.ask(f"reserve-job {job_id}")
                ledger.events.append(Event(int(job_id), "buried", body))
                if wire.ask(f"bury {job_id} 0") == "BURIED":
                    ledger.acknowledged(ledger.events[-1])
            elif number % 3 == 2:
                ledger.events.append(Event(int(job_id), None, body))
                if wire.ask(f"delete {job_id}") == "DELETED":
                    ledger.acknowledged(ledger.events[-1])


def build_armed(library: Path) -> Path:
    """Compile armed.c."""
    source = Path(__file__).with_name("armed.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def fill(wire: Wire, ledger: Ledger) -> None:
    """Put large jobs, with twice as many bytes as the disk has, and delete the first hundred."""
    body = bytes(60_000)
    for _ in range(2 * DISK_BYTES // len(body)):
        word, _, job_id = wire.ask(f"put 0 0 60 {len(body)}", body).partition(" ")
        if word == "INSERTED":
            ledger.events.append(Event(int(job_id), "ready", body))
            ledger.acknowledged(ledger.events[-1])
    for event in ledger.events[:100]:
        ledger.events.append(Event(event.job_id, None, b""))
        if wire.ask(f"delete {event.job_id}") == "DELETED":
            ledger.acknowledged(ledger.events[-1])


class Peer:
    """A server to compare: a program, in one of its modes."""

    def __init__(self, program: str, mode: str, library: Path, folder: Path) -> None:
        self._program = program
        self._mode = mode
        self._library = library
        self._folder = folder
        self._number = 0
        self._may_lose_ns = 50_000_000 if mode == "50ms" else 0
        """How many of the latest changes, as a time, the mode may lose in a power failure."""

    def new_folder(self) -> Path:
        """Return the path of a new folder for the server's files."""
        self._number += 1
        return self._folder / f"{self._program}-{self._mode}-{self._number}"

    def start(self, data: Path, fault: Fault | None = None, trace: Path | None = None) -> RunningServer:
        """Serve the files in the folder, with the fault if one is given."""
        environment = {}
        if fault is not None:
            environment = {
                "LD_PRELOAD": str(self._library),
                "FAULTS_BELOW": str(data),
                "FAULTS_TRACE": str(trace or os.devnull),
                "FAULTS_FAULT": f"{fault.action} {fault.kinds} {fault.number} {fault.errno}",
            }
        data.mkdir(exist_ok=True)
        beside = data.with_name(f"{data.name}-beside")
        if self._program == "beanlite":
            flags = ("--db", str(data / "queue.db"), "--fsync", self._mode)
            return start_beanlite(beside, *flags, environment=environment)
        return start_beanstalkd(beside, "-b", str(data), *SYNC[self._mode], environment=environment)

    def outcome(self, data: Path, ledger: Ledger, acked: int) -> str:
        """Start on these files and compare with the ledger: return "", LOST or NOT_STARTED."""
        try:
            with self.start(data) as server, Wire(server.connect()) as wire:
                return "" if ledger.holds(wire, acked) else LOST
        except ServerDied:
            return NOT_STARTED

    def recorded(self) -> tuple[Ledger, Path]:
        """Have the server work undisturbed, and record its file operations."""
        data = self.new_folder()
        trace = data.with_suffix(".trace")
        ledger = Ledger(trace)
        with self.start(data, Fault(RECORD), trace) as server, Wire(server.connect()) as wire:
            work(wire, ledger)
            server.kill()
        return ledger, trace

    def disturbed(self, fault: Fault) -> str:
        """Have the server work with the fault, kill it, and start it again; return the outcome."""
        data, ledger = self.new_folder(), Ledger()
        self._work(data, ledger, fault)
        return self.outcome(data, ledger, ledger.acked)

    def disturbed_and_cut_off(self, fault: Fault) -> str:
        """The same, but the power fails, and only synced changes are left."""
        data = self.new_folder()
        trace, image = data.with_suffix(".trace"), data.with_suffix(".image")
        ledger = Ledger(trace)
        data.mkdir()
        disk = Disk(data, journaled=True)
        self._work(data, ledger, fault, trace)
        for operation in read_trace(trace):
            disk.do(operation)
        write_image(disk.safe(), image)
        return self.outcome(image, ledger, ledger.acked_before(self._may_lose_ns))

    def _work(self, data: Path, ledger: Ledger, fault: Fault, trace: Path | None = None) -> None:
        with contextlib.suppress(ServerDied), self.start(data, fault, trace) as server:
            with Wire(server.connect(PATIENCE_S)) as wire:
                work(wire, ledger)
            server.kill()

    def filled(self) -> tuple[str, str]:
        """Have the server fill its disk, work on, and be killed; return the outcomes there and on a disk with room."""
        data, ledger = self.new_folder(), Ledger()
        data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(data)], check=True)
        try:
            with self.start(data) as server:
                with Wire(server.connect(PATIENCE_S)) as wire:
                    fill(wire, ledger)
                    work(wire, ledger)
                server.kill()
            shutil.copytree(data, roomy := self.new_folder())
            return self.outcome(data, ledger, ledger.acked), self.outcome(roomy, ledger, ledger.acked)
        finally:
            subprocess.run(["umount", str(data)], check=True)

    def power_failures(self, ledger: Ledger, trace: Path, images: int, chance: random.Random) -> Iterator[str]:
        """Yield the outcomes of power failures at random moments, each with one of the images that it may leave."""
        operations = read_trace(trace)
        moments = set(chance.sample(range(len(operations)), min(images, len(operations))))
        empty = self.new_folder()
        empty.mkdir()
        disk, acked = Disk(empty, journaled=True), 0
        for number, operation in enumerate(operations):
            disk.do(operation)
            if operation.kind == "note":
                acked = ledger.acked_before(self._may_lose_ns, operation.offset)
            if number in moments:
                data = self.new_folder()
                write_image(chance.choice((*VARIANTS, lambda disk: disk.any(chance)))(disk), data)
                yield self.outcome(data, ledger, acked)


def count_of(trace: Path, kinds: int) -> tuple[int, int]:
    """Return how many operations of these kinds came before the first acknowledgement, and in all."""
    before = number = 0
    for operation in read_trace(trace):
        if operation.kind == "note" and not before:
            before = number
        number += operation.kind in KINDS and bool(kinds & 1 << KINDS.index(operation.kind))
    return before, number


def measure(peer: Peer, moments: int, images: int, seed: int) -> Iterator[tuple[str, Counter[str]]]:
    """Yield each failure with the counts of its outcomes."""
    ledger, trace = peer.recorded()
    for name, (action, kinds, error) in FAILURES.items():
        first, last = count_of(trace, kinds)
        span = range(first + 1, last + 1)
        disturb = peer.disturbed_and_cut_off if name == SYNCS else peer.disturbed
        numbers = random.Random(seed).sample(span, min(moments, len(span)))
        yield name, Counter(disturb(Fault(action, kinds, number, error)) for number in numbers)
    for name, outcome in zip((FULL, ROOM), peer.filled(), strict=True):
        yield name, Counter([outcome])
    yield POWER, Counter(peer.power_failures(ledger, trace, images, random.Random(seed)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--moments", type=int, default=40, help="at how many operations each failure begins")
    parser.add_argument("--images", type=int, default=200, help="how many power failures")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = build_armed(Path(folder) / "armed.so")
        for program, mode in PEERS:
            for name, outcomes in measure(
                Peer(program, mode, library, Path(folder)), chosen.moments, chosen.images, chosen.seed
            ):
                tried = outcomes.total()
                sys.stdout.write(
                    f"{program:11}{mode:8}{name:28}{outcomes[LOST]:4} of {tried} lost something, "
                    f"{outcomes[NOT_STARTED]} did not start\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
