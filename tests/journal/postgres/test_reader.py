"""How commands read a database, and what they say when they can't."""

import asyncio

import asyncpg
import pytest

from beanlite.errors import BeanliteError, JournalRefused, NotOurs
from beanlite.journal.postgres.past import looking
from beanlite.journal.postgres.reader import telling
from tests.journal.postgres.serving import served


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (asyncpg.UndefinedTableError("no jobs"), NotOurs, "db has no queue: no server has used it yet"),
        (asyncpg.DataCorruptedError("page 7"), JournalRefused, "db is damaged: page 7; restore a backup"),
        (asyncpg.IndexCorruptedError("jobs_pkey"), JournalRefused, "db is damaged: jobs_pkey; restore a backup"),
        (asyncpg.UndefinedColumnError("no pri"), BeanliteError, "db can't be read: no pri"),
        (TimeoutError(), BeanliteError, "db can't be read: no answer in time"),
    ],
)
def test_error_of_a_database_is_told_by_what_it_means(error, kind, said):
    with pytest.raises(kind) as told, telling("db"):
        raise error
    assert (type(told.value), str(told.value)) == (kind, said)


async def test_error_of_a_caller_is_not_told_as_the_databases(database):
    await (await served(database)).stop()

    def fail():
        with looking(database):
            raise BrokenPipeError("the reader of the list has gone")

    with pytest.raises(BrokenPipeError):
        await asyncio.to_thread(fail)
