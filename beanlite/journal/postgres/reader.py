"""The connection of a command that reads a database, whether a server is running on it or not."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from beanlite.errors import BeanliteError, JournalRefused, NotOurs
from beanlite.journal.postgres.address import public_url
from beanlite.journal.postgres.link import TROUBLE, Link, connect, text_of
from beanlite.journal.postgres.primaries import host_of_queue


@contextmanager
def connected(url: str) -> Iterator[tuple[asyncio.Runner, Link, str]]:
    """Connect for the time of a block: what runs statements, the connection, and the database's name for people.

    BeanliteError: that fails.
    """
    name = public_url(url)
    with asyncio.Runner() as runner:
        with telling(name):
            link = runner.run(_connect(url))
        try:
            yield runner, link, name
        finally:
            link.drop()


async def _connect(url: str) -> Link:
    return await connect(await host_of_queue(url), "beanlite")


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Turn the errors of a database that is read into BeanliteError."""
    try:
        yield
    except asyncpg.UndefinedTableError as error:
        raise NotOurs(f"{name} has no queue: no server has used it yet") from error
    except (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError) as error:
        raise JournalRefused(f"{name} is damaged: {text_of(error)}; restore a backup") from error
    except (*TROUBLE, asyncpg.PostgresError) as error:
        raise BeanliteError(f"{name} can't be read: {text_of(error)}") from error
