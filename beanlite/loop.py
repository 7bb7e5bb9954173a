"""The event loop that a server runs on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial

from beanlite import signals
from beanlite.errors import ConfigError

NewLoop = Callable[[], asyncio.AbstractEventLoop]


def loop_factory() -> NewLoop:
    """Uvloop's where it can be had: it is faster."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:
        return asyncio.new_event_loop
    return new_event_loop


def run_loop(new_loop: NewLoop, serve: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run what ``serve`` returns to its end. ConfigError: there are no descriptors left for a loop."""
    try:
        with asyncio.Runner(loop_factory=partial(_made, new_loop)) as runner:
            try:
                runner.run(serve())
            finally:
                signals.hold()  # for good: at its end the loop restores their defaults
                # What a thread was doing for a server that has failed is over only now: nobody is left to hear of it.
                threading.excepthook = lambda _: None
    except RuntimeError as error:  # uvloop could not begin to run, and then not be closed either
        first: BaseException | None = error
        while first is not None and not isinstance(first, OSError):
            first = first.__context__
        if first is None:
            raise
        raise _no_room(first) from error


def _made(new_loop: NewLoop) -> asyncio.AbstractEventLoop:
    try:
        return new_loop()
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> ConfigError:
    return ConfigError(f"there is no room for an event loop: {error.strerror}")
