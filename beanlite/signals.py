"""The signals that a server hears, kept waiting while it can't: their defaults would end the process."""

import signal
from typing import Final

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DRAINS: Final = signal.SIGUSR1


def hold() -> None:
    """Have them wait, in this thread and in those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPS, DRAINS))


def hold_early(args: list[str]) -> None:
    """The same, if the command line is one that serves: ``serve``, or flags alone."""
    if not args or args[0] == "serve" or args[0].startswith("-"):
        hold()


def hear() -> None:
    """Let in those that have waited, and those to come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOPS, DRAINS))
