"""The signals that a server acts on, held back while it can't: by default they would end the process."""

import os
import signal
from typing import Final

# Those that stop the server.
STOPS: Final = (signal.SIGTERM, signal.SIGINT)
# The one that begins drain mode.
DRAINS: Final = signal.SIGUSR1
# The one that has the settings read again, or says that the terminal was closed.
RELOADS: Final = signal.SIGHUP


def hold() -> None:
    """Hold them back, in this thread and in those it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPS, DRAINS, RELOADS))


def hold_early(args: list[str]) -> None:
    """Hold them back if the command line is a server's: ``serve``, or flags alone."""
    if not args or args[0] == "serve" or args[0].startswith("-"):
        hold()


def hear() -> None:
    """Let through those that were held back, and those to come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOPS, DRAINS, RELOADS))


def has_terminal() -> bool:
    """Whether there is a terminal whose closing would be told to this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
