"""Servers that take over from each other under the load of clients, which keep a ledger of the replies."""

import asyncio
import itertools
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.forks import fork
from tests.support.network import HERE, Machine
from tests.support.servers import free_port

LEASE_S = 2  # servers are held up for a second now and then where much else runs
CLIENTS = 8
ACKNOWLEDGED = 200  # in each round, both before something is lost and after it
SOON_S = 30
CONNECT_S = 0.3
SESSION_S = 2 * LEASE_S  # a halted server does not answer, nor one that is cut off
TTR_S = 120  # longer than a session
PEEKS = 200
ROOT = Path(__file__).parents[2]


class Node:
    """A server on a port of its own, which is active or stands by."""

    def __init__(
        self, folder: Path, number: int, url: str, machine: Machine = HERE, flags: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder / f"node{number}"
        self.folder.mkdir()
        self.machine = machine
        self.port = free_port()
        self._flags = ("--database", url, "--lease", f"{LEASE_S}s", "--node", self.folder.name, *flags)
        self.start()

    def start(self):
        args = ["serve", "--host", self.machine.address, "-p", str(self.port), *self._flags]
        with (self.folder / "server.log").open("ab") as log, self.machine.entered():
            if self.machine is HERE:
                self.process = fork(args, self.folder, os.environ, log)
                return
            command = [sys.executable, "-m", "beanlite", *args]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    async def ended(self):
        """Wait until the server has ended, and return its exit code."""
        async with asyncio.timeout(SOON_S):
            while self.process.poll() is None:
                await asyncio.sleep(0.01)
        return self.process.returncode

    def log(self):
        return (self.folder / "server.log").read_text()


class Client:
    """A connection to a server, and the jobs that it holds."""

    def __init__(self, process, reader, writer):
        self.process = process
        self.reader = reader
        self.writer = writer
        self.held = []


class Ledger:
    """The replies that clients got, and what was wrong with them."""

    def __init__(self):
        self.put = {}
        """The body of each job whose put was acknowledged."""
        self.deleted = set()
        self.perhaps_deleted = set()
        """Jobs for which a delete was sent but not answered."""
        self.holders = {}
        """The client that each job was last given to."""
        self.served = []
        """The process ids of all servers that have ever answered, in the order of their first answers."""
        self.wrong = []
        self.acknowledged = 0

    def was_answered(self, client, served):
        """Note a reply. ``served`` is how many servers had answered by the time the command was sent."""
        if client.process not in self.served:
            self.served.append(client.process)
        if self.served.index(client.process) + 1 < served:
            self.wrong.append("a server answered after another one had taken over")

    def was_put(self, job_id, body):
        if job_id in self.put:
            self.wrong.append(f"id {job_id} was given out twice")
        self.put[job_id] = body
        self.acknowledged += 1

    def was_reserved(self, job_id, body, client):
        if job_id in self.deleted:
            self.wrong.append(f"job {job_id} was deleted, and is back")
        if self.put.get(job_id, body) != body:
            self.wrong.append(f"job {job_id} has another body")
        # After a takeover, held jobs are given out again; has_acted() checks that the old holders are refused.
        holder = self.holders.get(job_id)
        if holder is not None and holder.process == client.process:
            self.wrong.append(f"job {job_id} was given out twice")
        self.holders[job_id] = client

    def has_acted(self, job_id, client):
        """Note that the server acknowledged what a client did with a job that the client holds."""
        if self.holders.get(job_id) is not client:
            self.wrong.append(f"job {job_id} was another's, and who had held it before could still do something")

    def was_deleted(self, job_id, client):
        self.has_acted(job_id, client)
        self.holders.pop(job_id, None)
        self.perhaps_deleted.discard(job_id)
        self.deleted.add(job_id)
        self.acknowledged += 1

    def has_left(self, client):
        for job_id in client.held:
            if self.holders.get(job_id) is client:
                del self.holders[job_id]


class Load:
    """Clients that work on some servers, and find the active one by trying.

    If the standby forwards clients, they ask which server they have reached.
    """

    machine = HERE
    """Where the clients run."""
    patience_s = SOON_S
    """How long the clients may find no server, or get no replies."""

    def __init__(self, nodes, *, forwarded=False):
        self.nodes = nodes
        self.forwarded = forwarded
        self.ledger = Ledger()
        self._turns = itertools.count()

    async def begin(self):
        self._clients = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        await self.goes_on()

    async def end(self):
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def kill(self):
        """Kill the servers."""
        for node in self.nodes:
            node.process.kill()
            node.process.wait()

    async def connect(self, node):
        """Connect to a server. OSError: it does not listen, can't be reached, or has lost the active server."""
        client = await self._connect(node)
        if not self.forwarded:
            return client
        try:
            async with asyncio.timeout(SESSION_S):
                client.process = await self._server_of(client)
        except (OSError, asyncio.IncompleteReadError) as error:
            client.writer.transport.abort()
            raise ConnectionError from error
        except BaseException:
            client.writer.transport.abort()
            raise
        return client

    async def _server_of(self, client):
        """Return the id of the process that answers a client, which may have been forwarded to it."""
        client.writer.write(b"stats\r\n")
        size = int((await client.reader.readuntil(b"\r\n")).split()[1])
        stats = await client.reader.readexactly(size + 2)
        return int(re.findall(rb"^pid: (\d+)", stats, re.MULTILINE)[0])

    async def _connect(self, node):
        with self.machine.entered():
            end = socket.socket()
        try:
            end.setblocking(False)
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().sock_connect(end, (node.machine.address, node.port))
            process = node.process.pid
            return Client(process, *await asyncio.open_connection(sock=end))
        except BaseException:
            end.close()
            raise

    async def connection(self):
        """Return the active server, or one that does not know yet that it is cut off, and a connection to it."""
        async with asyncio.timeout(self.patience_s):
            while True:
                for _ in self.nodes:
                    node = self.nodes[next(self._turns) % len(self.nodes)]
                    try:
                        client = await self.connect(node)
                    except OSError:
                        continue
                    node = next((each for each in self.nodes if each.process.pid == client.process), None)
                    if node is not None:
                        return node, client
                    client.writer.transport.abort()
                await asyncio.sleep(0.01)

    async def active(self):
        node, client = await self.connection()
        client.writer.transport.abort()
        return node

    async def goes_on(self):
        """Wait until ACKNOWLEDGED more changes have been acknowledged."""
        until = self.ledger.acknowledged + ACKNOWLEDGED
        async with asyncio.timeout(self.patience_s):
            while self.ledger.acknowledged < until:
                self._still_at_work()
                await asyncio.sleep(0.01)

    def _still_at_work(self):
        for client in self._clients:
            if client.done():
                client.result()

    async def _client(self, number):
        chance = random.Random(number)
        serial = 0
        while True:
            _, client = await self.connection()
            try:
                async with asyncio.timeout(SESSION_S):
                    while True:
                        serial += 1
                        await self._cycle(client, b"%d-%d" % (number, serial), chance)
            except (OSError, asyncio.IncompleteReadError):
                continue
            finally:
                self.ledger.has_left(client)
                client.writer.transport.abort()

    async def _cycle(self, client, body, chance):
        """Put a job, or reserve one: a server that has lost the lease must not even do that."""
        if chance.random() < 0.6:
            put = b"put %d 0 %d %d\r\n%b" % (chance.randrange(3), TTR_S, len(body), body)
            word, job_id = await self._ask(client, put)
            assert word == b"INSERTED"
            self.ledger.was_put(int(job_id), body)
        else:
            await self._reserve(client)
            await self._work(client, chance)

    async def _work(self, client, chance):
        """Touch a job, delete one, or do nothing for now."""
        if client.held and chance.random() < 0.3:
            job_id = chance.choice(client.held)
            assert await self._ask(client, b"touch %d" % job_id) == [b"TOUCHED"]
            self.ledger.has_acted(job_id, client)
        elif client.held and chance.random() < 0.8:
            await self._delete(client, client.held[0])
            client.held.pop(0)

    async def _ask(self, client, line):
        """Send a command, and return the words of the reply."""
        served = len(self.ledger.served)
        client.writer.write(line + b"\r\n")
        said = (await client.reader.readuntil(b"\r\n")).split()
        self.ledger.was_answered(client, served)
        return said

    async def _reserve(self, client):
        said = await self._ask(client, b"reserve-with-timeout 0")
        if said[0] == b"RESERVED":
            job_id = int(said[1])
            body = (await client.reader.readexactly(int(said[2]) + 2))[:-2]
            client.held.append(job_id)
            self.ledger.was_reserved(job_id, body, client)

    async def _delete(self, client, job_id):
        self.ledger.perhaps_deleted.add(job_id)
        assert await self._ask(client, b"delete %d" % job_id) == [b"DELETED"]
        self.ledger.was_deleted(job_id, client)

    async def agrees(self):
        """Check the ledger by peeking at each job, whatever its state: a client that was cut off may hold it."""
        ledger = self.ledger
        _, client = await self.connection()
        there = set()
        jobs = list(ledger.put)
        for at in range(0, len(jobs), PEEKS):
            several = jobs[at : at + PEEKS]
            client.writer.write(b"".join(b"peek %d\r\n" % job_id for job_id in several))
            for job_id in several:
                said = (await client.reader.readuntil(b"\r\n")).split()
                if said[0] == b"FOUND":
                    there.add(job_id)
                    assert await client.reader.readexactly(int(said[2]) + 2) == ledger.put[job_id] + b"\r\n"
        client.writer.transport.abort()
        assert ledger.wrong == []
        assert ledger.put.keys() - there - ledger.deleted - ledger.perhaps_deleted == set()
        assert there & ledger.deleted == set()
