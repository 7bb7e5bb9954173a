"""Asks the database for what the server does not tell: the history, and totals."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from beanlite.console.stored import PastView, looking_at
from beanlite.console.units import on_one_line
from beanlite.errors import BeanliteError, ConfigError
from beanlite.web.questions import Server_co
from beanlite.web.site import Site
from beanlite.web.threads import in_thread

Answer = TypeVar("Answer")


async def from_history(site: Site[Server_co], question: Callable[[PastView], Answer]) -> tuple[Answer | None, str]:
    """Return what the history answers, as ``from_database`` does. All of it may have to be read for that."""
    return await _ask(site, site.scans, question)


async def from_database(site: Site[Server_co], question: Callable[[PastView], Answer]) -> tuple[Answer | None, str]:
    """Return what the database answers; or None and, if it can't be read, why.

    That is no reason to show nothing of a server that does well.
    """
    return await _ask(site, site.looks, question)


async def _ask(
    site: Site[Server_co], free: asyncio.Semaphore, question: Callable[[PastView], Answer]
) -> tuple[Answer | None, str]:
    location = site.db
    if location is None:
        return None, ""

    def ask() -> Answer:
        with looking_at(location) as look:
            return question(look)

    try:
        return await in_thread(free, ask), ""
    except ConfigError:  # the question
        raise
    except BeanliteError as error:
        return None, on_one_line(str(error))
