"""The process of the load: its clients while it lasts, and the comparison with the books at its end."""

import asyncio
import contextlib
import gc
import random
import signal
import sqlite3
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import uvloop

from tests.soak.books import Bits, Books, Job
from tests.soak.clients import PARTS, TUBES, World, play
from tests.soak.server import STATES
from tests.soak.wire import Connection

SETTLES_S = 30.0
AT_ONCE = 100


@dataclass(frozen=True)
class Plan:
    """What the load is to be."""

    port: int
    db: Path | None
    max_size: int
    seed: int
    connections: int
    backlog: int
    wave_s: float
    began_s: float


@dataclass(frozen=True)
class Report:
    """What the load has seen; once a second, and in the end with the ids and ``whole``."""

    live: int
    perhaps: int
    puts: int
    deletes: int
    checks: int
    complaints: list[str]
    cut_off: list[float]
    given: Bits | None = None


def main(pipe: Pipe, plan: Plan) -> None:
    """Play the load until something comes through the pipe, then compare; reports go back through it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when it ends
    gc.freeze()
    uvloop.run(_main(pipe, plan))


def _report(world: World, given: Bits | None = None) -> Report:
    books = world.books
    counts = len(books.live), books.perhaps(), books.puts, books.deletes, books.checks
    return Report(*counts, books.complaints, world.cut_off, given)


async def _main(pipe: Pipe, plan: Plan) -> None:
    world = World(plan.port, Books(), plan.began_s, plan.wave_s, plan.backlog, plan.max_size)
    clients = []
    for number in range(plan.connections):
        place = number * 37 % 100 + 1  # so that few connections play all the parts, too
        part, deserves_it = next(
            (part, deserves_it)
            for index, (part, _, deserves_it) in enumerate(PARTS)
            if place <= sum(share for _, share, _ in PARTS[: index + 1])
        )
        chance = random.Random(f"{plan.seed} {number}")
        clients.append(asyncio.create_task(play(world, part, chance, deserves_it=deserves_it)))
    while not pipe.poll():
        await asyncio.sleep(1 if plan.wave_s > 5 else 0.1)
        pipe.send(_report(world))
        for client in clients:
            if client.done():
                client.result()  # a mistake of the load itself
    pipe.recv()
    world.ending = True
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    for job in world.books.live.values():
        world.books.let_go(job, job.holder)
    await compare(world, plan.db)
    pipe.send(_report(world, world.books.given))


async def jobs_by_state(connection: Connection) -> list[int]:
    """How many jobs of each state there are."""
    await connection.ask("stats")
    told = dict(line.split(": ", 1) for line in connection.body.decode().splitlines()[1:])
    return [int(told[f"current-jobs-{state}"]) for state in STATES]


async def compare(world: World, db: Path | None) -> None:
    """Count what is left, in the server and in its file; then take all of it, and compare with the books."""
    connection = await Connection.open(world.port, world.books)
    end_s = time.monotonic() + SETTLES_S
    while (counted := await jobs_by_state(connection))[2] or not await _file_agrees(db, counted, connection):
        if time.monotonic() > end_s:
            world.books.complain(f"{STATES} are {counted}, but not in the file, or reservations stay without a holder")
            break
        await asyncio.sleep(0.05)
    least, most = world.books.counts()
    if not least <= sum(counted) <= most:
        world.books.complain(f"there are {sum(counted)} jobs, but there should be {least} to {most}")
    for tube in TUBES:
        await connection.ask(f"watch {tube}")
    await connection.ask("ignore default")
    while sum(await jobs_by_state(connection)) and time.monotonic() < end_s + SETTLES_S + sum(counted) / 100:
        for tube in TUBES:
            await connection.send(b"use %b\r\npause-tube %b 0\r\nkick 1000000\r\n" % (tube.encode(), tube.encode()))
            for word in ("use", "pause-tube", "kick"):
                await connection.reply(word)
        if not await drain(world.books, connection):
            await asyncio.sleep(0.05)  # until a delay is over
    if left := sum(await jobs_by_state(connection)):
        world.books.complain(f"{left} jobs can't be drained")
    world.books.all_is_gone()
    connection.close()


async def drain(books: Books, connection: Connection) -> bool:
    """Take what is ready. False: nothing was."""
    any_taken = False
    while True:
        sent_s = time.monotonic()
        await connection.send(b"reserve-with-timeout 0\r\n" * AT_ONCE)
        taken: dict[int, Job | None] = {}
        for _ in range(AT_ONCE):
            reply = await connection.reply("reserve-with-timeout")
            if reply[0] == b"RESERVED":
                job_id = int(reply[1])
                taken[job_id] = books.reserved(job_id, connection.body, sent_s, connection)
        if not taken:
            return any_taken
        any_taken = True
        await connection.send(b"".join(b"delete %d\r\n" % job_id for job_id in taken))
        for job in taken.values():
            # NOT_FOUND: its ttr was over, and the next round has it again.
            if (await connection.reply("delete"))[0] == b"DELETED" and job is not None:
                books.has_deleted(job)


async def _file_agrees(db: Path | None, counted: list[int], connection: Connection) -> bool:
    """Whether the file holds as many jobs of each state; deferred changes reach it a little later."""
    if db is None:
        return True
    with contextlib.closing(sqlite3.connect(f"{db.as_uri()}?mode=ro", uri=True)) as file:
        rows = dict(file.execute("SELECT state, count(*) FROM jobs GROUP BY state"))
    return [rows.get(state, 0) for state in STATES] == counted == await jobs_by_state(connection)
