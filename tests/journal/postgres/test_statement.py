"""The statement of a batch, by itself."""

import asyncio

import pytest

from beanlite.clock import Clock
from beanlite.journal.postgres.batch import batch_of
from beanlite.journal.postgres.lease import Applicant, take
from beanlite.journal.totals import Totals
from tests.support.core import Core

JOBS = b"put 0 0 60 1\r\na\r\nput 0 0 60 1\r\nb\r\nput 0 0 60 1\r\nc\r\n"
# Changes that no constraint of the tables prevents from being stored twice.
REPEATABLE = b"reserve-job 1\r\nbury 1 7\r\nreserve-job 2\r\nrelease 2 9 0\r\npause-tube default 60\r\n"


def batch(core, client, commands):
    core.send(client, commands)
    ledger = core.engine.ledger
    return batch_of(ledger.take(core.engine.last_id, deferred=True, totals=True), Totals())


@pytest.fixture
async def taken(database):
    """A lease of an empty database."""
    applicant = Applicant(
        database, "it", "here", "127.0.0.1:1", 1, require_sync=False, clock_ns=Clock(), stand_by=lambda _: None
    )
    taken = await take(applicant, asyncio.Event())
    yield taken
    taken.link.drop()


async def everything(taken):
    rows = await taken.link.connection.fetch("SELECT lease::text FROM lease UNION ALL SELECT jobs::text FROM jobs")
    return sorted(row[0] for row in rows) + await taken.link.connection.fetch("SELECT * FROM totals")


async def send(taken, batch, *, epoch, last):
    return await taken.link.row(batch.statement, epoch, last, *batch.parameters)


async def test_what_arrives_twice_or_too_late_does_nothing(taken):
    core = Core()
    client = core.client()
    first, second = batch(core, client, JOBS), batch(core, client, REPEATABLE)
    assert await send(taken, first, epoch=taken.epoch, last=0) is not None
    assert await send(taken, second, epoch=taken.epoch, last=first.number) is not None
    before = await everything(taken)
    assert await send(taken, second, epoch=taken.epoch, last=first.number) is None  # again
    third = batch(core, client, b"kick 9\r\npause-tube default 0\r\n")
    assert await send(taken, third, epoch=taken.epoch, last=first.number) is None  # the batch before it is missing
    assert await everything(taken) == before
    await taken.link.connection.execute("UPDATE lease SET epoch = epoch + 1")
    before = await everything(taken)
    assert await send(taken, third, epoch=taken.epoch, last=second.number) is None  # another server has taken over
    assert await everything(taken) == before
    assert await send(taken, third, epoch=taken.epoch + 1, last=second.number) is not None
    assert await everything(taken) != before


async def test_a_tube_that_was_gone_and_made_anew_has_one_total(taken):
    core = Core()
    client = core.client()
    before = batch(core, client, b"put 0 0 60 1\r\na\r\ndelete 1\r\n")
    again = b"use mail\r\nput 0 0 60 1\r\na\r\ndelete %d\r\nuse default\r\n"
    twice = batch(core, client, again % 2 + again % 3)
    assert await send(taken, before, epoch=taken.epoch, last=0) is not None
    assert await send(taken, twice, epoch=taken.epoch, last=before.number) is not None
    totals = await taken.link.connection.fetch("SELECT span_s, put, deleted FROM totals WHERE tube = 'mail'")
    assert sorted(map(tuple, totals)) == [(3600, 2, 2), (86400, 2, 2)]
