"""What a command that has something to tidy up does when it is told to end."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: by way of whatever tidies up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
