"""The end of a restoration: the lease is renewed in between, however many notes and pauses there are."""

import asyncio

import pytest

from beanlite.core.engine import Engine
from beanlite.core.job import Job
from beanlite.core.tube import Tube
from beanlite.errors import JournalRefused
from beanlite.host.clock import Clock
from beanlite.journal.postgres.recovery import Reader
from beanlite.journal.postgres.restoration import Restoration
from tests.journal.postgres.test_standing import STANDING

MANY = 20_000
SLICES = MANY // 5_000


class Pauses(Reader):
    """A reader of a database that has many pauses."""

    async def pauses(self):
        return [(b"tube%d" % n, 60, 1) for n in range(MANY)]


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def restoration(engine):
    return Restoration("it", Pauses("", "it", "here", lambda: STANDING), engine, Clock(), lambda: False)


async def turns_during(work):
    """Return how many turns others had meanwhile."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    task.result()
    return turns


async def test_others_have_their_turn_while_many_pauses_are_resumed(restoration, engine):
    assert await turns_during(restoration.finish()) > SLICES
    assert sum(tube.pause_until_ns == 1 for tube in engine.tubes.values()) == MANY


async def test_others_have_their_turn_while_many_notes_are_checked(restoration, engine, monkeypatch):
    engine.notes.restore((n, b"why") for n in range(1, MANY + 1))
    with pytest.raises(JournalRefused, match="has no job"):
        await restoration.finish()
    job = Job(1, Tube(b"mail", 0), 0, 0, 60, 0, b"", 0)
    monkeypatch.setattr(type(engine.jobs), "find", lambda *_: job)
    assert await turns_during(restoration.finish()) > 2 * SLICES
