"""The event loop that a server runs on."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial

from beanlite.errors import ConfigError
from beanlite.host import signals

NewLoop = Callable[[], asyncio.AbstractEventLoop]


def loop_factory() -> NewLoop:
    """Return what makes the event loop: uvloop, which is faster, if it is installed, else asyncio."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:
        return asyncio.new_event_loop
    return new_event_loop


def run_loop(new_loop: NewLoop, serve: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run the coroutine of ``serve`` to its end. Raises ConfigError if no file descriptors are left for a loop."""
    try:
        with asyncio.Runner(loop_factory=partial(_make, new_loop)) as runner:
            loop = runner.get_loop()
            try:
                runner.run(serve())
            finally:
                signals.hold()  # for good, because the loop restores their default actions when it is closed
                _be_silent_of_late_threads(loop)
    except RuntimeError as error:  # uvloop failed to start, and then to close
        first: BaseException | None = error
        while first is not None and not isinstance(first, OSError):
            first = first.__context__
        if first is None:
            raise
        raise _no_room(first) from error


def _be_silent_of_late_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Keep quiet about threads of a failed server that finish after the loop is closed, and can't report to it."""
    hook = threading.excepthook

    def tell(failure: threading.ExceptHookArgs) -> None:
        if not (isinstance(failure.exc_value, RuntimeError) and loop.is_closed()):
            hook(failure)

    threading.excepthook = tell


def _make(new_loop: NewLoop) -> asyncio.AbstractEventLoop:
    try:
        return new_loop()
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> ConfigError:
    return ConfigError(f"there is no room for an event loop: {error.strerror}")
