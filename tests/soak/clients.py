"""What the clients of the load do. Each part is played on one connection, for some time, then on a new one.

All chance comes from the seed, but the order in which the server answers does not: a seed repeats the kind of a load.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.soak.books import Books, Job
from tests.soak.wire import Connection, Gone

TUBES = [f"soak-{number}" for number in range(12)]
BAND = 0.03  # how far around the wave producers and workers are both busy
LEAST = 0.05  # how much of the backlog is left at the bottom of a wave
TTRS_S = (1, 2, 5, 30, 120, 600)
DELAYS_S = (0, 0, 0, 0, 0, 0, 1, 2, 3)


@dataclass
class World:
    """What all clients know. The backlog rises and falls in waves, between ``LEAST`` of it and all."""

    port: int
    books: Books
    began_s: float
    wave_s: float
    backlog: int
    max_size: int
    ending: bool = False
    cut_off: list[float] = field(default_factory=list)
    """When connections ended that had done nothing to deserve it."""

    def target(self) -> float:
        """The number of jobs that there should be now."""
        phase = (time.monotonic() - self.began_s) / self.wave_s % 1
        return self.backlog * (LEAST + (1 - LEAST) * (1 - abs(2 * phase - 1)))

    def wanted(self) -> float:
        """How many jobs are missing, as a share of the backlog; below zero if there are too many."""
        return (self.target() - len(self.books.live)) / self.backlog


Part = Callable[[World, Connection, random.Random], Awaitable[None]]


def size(world: World, chance: random.Random) -> int:
    """The size of a body: as often between 10 and 100 bytes as between 100 and 1000."""
    return int(math.exp(chance.uniform(0, math.log(world.max_size + 1)))) - 1 if chance.random() > 0.02 else 0


def put_line(chance: random.Random, length: int, ttr_s: int) -> bytes:
    """The line of a put."""
    return b"put %d %d %d %d\r\n" % (chance.choice((0, 10, 1024, 2**32 - 1)), chance.choice(DELAYS_S), ttr_s, length)


async def producer(world: World, connection: Connection, chance: random.Random) -> None:
    """Puts, some at once, as long as the wave asks for more."""
    for _ in range(chance.randrange(20, 400)):
        if world.wanted() < -BAND:
            await asyncio.sleep(chance.uniform(0.02, 0.1))
            continue
        await connection.ask(f"use {chance.choice(TUBES)}")
        puts, sent = [], []
        for _ in range(chance.choice((1, 1, 2, 8))):
            put, body = world.books.put(size(world, chance), chance.choice(TTRS_S))
            puts.append(put)
            sent.append(put_line(chance, len(body), put.ttr_s) + body + b"\r\n")
        await connection.send(b"".join(sent))
        refused = False
        for put in puts:
            reply = await connection.reply("put")
            if reply[0] == b"INSERTED":
                world.books.inserted(put, int(reply[1]))
            else:
                world.books.refused(put)
                refused = True
        await asyncio.sleep(chance.uniform(0.1, 0.3) if refused else chance.uniform(0, 0.02))


async def worker(world: World, connection: Connection, chance: random.Random) -> None:
    """Reserves from some tubes, and does all that can be done with a job, even nothing."""
    for tube in chance.sample(TUBES, chance.randrange(1, 5)):
        await connection.ask(f"watch {tube}")
    await connection.ask("ignore default")
    held: list[Job] = []
    try:
        for _ in range(chance.randrange(20, 400)):
            if world.wanted() > BAND:
                await asyncio.sleep(chance.uniform(0.02, 0.1))
                continue
            sent_s = time.monotonic()
            reply = await connection.ask(f"reserve-with-timeout {chance.choice((0, 1, 1, 2))}")
            if reply[0] != b"RESERVED":
                await asyncio.sleep(chance.uniform(0.01, 0.05))
                continue
            job = world.books.reserved(int(reply[1]), connection.body, sent_s, connection)
            if job is not None:
                held.append(job)
                await done_with(world, connection, chance, job)
                if chance.random() < 0.01:
                    return  # with all that is held
    finally:
        for job in held:
            world.books.let_go(job, connection)


async def done_with(world: World, connection: Connection, chance: random.Random, job: Job) -> None:
    """Whatever a worker does with a job that it has."""
    books, fate = world.books, chance.random()
    if fate < 0.05:
        sent_s = time.monotonic()
        if (await connection.ask(f"touch {job.id}"))[0] == b"TOUCHED":
            job.held(connection, sent_s)
        else:
            books.not_found(job, books.held_until_s(job, connection), "touch")
    elif fate < 0.08 and job.ttr_s in {1, 2}:
        await asyncio.sleep(job.ttr_s * chance.uniform(0.9, 1.2))
    elif fate < 0.10:
        return  # hold it until the ttr is over, or this connection
    if fate < 0.80:
        await delete(world, connection, job)
        return
    until_s = books.let_go(job, connection)
    line = f"bury {job.id} 5" if fate > 0.94 else f"release {job.id} 7 {chance.choice(DELAYS_S)}"
    if (await connection.ask(line))[0] == b"NOT_FOUND":
        books.not_found(job, until_s, line)


async def delete(world: World, connection: Connection, job: Job) -> None:
    """A delete, by whoever holds the job or not."""
    books = world.books
    until_s = books.held_until_s(job, connection)
    books.deleting(job)
    if (await connection.ask(f"delete {job.id}"))[0] == b"DELETED":
        books.has_deleted(job)
    else:
        books.not_deleted(job)
        books.not_found(job, until_s, "delete")


async def kicker(world: World, connection: Connection, chance: random.Random) -> None:
    """Kicks what is buried or delayed, and pauses a tube now and then."""
    for _ in range(50):
        await connection.ask(f"use {chance.choice(TUBES)}")
        await connection.ask(f"kick {chance.choice((1, 10, 1000))}")
        if (job_id := world.books.some(chance)) is not None:
            await connection.ask(f"kick-job {job_id}")
        if chance.random() < 0.05:
            await connection.ask(f"pause-tube {chance.choice(TUBES)} {chance.choice((0, 1))}")
        await asyncio.sleep(chance.uniform(0.05, 0.3))


async def reader(world: World, connection: Connection, chance: random.Random) -> None:
    """Looks: at statistics and lists, and whether single jobs are there, or gone, as they should be."""
    for _ in range(200):
        line = chance.choice(("stats", "list-tubes", "list-tube-used", "stats-tube", "peek-buried", "peek-ready"))
        await connection.ask(f"{line} {chance.choice(TUBES)}" if line == "stats-tube" else line)
        for _ in range(5):
            if (job_id := world.books.some(chance)) is not None:
                was_deleted, was_there = job_id in world.books.deleted, world.books.must_be_there(job_id)
                found = (await connection.ask(f"peek {job_id}"))[0] == b"FOUND"
                body = connection.body if found else None
                world.books.looked(job_id, body, was_deleted=was_deleted, was_there=was_there)
                await connection.ask(f"stats-job {job_id}")
        await asyncio.sleep(chance.uniform(0.05, 0.3))


async def slow_reader(world: World, connection: Connection, chance: random.Random) -> None:
    """Asks for much and reads little of it."""
    ids = [world.books.some(chance) or 1 for _ in range(50)]
    await connection.send(b"stats\r\nlist-tubes\r\n" * 20 + b"".join(b"peek %d\r\n" % job_id for job_id in ids))
    await connection.send(b"quit\r\n")
    for _ in range(chance.randrange(100)):
        if not await connection.read_some(512):
            return
        await asyncio.sleep(0.05)


async def half_sender(world: World, connection: Connection, chance: random.Random) -> None:
    """Sends a put in pieces, and goes before its end or not; or a line that has no end."""
    if chance.random() < 0.2:
        await connection.send(b"x" * chance.randrange(20_000))
        await asyncio.sleep(chance.uniform(0, 1))
        return
    if chance.random() < 0.5:
        length = size(world, chance) + 2
        await connection.send(put_line(chance, length, 5) + bytes(chance.randrange(length)))
        await asyncio.sleep(chance.uniform(0, 5))
        return
    await connection.ask(f"use {chance.choice(TUBES)}")
    put, body = world.books.put(size(world, chance), 5)
    whole = put_line(chance, len(body), 5) + body + b"\r\n"
    middle = chance.randrange(len(whole))
    await connection.send(whole[:middle])
    await asyncio.sleep(chance.uniform(0, 1))
    await connection.send(whole[middle:])
    reply = await connection.reply("put")
    if reply[0] == b"INSERTED":
        world.books.inserted(put, int(reply[1]))
    else:
        world.books.refused(put)


async def runaway(world: World, connection: Connection, chance: random.Random) -> None:
    """Sends puts, or waits for a job, and is gone before the reply."""
    await asyncio.sleep(chance.uniform(0.2, 2))
    if chance.random() < 0.5:
        await connection.send(b"watch %b\r\nreserve\r\n" % chance.choice(TUBES).encode())
        await asyncio.sleep(chance.choice((0, 0.001, 0.1)))
        return
    await connection.ask(f"use {chance.choice(TUBES)}")
    for _ in range(chance.randrange(1, 10) if world.wanted() > -BAND else 0):
        _, body = world.books.put(size(world, chance), 5)
        await connection.send(put_line(chance, len(body), 5) + body + b"\r\n")
    await asyncio.sleep(chance.choice((0, 0.001, 0.1)))


# Each part, how many of a hundred connections play it, and whether the server has a reason to end its connection.
PARTS: tuple[tuple[Part, int, bool], ...] = (
    (producer, 18, False),
    (worker, 54, False),
    (kicker, 2, False),
    (reader, 8, False),
    (slow_reader, 6, True),
    (half_sender, 6, True),
    (runaway, 6, True),
)


async def play(world: World, part: Part, chance: random.Random, *, deserves_it: bool) -> None:
    """One client after another, until the world ends."""
    while not world.ending:
        try:
            connection = await Connection.open(world.port, world.books)
        except OSError:
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            continue
        try:
            await part(world, connection, chance)
        except Gone:
            if not deserves_it:
                world.cut_off.append(time.monotonic())
                del world.cut_off[:-1000]
        finally:
            connection.close()
