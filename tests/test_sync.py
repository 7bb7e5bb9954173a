"""Syncing where the kernel does not let us do it the fast way, or fails to."""

import asyncio
import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from beanlite.journal.sync import KernelSync

IO_SETUP = {"x86_64": 206, "aarch64": 0}  # the system call's number

# Has the kernel refuse the system call, as a sandbox or a used up fs.aio-max-nr does; then syncs a file.
PROGRAM = """
import asyncio, ctypes, struct, sys
from beanlite.journal.sync import best_sync

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
    sync = best_sync()
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    assert subprocess.check_output(command, cwd=tmp_path, env=environment) == b"ThreadSync None\n"


async def test_a_sync_that_can_not_even_begin_is_told_as_any_other_failure():
    class Broken:
        def submit(self, _operation):
            raise SystemError(errno.EIO, os.strerror(errno.EIO))  # caio does so

    sync = KernelSync(asyncio.get_running_loop())
    sync._context, kept = Broken(), sync._context
    ends = []
    sync(0, ends.append)
    sync._context = kept
    (error,) = ends
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO
