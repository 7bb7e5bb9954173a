"""Syncs: where the kernel does not let us do it the fast way or fails to, and aside or on the spot."""

import asyncio
import errno
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path

import pytest
import uvloop

from beanlite.journal.sqlite.sync import KernelSync, SoonestSync

IO_SETUP = {"x86_64": 206, "aarch64": 0}  # the system call's number

# Has the kernel refuse the system call, as a sandbox or a used up fs.aio-max-nr does; then syncs a file.
PROGRAM = """
import asyncio, ctypes, struct, sys
from beanlite.journal.sqlite.sync import background_sync

def refuse(call, error):
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    kernel = ctypes.CDLL(None)
    assert kernel.prctl(38, 1, 0, 0, 0) == kernel.prctl(22, 2, program, 0, 0) == 0

async def main():
    if sys.argv[3] == "late":
        import caio
    refuse(int(sys.argv[1]), int(sys.argv[2]))
    sync = background_sync()
    ended = asyncio.get_running_loop().create_future()
    with open("file", "w") as file:
        sync(file.fileno(), ended.set_result)
        print(type(sync).__name__, await ended)

asyncio.run(main())
"""


@pytest.mark.skipif(platform.machine() not in IO_SETUP, reason="the system call has another number here")
@pytest.mark.parametrize("error", [errno.EPERM, errno.EAGAIN, errno.ENOSYS])
@pytest.mark.parametrize("when", ["before caio has looked", "late"])
def test_a_thread_syncs_when_the_kernel_refuses(tmp_path, error, when):
    call = IO_SETUP[platform.machine()]
    command = [sys.executable, "-c", PROGRAM, str(call), str(error), when]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.check_output(command, cwd=tmp_path, env=environment) == b"ThreadSync None\n"


class Kernel:
    """In caio's place, with its real context behind: a call fails with the errors that it is given, one each time."""

    def __init__(self, sync, submit=(), process_events=()):
        self._context = sync._context
        self._errors = {"submit": list(submit), "process_events": list(process_events)}
        self.calls = {"submit": 0, "process_events": 0}
        sync._context = self

    def submit(self, operation):
        return self._call("submit", operation)

    def process_events(self):
        return self._call("process_events")

    def poll(self):
        return self._context.poll()

    def _call(self, name, *arguments):
        self.calls[name] += 1
        if self._errors[name]:
            error = self._errors[name].pop(0)
            if isinstance(error, Exception):
                raise error
            return error
        return getattr(self._context, name)(*arguments)


def from_caio(number):
    return SystemError(number, os.strerror(number))


NOT_BEGUN = [
    OverflowError("Insufficient resources are available to queue any iocbs [EAGAIN]"),
    ValueError("The AIO context specified by ctx_id is invalid. … [EINVAL]"),
    from_caio(errno.EINTR),
    from_caio(errno.ENOMEM),
    0,  # operations taken
]


@pytest.mark.parametrize("error", NOT_BEGUN, ids=repr)
async def test_a_sync_that_the_kernel_does_not_take_is_done_on_the_spot(tmp_path, monkeypatch, error):
    synced = []
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(descriptor) or fdatasync(descriptor))
    sync = KernelSync(asyncio.get_running_loop())
    kernel = Kernel(sync, submit=[error])
    with (tmp_path / "file").open("w") as file:
        ends = []
        sync(file.fileno(), ends.append)
        assert (ends, synced) == ([None], [file.fileno()])
        ended = asyncio.get_running_loop().create_future()
        sync(file.fileno(), ended.set_result)
        assert await asyncio.wait_for(ended, 10) is None
    assert kernel.calls["submit"] == 2
    assert len(synced) == 1  # the next one is the kernel's again


async def test_a_sync_that_can_not_be_done_on_the_spot_either_has_failed():
    sync = KernelSync(asyncio.get_running_loop())
    Kernel(sync, submit=NOT_BEGUN[:1])
    reader, writer = os.pipe()  # there is nothing to sync in it
    ends = []
    sync(writer, ends.append)
    os.close(reader)
    os.close(writer)
    (error,) = ends
    assert isinstance(error, OSError)
    assert error.errno == errno.EINVAL


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("times", [1, 3])
def test_the_end_of_a_sync_is_seen_though_signals_come_in_between(tmp_path, new_loop, times):
    async def look():
        loop = asyncio.get_running_loop()
        sync = KernelSync(loop)
        kernel = Kernel(sync, process_events=[from_caio(errno.EINTR)] * times)
        ended = loop.create_future()
        with (tmp_path / "file").open("w") as file:
            sync(file.fileno(), ended.set_result)
            assert await asyncio.wait_for(ended, 10) is None
        assert kernel.calls["process_events"] == times + 1  # nor has it looked without end

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(look())


async def test_what_else_the_kernel_says_of_the_ends_is_an_error():
    sync = KernelSync(asyncio.get_running_loop())
    Kernel(sync, process_events=[from_caio(errno.EINVAL)])
    with pytest.raises(SystemError, match="Invalid argument"):
        sync.poll()


class Machine:
    """A clock, and syncs that take as long as the test says."""

    def __init__(self, monkeypatch, aside_s, here_s=0.0002):
        self.now_s = 100.0
        self.aside_s = aside_s
        self.here_s = here_s
        self.both_s: Iterator[float] = iter(())
        """What the next syncs take, either way."""
        self.spent_s = {"aside": 0.0, "here": 0.0}
        self.latest = ""
        self.error = None
        monkeypatch.setattr(os, "fdatasync", lambda _descriptor: self._spend("here", self.here_s))
        self.sync = SoonestSync(self._sync_in_background, lambda: self.now_s)

    def _spend(self, way, seconds):
        seconds = next(self.both_s, seconds)
        self.now_s += seconds
        self.spent_s[way] += seconds
        self.latest = way
        if self.error:
            raise self.error

    def _sync_in_background(self, _descriptor, done):
        self._spend("aside", self.aside_s)
        done(None)

    def run(self, seconds):
        """Sync after sync for so long; the share of the time that was spent on the spot."""
        self.spent_s = {"aside": 0.0, "here": 0.0}
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            ends = []
            self.sync(0, ends.append)
            assert ends == [None]
        return self.spent_s["here"] / sum(self.spent_s.values())


def test_syncs_go_on_aside_while_they_are_quick(monkeypatch):
    machine = Machine(monkeypatch, aside_s=0.0015, here_s=0.0001)
    assert machine.run(10) == 0


def test_a_busy_core_is_synced_on_and_left_when_it_is_calm_again(monkeypatch):
    machine = Machine(monkeypatch, aside_s=0.0035)
    assert machine.run(0.1) > 0.3
    assert machine.run(60) > 0.95
    machine.aside_s = 0.0004
    machine.run(2.1)
    assert machine.run(60) == 0
    machine.aside_s = 0.0035
    assert machine.run(0.2) > 0.5


@pytest.mark.parametrize(("sync_s", "most"), [(0.01, 0.03), (0.019, 0.05), (0.05, 0.001)])
def test_a_slow_disk_is_hardly_ever_waited_for_on_the_spot(monkeypatch, sync_s, most):
    assert Machine(monkeypatch, sync_s, sync_s).run(60) <= most


@pytest.mark.parametrize("slow_s", [0.015, 0.3])
@pytest.mark.parametrize("every", [10, 20, 100])
def test_a_disk_that_is_slow_now_and_then_is_left_to_the_kernel(monkeypatch, slow_s, every):
    machine = Machine(monkeypatch, aside_s=0)
    machine.both_s = cycle([slow_s, *[0.0003] * (every - 1)])
    assert machine.run(60) == 0


LONGER_S = 0.0002
"""What a sync aside takes more, on a calm core, too."""


@pytest.mark.parametrize("sync_s", [0.0019, 0.0025, 0.005, 0.01, 0.019])
def test_a_core_that_is_calm_again_is_left_however_slow_the_disk_has_become(monkeypatch, sync_s):
    machine = Machine(monkeypatch, aside_s=0.0035)
    machine.run(10)
    assert machine.latest == "here"
    machine.aside_s, machine.here_s = sync_s + LONGER_S, sync_s
    machine.run(5)
    assert machine.run(60) < 0.04


@pytest.mark.parametrize("sync_s", [0.0025, 0.005, 0.01])
def test_one_stall_at_the_start_makes_no_busy_core(monkeypatch, sync_s):
    machine = Machine(monkeypatch, sync_s + LONGER_S, sync_s)
    machine.both_s = iter([sync_s, sync_s, 0.5])
    machine.run(5)
    assert machine.run(60) < 0.03


@pytest.mark.parametrize("usual_s", [0.0022, 0.003, 0.005])
def test_a_slow_disk_that_stands_still_now_and_then_is_left_to_the_kernel(monkeypatch, usual_s):
    machine = Machine(monkeypatch, usual_s + LONGER_S, usual_s)
    chance = random.Random(1)
    machine.both_s = (0.1 if chance.random() < 0.1 else usual_s for _ in count())
    assert machine.run(600) < 0.04


def test_a_slow_disk_is_soon_forgotten_when_it_has_become_a_busy_core(monkeypatch):
    machine = Machine(monkeypatch, aside_s=0.05, here_s=0.05)
    machine.run(3600)
    machine.aside_s, machine.here_s = 0.0035, 0.0002
    machine.run(3)
    assert machine.run(10) > 0.95


def test_one_sync_that_held_all_up_is_the_last_on_the_spot_for_now(monkeypatch):
    machine = Machine(monkeypatch, aside_s=0.0035)
    machine.run(10)
    machine.both_s = iter([0.1])
    machine.run(0.1)
    assert machine.latest == "here"
    machine.run(0.01)
    assert machine.latest == "aside"


def test_a_disk_that_becomes_slow_is_left_to_the_kernel_at_once(monkeypatch):
    machine = Machine(monkeypatch, aside_s=0.0035)
    machine.run(10)
    assert machine.latest == "here"
    machine.aside_s = machine.here_s = 0.1
    assert machine.run(60) < 0.01


def test_one_slow_sync_changes_nothing_for_long(monkeypatch):
    machine = Machine(monkeypatch, aside_s=0.5)
    machine.run(0.1)
    machine.aside_s = 0.0004
    machine.run(0.5)
    assert machine.run(10) == 0


def test_a_failure_on_the_spot_is_told(monkeypatch):
    machine = Machine(monkeypatch, aside_s=0.0035)
    machine.run(1)
    assert machine.latest == "here"
    machine.error = OSError(errno.EIO, os.strerror(errno.EIO))
    ends = []
    machine.sync(0, ends.append)
    assert ends == [machine.error]
