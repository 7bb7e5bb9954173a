"""The signals that a server acts on, and those that end other processes.

The former are blocked while the server can't act on them, since by default they would end the process.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Stop the server.
STOPS: Final = (signal.SIGTERM, signal.SIGINT)
# Begins drain mode.
DRAINS: Final = signal.SIGUSR1
# Reloads the settings, or reports that the terminal was closed.
RELOADS: Final = signal.SIGHUP


def hold() -> None:
    """Block the signals, in this thread and in those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPS, DRAINS, RELOADS))


def hold_early(args: list[str]) -> None:
    """Block the signals if the command line is a server's: ``serve``, or flags alone."""
    if not args or args[0] == "serve" or args[0].startswith("-"):
        hold()


def hear() -> None:
    """Unblock the signals; pending ones are delivered."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOPS, DRAINS, RELOADS))


def how_ended(returncode: int) -> str:
    """How a process ended, by its ``returncode`` as subprocess has it."""
    return f"exit code {returncode}" if returncode >= 0 else f"killed by {signal.Signals(-returncode).name}"


@contextmanager
def unheard() -> Iterator[None]:
    """Ignore the signals that end a command, because what it was to do is done and only has to be finished."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, and so would be sent SIGHUP when that is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
