"""Two real servers on a PostgreSQL with a synchronous standby, each of which is lost under load.

``FAILOVERS=25 pytest tests/server/test_failover.py`` makes 25 rounds of each kind. Clients keep a ledger of what was
acknowledged to them, which has to agree with what is there in the end.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import need
from tests.support.postgres import Pair, programs
from tests.support.servers import free_port

ROUNDS = int(os.environ.get("FAILOVERS", "1"))
LEASE_S = 1
CLIENTS = 8
ACKNOWLEDGED = 200  # in each round before something is lost, and after it
SOON_S = 30
LEASE_LOST = 6
ROOT = Path(__file__).parents[2]


class Node:
    """A server on a port of its own, which is active or stands by."""

    def __init__(self, folder, number, url):
        self.folder = folder / f"node{number}"
        self.folder.mkdir()
        self.port = free_port()
        self._url = url
        self.start()

    def start(self):
        command = [sys.executable, "-m", "beanlite", "serve", "-p", str(self.port), "--database", self._url]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--lease", f"{LEASE_S}s", "--node", self.folder.name],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )

    async def ended(self):
        """Its exit code, when it has ended."""
        async with asyncio.timeout(SOON_S):
            while self.process.poll() is None:
                await asyncio.sleep(0.01)
        return self.process.returncode

    def log(self):
        return (self.folder / "server.log").read_text()


class Ledger:
    """What clients were told."""

    def __init__(self):
        self.put = {}
        """The body of each job whose put was acknowledged."""
        self.deleted = set()
        self.perhaps_deleted = set()
        """Jobs whose deletion was asked for, and never answered."""
        self.wrong = []
        self.acknowledged = 0

    def was_put(self, job_id, body):
        if job_id in self.put:
            self.wrong.append(f"id {job_id} was given out twice")
        self.put[job_id] = body
        self.acknowledged += 1

    def was_reserved(self, job_id, body):
        if job_id in self.deleted:
            self.wrong.append(f"job {job_id} was deleted, and is back")
        if self.put.get(job_id, body) != body:
            self.wrong.append(f"job {job_id} has another body")


class Cluster:
    """Two servers, their database, and clients that find the active one by trying."""

    def __init__(self, folder):
        self.pair = Pair()
        self.nodes = [Node(folder, number, self.pair.url()) for number in range(2)]
        self.ledger = Ledger()

    async def begin(self):
        self._clients = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        await self.goes_on()

    async def end(self):
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def close(self):
        for node in self.nodes:
            node.process.kill()
            node.process.wait()
        self.pair.end()

    async def connection(self):
        """One to the active server, which alone listens."""
        async with asyncio.timeout(SOON_S):
            while True:
                for node in self.nodes:
                    try:
                        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
                    except OSError:
                        continue
                    return node, reader, writer
                await asyncio.sleep(0.01)

    async def active(self):
        node, _, writer = await self.connection()
        writer.transport.abort()
        return node

    async def goes_on(self):
        """Wait until so much more has been acknowledged."""
        until = self.ledger.acknowledged + ACKNOWLEDGED
        async with asyncio.timeout(SOON_S):
            while self.ledger.acknowledged < until:
                for client in self._clients:
                    if client.done():
                        client.result()
                await asyncio.sleep(0.01)

    async def _client(self, number):
        chance = random.Random(number)
        serial = 0
        while True:
            _, reader, writer = await self.connection()
            try:
                async with asyncio.timeout(3 * LEASE_S):  # a halted server does not answer
                    while True:
                        serial += 1
                        await self._cycle(reader, writer, b"%d-%d" % (number, serial), chance)
            except (OSError, asyncio.IncompleteReadError):
                continue
            finally:
                writer.transport.abort()

    async def _cycle(self, reader, writer, body, chance):
        ledger = self.ledger
        writer.write(b"put %d 0 120 %d\r\n%b\r\n" % (chance.randrange(3), len(body), body))
        word, job_id = (await reader.readuntil(b"\r\n")).split()
        assert word == b"INSERTED"
        ledger.was_put(int(job_id), body)
        if chance.random() < 0.5:
            return
        reserved = await self.reserve(reader, writer)
        if reserved is not None:
            await self._delete(reader, writer, reserved)

    async def reserve(self, reader, writer, timeout_s=0):
        """The id of a job that was reserved, or None."""
        writer.write(b"reserve-with-timeout %d\r\n" % timeout_s)
        said = (await reader.readuntil(b"\r\n")).split()
        if said[0] != b"RESERVED":
            return None
        job_id = int(said[1])
        self.ledger.was_reserved(job_id, (await reader.readexactly(int(said[2]) + 2))[:-2])
        return job_id

    async def _delete(self, reader, writer, job_id):
        ledger = self.ledger
        ledger.perhaps_deleted.add(job_id)
        writer.write(b"delete %d\r\n" % job_id)
        assert (await reader.readuntil(b"\r\n")) == b"DELETED\r\n"
        ledger.perhaps_deleted.discard(job_id)
        ledger.deleted.add(job_id)
        ledger.acknowledged += 1

    async def agrees(self):
        """Take out what is left, and compare it with the ledger."""
        ledger = self.ledger
        left = set()
        _, reader, writer = await self.connection()
        while (job_id := await self.reserve(reader, writer, timeout_s=1)) is not None:
            left.add(job_id)
        writer.transport.abort()
        assert ledger.wrong == []
        assert ledger.put.keys() - left - ledger.deleted - ledger.perhaps_deleted == set()
        assert left & ledger.deleted == set()


@pytest.fixture
def cluster(tmp_path):
    need(programs(), "PostgreSQL is not installed")
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


async def the_active_one_is_killed(cluster):
    node = await cluster.active()
    node.process.kill()
    assert await node.ended() == -signal.SIGKILL
    await cluster.goes_on()
    node.start()


async def the_active_one_is_stopped(cluster):
    node = await cluster.active()
    node.process.terminate()
    assert await node.ended() == 0, node.log()
    await cluster.goes_on()
    node.start()


async def the_active_one_is_halted_and_goes_on(cluster):
    node = await cluster.active()
    node.process.send_signal(signal.SIGSTOP)
    other = next(each for each in cluster.nodes if each is not node)
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", other.port)
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.transport.abort()
                break
    node.process.send_signal(signal.SIGCONT)
    assert await node.ended() == LEASE_LOST, node.log()
    await cluster.goes_on()
    node.start()


async def the_primary_is_killed_and_its_standby_promoted(cluster):
    await asyncio.to_thread(cluster.pair.fail_over)
    await asyncio.to_thread(cluster.pair.make_standby)
    await cluster.goes_on()


async def the_primary_is_killed_and_started_again(cluster):
    await asyncio.to_thread(cluster.pair.restart_primary)
    await cluster.goes_on()


async def both_are_killed(cluster):
    node = await cluster.active()
    node.process.kill()
    assert await node.ended() == -signal.SIGKILL
    await asyncio.to_thread(cluster.pair.fail_over)
    await asyncio.to_thread(cluster.pair.make_standby)
    await cluster.goes_on()
    node.start()


LOSSES = (
    the_active_one_is_killed,
    the_active_one_is_stopped,
    the_active_one_is_halted_and_goes_on,
    the_primary_is_killed_and_its_standby_promoted,
    the_primary_is_killed_and_started_again,
    both_are_killed,
)


async def test_whatever_is_lost_nothing_that_was_acknowledged_is(cluster):
    await cluster.begin()
    for _ in range(ROUNDS):
        for lose in LOSSES:
            await lose(cluster)
            assert cluster.ledger.wrong == [], lose.__name__
    await cluster.end()
    await cluster.agrees()
    for node in cluster.nodes:
        assert "Traceback" not in node.log()
