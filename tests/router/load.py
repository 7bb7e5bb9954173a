"""Clients that put, reserve, delete, release, bury and touch through routers, and connect again when cut off."""

import asyncio
import contextlib
import time

from tests.router.ledger import body_of

TUBES = [f"{letter}.{number}" for letter in "abcdef" for number in range(2)]
WITHIN_S = 30.0  # a halt or a silence is much shorter
OPEN_MAX = 600
UNSENT = "INTERNAL_ERROR"


class Gone(Exception):
    """The connection has ended."""


class Connection:
    """A connection to a router."""

    def __init__(self, router, reader, writer, ledger):
        self.router = router
        self.body = b""
        self.line = ""
        """The last command."""
        self._reader = reader
        self._writer = writer
        self._ledger = ledger

    @property
    def gone(self):
        return self._reader.at_eof() or self._writer.transport.is_closing()

    async def ask(self, line, body=None):
        """Send a command, and return the words of the reply."""
        self.line = line
        self._writer.write(line.encode() + b"\r\n" + (b"" if body is None else body + b"\r\n"))
        try:
            async with asyncio.timeout(WITHIN_S):
                words = (await self._reader.readuntil(b"\r\n")).decode().split()
                if words[0] == "RESERVED":
                    self.body = (await self._reader.readexactly(int(words[2]) + 2))[:-2]
        except TimeoutError:
            self._ledger.complain(f"{line} had no reply within {WITHIN_S:.0f} s")
            raise Gone from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone from error
        return words

    def close(self):
        self._writer.transport.abort()


class Client:
    """A client; ``went_on_s`` is when it last did what it is there for."""

    def __init__(self, name, ports, ledger, chance):
        """``ports``: where the routers are."""
        self.name = name
        self.went_on_s = 0.0
        self.tubes: list[str] = []
        """What it watches."""
        self._connection = None
        self._ports = ports
        self._ledger = ledger
        self._chance = chance

    def __str__(self):
        at = self._connection
        return self.name if at is None else f"{self.name} (at router {at.router}: {at.line}{self.tubes or ''})"

    async def run(self, stop):
        while not stop.is_set():
            router = self._chance.randrange(len(self._ports))
            try:
                streams = await asyncio.open_connection("127.0.0.1", self._ports[router])
            except OSError:
                await asyncio.sleep(0.05)
                continue
            connection = self._connection = Connection(router, *streams, self._ledger)
            with contextlib.suppress(Gone):
                await self.begin(connection)
                for _ in range(self._chance.randrange(20, 300)):
                    await self.step(connection)
                    if stop.is_set():
                        break
            connection.close()
            await asyncio.sleep(0.02)

    async def begin(self, connection):
        """Do what a new connection begins with."""

    async def step(self, connection):
        raise NotImplementedError

    async def delete(self, connection, job, job_id):
        job.deletes += 1
        words = await connection.ask(f"delete {job_id}")
        self.check(words, "DELETED", "NOT_FOUND")
        if words[0] == "DELETED":
            self._ledger.has_deleted(connection, job)
            return
        job.deletes -= 1
        if words[0] == "NOT_FOUND":
            self._ledger.not_found(self._ledger.let_go(connection, job), job, "delete")

    def check(self, words, *expected):
        """Complain of a reply that the command can't have."""
        if words[0] not in {*expected, UNSENT}:
            self._ledger.complain(f"{self.name} was told {' '.join(words)} instead of {' or '.join(expected)}")
            raise Gone


class Producer(Client):
    """Puts jobs into all tubes."""

    async def step(self, connection):
        if self._ledger.open > OPEN_MAX:  # not for good: a worker may watch just the tubes that are empty
            await asyncio.sleep(0.3)
        tube = self._chance.choice(TUBES)
        self.check(await connection.ask(f"use {tube}"), "USING")
        job = self._ledger.new_job(tube, self._chance.randrange(8, 60))
        body = body_of(job)
        delay_s = self._chance.choice([0, 0, 0, 0, 1])
        try:
            words = await connection.ask(f"put {self._chance.randrange(5)} {delay_s} {job.ttr_s} {len(body)}", body)
        except Gone:
            job.put = "perhaps"
            self._ledger.perhaps += 1
            raise
        self.check(words, "INSERTED")
        if words[0] == "INSERTED":
            self._ledger.inserted(job, int(words[1]))
            self.went_on_s = time.monotonic()
        else:
            job.put = "refused"
        await asyncio.sleep(self._chance.random() * 0.04)
        if job.id and self._chance.random() < 0.1:
            await self.delete(connection, job, job.id)


class Worker(Client):
    """Reserves from tubes of several servers."""

    async def begin(self, connection):
        self.tubes = self._chance.sample(TUBES, self._chance.randrange(2, 8))
        for tube in self.tubes:
            self.check(await connection.ask(f"watch {tube}"), "WATCHING")
        self.check(await connection.ask("ignore default"), "WATCHING")

    async def step(self, connection):
        sent_s = time.monotonic()
        words = await connection.ask(f"reserve-with-timeout {self._chance.randrange(3)}")
        self.check(words, "RESERVED", "TIMED_OUT", "DEADLINE_SOON")
        if words[0] != "RESERVED":
            await asyncio.sleep(0.01)
            return
        job = self._ledger.reserved(connection, int(words[1]), connection.body, sent_s)
        self.went_on_s = time.monotonic()
        if job is not None:
            await asyncio.sleep(self._chance.random() ** 3 * 0.5)
            await self._end(connection, job, words[1])

    async def _end(self, connection, job, job_id):
        """Do something with a job that is reserved."""
        what = self._chance.choices(["delete", "touch", "release", "bury", "keep", "vanish"], [60, 10, 12, 8, 6, 1])[0]
        if what == "vanish":
            raise Gone
        if what == "touch":
            sent_s = time.monotonic()
            words = await connection.ask(f"touch {job_id}")
            self.check(words, "TOUCHED", "NOT_FOUND")
            if words[0] == "TOUCHED":
                self._ledger.touched(connection, job, sent_s)
        elif what == "release":
            pri, delay_s = self._chance.randrange(5), self._chance.randrange(2)
            await self._give_up(connection, job, f"release {job_id} {pri} {delay_s}", "RELEASED")
        elif what == "bury":
            await self._give_up(connection, job, f"bury {job_id} 3", "BURIED")
        if what in {"touch", "delete"}:
            await self.delete(connection, job, job_id)

    async def _give_up(self, connection, job, line, done):
        hold = self._ledger.let_go(connection, job)
        words = await connection.ask(line)
        self.check(words, done, "NOT_FOUND")
        if words[0] == "NOT_FOUND":
            self._ledger.not_found(hold, job, line.split()[0])


class Kicker(Client):
    """Kicks buried jobs."""

    async def step(self, connection):
        for word, told in (("use", "USING"), ("kick", "KICKED")):
            words = await connection.ask(f"{word} {self._chance.choice(TUBES) if word == 'use' else 20}")
            self.check(words, told)
        if words[0] == "KICKED":
            self.went_on_s = time.monotonic()
        await asyncio.sleep(0.05)
