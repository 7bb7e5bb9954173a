"""Syncs by the kernel's asynchronous I/O, their replacement where it is refused or fails, and how both are reported."""

import asyncio
import errno
import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from beanlite.journal.sqlite.served.sync import KernelSync, SoonestSync

IO_SETUP = {"x86_64": 206, "aarch64": 0}  # the system call's number

# Makes the kernel refuse the system call, as a sandbox or an exhausted fs.aio-max-nr does; then syncs a file.
PROGRAM = """
import asyncio, ctypes, struct, sys
from beanlite.journal.sqlite.served.sync import background_sync

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
@pytest.mark.parametrize("when", ["before caio is loaded", "late"])
def test_a_thread_syncs_when_the_kernel_refuses(tmp_path, error, when):
    call = IO_SETUP[platform.machine()]
    command = [sys.executable, "-c", PROGRAM, str(call), str(error), when]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.check_output(command, cwd=tmp_path, env=environment) == b"ThreadSync None\n"


class Kernel:
    """Wraps caio's real context: calls fail with the given errors, one error per call."""

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
async def test_a_sync_that_the_kernel_does_not_accept_is_done_inline(tmp_path, monkeypatch, error):
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
    assert len(synced) == 1  # the next sync is the kernel's again


async def test_a_sync_that_can_not_be_done_inline_either_has_failed():
    sync = KernelSync(asyncio.get_running_loop())
    Kernel(sync, submit=NOT_BEGUN[:1])
    reader, writer = os.pipe()  # a pipe can't be synced
    ends = []
    sync(writer, ends.append)
    os.close(reader)
    os.close(writer)
    (error,) = ends
    assert isinstance(error, OSError)
    assert error.errno == errno.EINVAL


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("times", [1, 3])
def test_the_end_of_a_sync_is_noticed_although_signals_interrupt(tmp_path, new_loop, times):
    async def sync_once():
        loop = asyncio.get_running_loop()
        sync = KernelSync(loop)
        kernel = Kernel(sync, process_events=[from_caio(errno.EINTR)] * times)
        ended = loop.create_future()
        with (tmp_path / "file").open("w") as file:
            sync(file.fileno(), ended.set_result)
            assert await asyncio.wait_for(ended, 10) is None
        assert kernel.calls["process_events"] == times + 1  # and it has not polled endlessly

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(sync_once())


async def test_any_other_error_of_the_kernel_is_raised():
    sync = KernelSync(asyncio.get_running_loop())
    Kernel(sync, process_events=[from_caio(errno.EINVAL)])
    with pytest.raises(SystemError, match="Invalid argument"):
        sync.poll()


class Background:
    """A background sync that takes half a second, by a clock of its own."""

    def __init__(self):
        self.now_s = 100.0
        self.syncs = 0

    def __call__(self, _descriptor, done):
        self.syncs += 1
        self.now_s += 0.5
        done(None)

    def poll(self):
        """Do nothing: no sync is ever under way."""


@pytest.fixture
def background():
    return Background()


@pytest.fixture
def soonest(background):
    return SoonestSync(background, lambda: background.now_s)


def inline_from_now_on(soonest):
    soonest.choice.inline = True
    soonest.choice.retry_at_s = math.inf


@pytest.mark.parametrize("inline", [False, True])
def test_a_sync_is_done_the_way_that_was_chosen(background, soonest, monkeypatch, inline):
    synced, ends = [], []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    if inline:
        inline_from_now_on(soonest)
    soonest(5, ends.append)
    assert (ends, synced, background.syncs) == ([None], [5] if inline else [], 0 if inline else 1)


def test_the_choice_learns_how_long_each_sync_takes(background, soonest, monkeypatch):
    learned = []
    monkeypatch.setattr(soonest.choice, "learn", lambda *times, inline: learned.append((*times, inline)))
    soonest(5, lambda _: None)
    inline_from_now_on(soonest)
    monkeypatch.setattr(os, "fdatasync", lambda _: setattr(background, "now_s", background.now_s + 0.25))
    soonest(5, lambda _: None)
    assert learned == [(0.5, 100.5, False), (0.25, 100.75, True)]


def test_an_inline_failure_is_told(soonest, monkeypatch):
    def fail(_):
        raise error

    error = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(os, "fdatasync", fail)
    inline_from_now_on(soonest)
    ends = []
    soonest(5, ends.append)
    assert ends == [error]
