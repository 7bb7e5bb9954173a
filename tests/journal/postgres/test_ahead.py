"""What a standby reads ahead: in the end it has what a server has that reads everything at once."""

import asyncio
import itertools
import os
import random

import pytest

from beanlite.core.engine import Engine
from beanlite.core.memory import BODY_BYTES, NO_BOUND
from beanlite.errors import JournalRefused
from beanlite.host.clock import utc_s
from beanlite.journal.event_rows import DEEDS_ONLY, EventRows
from beanlite.journal.postgres import ahead as reading_ahead
from beanlite.journal.postgres.ahead import Ahead, _Outdated
from beanlite.journal.postgres.batch import batch_of
from beanlite.journal.postgres.link import connect
from beanlite.journal.postgres.recovery import MARK, PRUNE_BATCHES, Reader
from beanlite.journal.postgres.standing import Standing
from beanlite.journal.rows import fit
from beanlite.journal.totals import Totals
from tests.journal.postgres.histories import History, state_of
from tests.journal.postgres.serving import applicant, take
from tests.support.operators import all_jobs

SEED = int(os.environ.get("AHEAD_SEED") or random.randrange(1 << 32))
FEW = 3
SOME = "(SELECT min(id) FROM jobs)"
SMALL = 3000  # bytes: not all bodies have room


class World:
    """An active server, whose batches are stored one by one, and a standby that reads ahead."""

    def __init__(self, url, chance):
        self.url = url
        self.chance = chance
        self.history = History(chance)
        self.body_max_bytes = chance.choice((NO_BOUND, SMALL))
        self.batch = 0
        self.interrupted = 0
        self.anew = 0

    async def start(self):
        self.lease = await take(applicant(self.url), asyncio.Event())
        self.link = await connect(self.url, "beanlite")
        self.totals = Totals()
        self.events = EventRows(DEEDS_ONLY, utc_s)
        self.engine = Engine()
        self.engine.bound_memory(NO_BOUND, self.body_max_bytes, fetches=True)
        self.ahead = Ahead(self.engine.memory, "it")
        return self

    def end(self):
        self.lease.link.drop()
        self.link.drop()

    async def store(self):
        """Let something happen, and store it in a batch."""
        self.history.go_on()
        await self.commit()

    async def commit(self):
        core = self.history.core
        changes = core.engine.take_changes(deferred=self.chance.random() < 0.7)
        batch = batch_of(changes, self.totals, 1.0, self.events)
        row = await self.lease.link.row(batch.statement, self.lease.epoch, self.batch, *batch.parameters)
        assert row is not None
        self.batch = batch.number
        core.engine.stored(changes.batch, changes.last_id)
        if self.chance.random() < 0.3:
            core.engine.take_changes(deferred=False)  # one without content, whose number no row has

    async def prune(self, kept_above):
        await self.lease.link.rows(MARK, self.lease.epoch, self.batch)
        await self.lease.link.rows(PRUNE_BATCHES, -1, self.lease.epoch, kept_above)

    async def step(self, interrupted_after=None):
        """Have the standby read a few jobs in a transaction, which may be interrupted after some of its queries."""
        left = interrupted_after

        async def fetch(*query):
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    raise ConnectionError
            return await self.link.rows(*query)

        await self.link.rows(reading_ahead._SNAPSHOT)
        try:
            return await self.ahead._step(fetch, self.chance.choice((1, FEW, 1000)))
        except ConnectionError:
            self.interrupted += 1
        except _Outdated:
            self.anew += 1
            await self.ahead._forget()
        finally:
            await self.link.rows("COMMIT")
        return True

    async def new_reign(self):
        """End the active server, and have another one take the lease."""
        await self.lease.link.row("UPDATE lease SET stopped_at = 1 RETURNING 1")
        self.lease.link.drop()
        self.lease = await take(applicant(self.url), asyncio.Event())

    async def take_over(self):
        """Return the copy, the engine of a server that takes over with it, and that of one that reads everything."""
        await self.new_reign()
        standing = Standing(self.lease.reign, self.lease.ended, self.batch, None)
        reader = Reader(self.url, "it", "here", lambda: standing)
        copy = await self.ahead.finish(self.lease.ended, self.lease.reign, reader.fetch, lambda *_: None)
        other = Engine()
        other.bound_memory(NO_BOUND, self.engine.memory.body_max_bytes, fetches=True)
        engines = await self.restored(reader, self.engine, copy), await self.restored(reader, other, None)
        reader.close()
        return copy, *engines

    async def restored(self, reader, engine, copy):
        now_ns = self.history.core.now_ns
        _, unchecked_id = await reader.tenure()
        engine.restore_policies(await reader.policies())
        if copy is None:
            async for notes in reader.notes():
                engine.notes.restore(notes)
            async for rows in reader.jobs(lambda: True, unchecked_id):
                engine.restore(fit(rows, self.body_max_bytes), now_ns)
        else:
            engine.take_copy(copy)
            while copy.enter(now_ns):
                pass
        for pause in sorted(await reader.pauses()):
            engine.restore_pause(*pause)
        for schedule in await reader.schedules():
            engine.restore_schedule(schedule)
        engine.recovered(self.lease.last_id, self.batch)
        return engine


@pytest.fixture
async def world(database, request):
    chance = random.Random(f"{SEED} {getattr(request, 'param', 0)}")
    print(f"AHEAD_SEED={SEED}")  # noqa: T201 - shown if it fails
    world = await World(database, chance).start()
    yield world
    world.end()


@pytest.mark.parametrize("world", range(6), indirect=True)
async def test_copy_becomes_what_a_full_read_gives(world):
    for _ in range(60):
        await world.store()
        if world.chance.random() < 0.1:
            await world.prune(world.batch - world.chance.randrange(20))
        if world.chance.random() < 0.5:
            await world.step(world.chance.choice((None, None, *range(8))))
    for _ in range(2):  # the first may find that too much has changed
        await world.step()
    for _ in range(3):
        await world.store()
    copy, engine, other = await world.take_over()
    assert copy is not None
    assert world.ahead._unchecked_id == 0
    has_room = world.body_max_bytes == NO_BOUND
    assert state_of(engine, bodies=has_room) == state_of(other, bodies=has_room)
    assert engine.memory.body_bytes == sum(
        len(job.body) + BODY_BYTES for job in all_jobs(engine) if job.body is not None
    )
    assert engine.memory.unloaded == sum(job.body is None for job in all_jobs(engine))
    assert len(engine.jobs) == len(world.history.core.engine.jobs)


async def test_copy_of_which_changes_are_missing_is_made_anew(world, caplog):
    for _ in range(5):
        await world.store()
    while await world.step():
        pass
    await world.store()
    await world.store()
    await world.prune(world.batch - 1)
    with pytest.raises(_Outdated, match="too much has changed since"):
        await world.ahead._step(world.link.rows, FEW)
    copy, _, other = await world.take_over()
    assert copy is None
    assert "what was read ahead is not used: too much has changed since" in caplog.text
    assert len(other.jobs) == len(world.history.core.engine.jobs)


async def test_copy_from_before_another_takeover_is_not_used(world, caplog):
    await world.store()
    while await world.step():
        pass
    await world.new_reign()
    with pytest.raises(_Outdated, match="another server has taken over"):
        await world.ahead._step(world.link.rows, FEW)
    copy, *_ = await world.take_over()
    assert copy is None
    assert "what was read ahead is not used: another server had taken over" in caplog.text


async def test_copy_is_not_used_where_commits_are_missing(world):
    """A standby that lacks commits was promoted, and the copy may have some of them."""
    await world.store()
    await world.step()
    world.ahead._seen = world.batch + 1
    with pytest.raises(_Outdated, match="the database lacks commits that it had"):
        await world.ahead._step(world.link.rows, FEW)
    copy, *_ = await world.take_over()
    assert copy is None


@pytest.mark.parametrize(
    "change",
    [
        f"UPDATE jobs SET since = since + 1, row_crc32 = NULL WHERE id = {SOME}",  # noqa: S608
        f"DELETE FROM jobs WHERE id = {SOME}",  # noqa: S608
        "INSERT INTO notes VALUES (0, 'x')",
    ],
)
async def test_copy_that_differs_from_the_database_is_not_used(world, change, caplog):
    while len(world.history.core.engine.jobs) < FEW:
        await world.store()
    while await world.step():
        pass
    await world.link.row(change)
    await world.link.row(f"UPDATE lease SET unchecked_id = {SOME}")  # noqa: S608
    whole = world.ahead._copy
    copy, *_ = await world.take_over()
    assert copy is None
    assert not whole.jobs.newest  # it was freed, slice by slice
    assert "what was read ahead is not used: jobs, sums and notes are " in caplog.text


@pytest.mark.parametrize("change", ["pri = pri + 1", "tube = 'elsewhere'", "row_crc32 = NULL", "body = body || 'x'"])
async def test_damaged_row_is_not_read_ahead(world, change):
    while len(world.history.core.engine.jobs) < FEW:
        await world.store()
    await world.link.row(f"UPDATE jobs SET {change} WHERE id = (SELECT max(id) FROM jobs)")  # noqa: S608
    what = r"it is damaged: the (row|body) of job [0-9]+ has changed"
    with pytest.raises(JournalRefused, match=what):
        await world.ahead._step(world.link.rows, 1000)
    with pytest.raises(JournalRefused, match=what):
        await world.take_over()


async def test_damaged_row_is_not_read_ahead_again(world, caplog):
    core, client = world.history.core, world.history.clients[0]
    core.send(client, b"put 0 1000 60 1\r\nx\r\n")
    await world.commit()
    while await world.step():
        pass
    core.send(client, b"reserve-job 1\r\nbury 1 5\r\n")
    await world.commit()
    await world.link.row("UPDATE jobs SET pri = pri + 1")
    with pytest.raises(JournalRefused, match="it is damaged: the row of job 1 has changed"):
        await world.take_over()
    assert "what was read ahead is not used: it is damaged: the row of job 1 has changed" in caplog.text


async def test_older_row_without_a_checksum_is_read_ahead(world):
    while len(world.history.core.engine.jobs) < FEW:
        await world.store()
    await world.link.row("UPDATE jobs SET row_crc32 = NULL")
    await world.link.row("UPDATE lease SET unchecked_id = (SELECT max(id) FROM jobs)")
    while await world.step():
        pass
    assert len(world.ahead._copy.jobs) == len(world.history.core.engine.jobs)


async def test_bodies_of_the_latest_jobs_are_dropped_for_want_of_room(world):
    core = world.history.core
    for number in range(20):
        core.send(world.history.clients[0], b"put 0 0 60 100\r\n%0100d\r\n" % number)
    await world.commit()
    while await world.step():
        pass
    world.engine.memory.body_max_bytes = 10 * (100 + BODY_BYTES)
    await world.ahead._make_room()
    copy, engine, _ = await world.take_over()
    assert copy is not None
    with_bodies = [job.id for job in all_jobs(engine) if job.body is not None and job.size == 100]
    assert with_bodies == sorted(with_bodies) == list(range(1, len(with_bodies) + 1))
    assert 0 < engine.memory.body_bytes <= 10 * (100 + BODY_BYTES)


async def test_removal_of_many_jobs_leaves_turns_to_the_rest_of_the_server(world, monkeypatch):
    monkeypatch.setattr(reading_ahead, "_TURN", FEW)
    core, client = world.history.core, world.history.clients[0]
    first = core.engine.last_id + 1
    for _ in range(20):
        core.send(client, b"put 0 0 60 1\r\nx\r\n")
    await world.commit()
    while await world.step():
        pass
    for job_id in range(first, first + 20):
        core.send(client, b"delete %d\r\n" % job_id)
    await world.commit()
    sizes = [len(world.ahead._copy.jobs)]

    async def look():
        while True:
            sizes.append(len(world.ahead._copy.jobs))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await world.step()
    looking.cancel()
    assert sizes[0] - sizes[-1] == 20
    assert max(before - after for before, after in itertools.pairwise(sizes)) <= FEW
