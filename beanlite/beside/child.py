"""A process beside the server: started in a bare environment, watched until it ends, and killed if it does not end."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from beanlite.settings.sources import bare_environment

# How long a process may take to end after it has been terminated.
ENDS_WITHIN_S: Final = 5.0
# If memory runs out, it is to be killed before the server; the kernel adds this to the process's badness score.
GOES_FIRST: Final = 500
# The interval of the checks for its end, and of those while it is about to end.
_LOOK_S: Final = 0.1
_LOOK_AGAIN_S: Final = 0.01


def run_module(name: str, *args: str) -> list[str]:
    """Return the command that runs a module of ours, which must not import what is in the current folder by chance."""
    return [sys.executable, "-P", "-m", name, *args]


class Parent:
    """What starts a process now and then: the process that runs, and the timer for the next one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._child: Child | None = None
        self._is_over = False
        """Set once no more processes are to be started."""

    def end(self) -> None:
        """Start no more processes, and terminate the one that runs."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._child is not None:
            self._child.process.terminate()


class Child:
    """A process, from its start until its end was seen."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        command: Sequence[str],
        tell_end: Callable[[int], None],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int = subprocess.STDOUT,
        variables: dict[str, str] | None = None,
    ) -> None:
        """Start it, with these variables in its environment. OSError: it can't start.

        ``tell_end`` is called with its exit code, unless ``wait`` is awaited.
        """
        self._loop = loop
        self._tell_end = tell_end
        self._timer: asyncio.TimerHandle | None = None
        self.process = subprocess.Popen(  # noqa: S603 - the command is our own
            command, bufsize=0, stdin=stdin, stdout=stdout, stderr=stderr, env=bare_environment() | (variables or {})
        )
        # At first the file may still be root's, if the server has become another user.
        self._loop.call_later(_LOOK_S, self._go_first)

    def _go_first(self) -> None:
        """Have the kernel kill it before the server if memory runs out."""
        if self.process.returncode is None:
            with contextlib.suppress(OSError):
                Path(f"/proc/{self.process.pid}/oom_score_adj").write_bytes(b"%d" % GOES_FIRST)

    def watch(self, every_s: float = _LOOK_S) -> None:
        """Check from now on whether it has ended."""
        returncode = self.process.poll()
        if returncode is None:
            self._timer = self._loop.call_later(every_s, self.watch, every_s)
        else:
            self._tell_end(returncode)

    async def wait(self) -> bool:
        """Wait for its end, and return whether it had to be killed; to be called once it has been terminated."""
        if self._timer is not None:
            self._timer.cancel()
        until_s = self._loop.time() + ENDS_WITHIN_S
        is_killed = False
        while self.process.poll() is None:
            if not is_killed and self._loop.time() > until_s:
                self.process.kill()
                is_killed = True
            await asyncio.sleep(_LOOK_AGAIN_S)
        return is_killed
