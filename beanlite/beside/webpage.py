"""The page in the browser, as a process beside the server, so that it can't hold up the queue.

The process is started when the server serves, and again if it ends by itself. It ends with the server, however the
server ends: it reads from a pipe whose other end only the server has.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from typing import Final

from beanlite.beside.child import ENDS_WITHIN_S, Child, Parent, run_module
from beanlite.host import log
from beanlite.host.signals import how_ended

# The delay before a restart: the first one, which doubles each time, and the longest.
FIRST_S: Final = 1.0
MOST_S: Final = 300.0
# After the process has run for this long, the delay is the first one again.
STEADY_S: Final = 60.0
# The interval of the checks for the end of the process, once it has closed its output.
_LOOK_S: Final = 0.01
# How many bytes of its output are read at once, and kept of an incomplete line.
_READ_BYTES: Final = 1 << 16
_LINE_BYTES: Final = 1 << 12


def page_command(options: Mapping[str, str]) -> list[str]:
    """Return the command that serves the page; ``beanlite/web/__main__.py`` describes what can be asked for."""
    return run_module("beanlite.web", json.dumps(options))


class WebPage(Parent):
    """The process that serves the page. Its output goes to the server's log, in the form of the log."""

    def __init__(self, loop: asyncio.AbstractEventLoop, command: list[str], secrets: dict[str, str]) -> None:
        """``secrets`` are variables for its environment: nobody else can read these, unlike the command."""
        super().__init__(loop)
        self._command = command
        self._secrets = secrets
        self._began_s = 0.0
        self._wait_s = FIRST_S
        self._changing = False
        """The process has been terminated to be started anew."""
        self._rest = b""
        """The beginning of an incomplete line of its output."""
        self._why = ""
        """The last error that it has printed."""
        self._oddities = log.Seldom()

    def begin(self) -> None:
        """Start the process."""
        self._began_s = self._loop.time()
        self._rest = b""
        self._why = ""
        try:
            child = Child(
                self._loop,
                self._command,
                self._on_end,
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                variables=self._secrets,
            )
        except OSError as error:
            self._start_again(str(error))
            return
        self._child = child
        assert child.process.stderr is not None
        os.set_blocking(child.process.stderr.fileno(), False)
        self._loop.add_reader(child.process.stderr.fileno(), self._read, child)

    def _read(self, child: Child) -> None:
        """Read output of the process; at the end of it, wait for the process to end."""
        process = child.process
        assert process.stderr is not None
        data = process.stderr.read(_READ_BYTES)
        if data is None:  # a spurious wakeup
            return
        if not data:
            self._loop.remove_reader(process.stderr.fileno())
            child.watch(_LOOK_S)
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LINE_BYTES:]
        self._hear(process.pid, [line.decode(errors="replace") for line in lines if line])

    def _hear(self, pid: int, lines: list[str]) -> None:
        odd = ""
        for line in lines:
            if line.startswith(("http://", "https://")):
                log.info("serving the web page", at=line, pid=pid)
            elif line.startswith("beanlite: "):
                self._why = line.removeprefix("beanlite: ")
            elif not log.relay(line):
                log.debug("the page says", line=line)
                odd = line
        if odd:  # the last line of a traceback is the error itself
            self._why = odd
            self._oddities.warning("web page error", error=odd)

    def _on_end(self, returncode: int) -> None:
        self._let_go()
        if self._changing and not self._is_over:
            self._changing = False
            self.begin()
        elif not self._is_over:
            self._start_again(self._why or how_ended(returncode))

    def _start_again(self, why: str) -> None:
        if self._loop.time() - self._began_s >= STEADY_S:
            self._wait_s = FIRST_S
        log.warning("web page process ended; starting it again", error=why, in_s=self._wait_s)
        self._timer = self._loop.call_later(self._wait_s, self.begin)
        self._wait_s = min(2 * self._wait_s, MOST_S)

    def _let_go(self) -> None:
        assert self._child is not None
        process, self._child = self._child.process, None
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.close()
        process.stderr.close()

    def change(self, command: list[str], secrets: dict[str, str]) -> None:
        """Have the page served by another command from now on, or with other secrets."""
        if (command, secrets) == (self._command, self._secrets):
            return
        self._command, self._secrets = command, secrets
        if self._child is not None:
            self._changing = True
            self._child.process.terminate()
        elif self._timer is not None and not self._is_over:  # what has kept it from starting may be mended
            self._timer.cancel()
            self.begin()

    async def wait(self) -> None:
        """Wait until the process has ended; to be called after ``end``."""
        child = self._child
        if child is None:
            return
        assert child.process.stderr is not None
        self._loop.remove_reader(child.process.stderr.fileno())
        if await child.wait():
            log.warning("web page process did not end; killed", seconds=ENDS_WITHIN_S)
        self._let_go()
