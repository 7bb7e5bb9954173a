"""The signals that a server acts on, and those that end other processes.

The former are blocked while the server can't act on them, since by default they would end the process.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

# Stop the server.
STOPS: Final = (signal.SIGTERM, signal.SIGINT)
# Begins drain mode.
DRAINS: Final = signal.SIGUSR1
# Reloads the settings, or reports that the terminal was closed.
RELOADS: Final = signal.SIGHUP


def hold() -> None:
    """Block the signals, in this thread and in those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPS, DRAINS, RELOADS))


def is_server(args: list[str]) -> bool:
    """Whether the command line is a server's: ``serve``, or flags alone."""
    return not args or args[0] == "serve" or args[0].startswith("-")


def hear() -> None:
    """Unblock the signals; pending ones are delivered."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOPS, DRAINS, RELOADS))


def how_ended(returncode: int) -> str:
    """Return how a process ended, by its ``returncode`` as subprocess has it."""
    return f"exit code {returncode}" if returncode >= 0 else f"killed by {signal.Signals(-returncode).name}"


@contextmanager
def handling(handler: Callable[..., Any] | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    """Have a handler for these signals in this block, and then those of before."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            if signal.getsignal(number) == handler:  # otherwise `finish` has ended this
                signal.signal(number, earlier)


def unheard() -> AbstractContextManager[None]:
    """Ignore the signals that end a command, because what it was to do is done and only has to be finished."""
    return handling(signal.SIG_IGN, *STOPS)


def finish() -> None:
    """Ignore the signals that end a command from now on: it has done everything, and only tells of it."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def terminable() -> AbstractContextManager[None]:
    """Have SIGTERM end a command as Ctrl-C does, so that it cleans up."""
    return handling(signal.default_int_handler, signal.SIGTERM)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, and so would be sent SIGHUP when that is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
