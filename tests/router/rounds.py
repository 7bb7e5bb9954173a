"""Servers and routers that are killed, halted and cut off under load, round by round, while tubes move between them.

::

    python -m tests.router.rounds [--rounds 100] [--seed 1]

A server with a file, one with a PostgreSQL, and two that share a primary and its standby; two routers in front of them.
In each round one of these programs, or a database, is killed and started again, halted for a while, or cut off; when
the primary is killed, its standby is promoted. In each tenth round a tube is moved as well; in half of these the
command is killed at any moment, and repeated. A ledger (``ledger.py``) says what is wrong:

- a put that was acknowledged, and is nowhere, or in two places, though nobody has deleted it;
- a job that is there after its delete was acknowledged, or after its put was refused;
- a job that was given to two clients within its ttr, though none of them, nor its server or router, was lost;
- two jobs with the same id;
- a client that has not gone on within a minute of the end of a round's fault.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

from beanlite.console.listing import everything
from beanlite.fleet.servers import Fleet
from tests.router.ledger import Ledger
from tests.router.load import TUBES, Kicker, Producer, Worker
from tests.router.places import CUTS, FENCED, LOOK_S, Member, Program
from tests.support.forks import fork
from tests.support.wire import Wire, until

SERVERS, ROUTERS = 3, 2
CLIENTS = [Producer] * 3 + [Worker] * 8 + [Kicker]
MOVE_EACH = 10
GOES_ON_WITHIN_S = 60.0
MOVES_WITHIN_S = 60.0


class Rounds:
    """All rounds, with their servers, routers and clients."""

    def __init__(self, folder, seed, tell):
        self.ledger = Ledger()
        self.went_on_s = []
        """How long the slowest client took to go on, after each round."""
        self.faults = defaultdict(int)
        self.moves = self.moves_killed = self.move_tries = 0
        self.fenced = 0
        self._folder = folder
        self._file = folder / "servers.toml"
        self._chance = random.Random(seed)
        self._tell = tell
        self._members = [Member(number, folder) for number in range(1, SERVERS + 1)]
        self._routers = [Program(f"router {at}", "router", folder, ("router", at)) for at in range(ROUTERS)]
        self._databases = [member.database for member in self._members if member.database]
        self._programs = [*(program for member in self._members for program in member.programs), *self._routers]

    async def run(self, number):
        async with AsyncExitStack() as stack:
            stack.callback(self._end)
            for place in [*self._programs, *self._databases]:
                for gate in place.gates:
                    await stack.enter_async_context(gate)
            await asyncio.to_thread(self._start)
            for first in range(1, number + 1, MOVE_EACH):
                await self._load(range(first, min(first + MOVE_EACH, number + 1)))
                self.ledger.audit(await asyncio.to_thread(self._places))

    def _start(self):
        text = "version = 1\n"
        for member in self._members:
            addresses = member.start()
            text += f"[servers.s{member.number}]\nnumber = {member.number}\nconnect = {addresses}\n"
        self._file.write_text(text)
        for router in self._routers:
            router.start("route", "--listen", f"127.0.0.1:{router.port}", "--servers", str(self._file))

    def _end(self):
        for program in self._programs:
            log = program.end()
            if "Traceback" in log:
                self.ledger.complain(f"{program.name} has a traceback in its log: {log[-3000:]}")
        for database in self._databases:
            database.end()

    async def _supervise(self):
        """Start servers again that have ended by themselves, as a service manager does."""
        while True:
            await asyncio.sleep(LOOK_S)
            for program in self._programs:
                if not program.has_ended:
                    continue
                async with program.lock:
                    outage = self.ledger.begin_outage(program.loses)
                    code = program.program.process.returncode
                    self.fenced += code == FENCED
                    if code != FENCED:
                        self.ledger.complain(
                            f"{program.name} has ended with {code}: {program.program.log_text()[-3000:]}"
                        )
                    await asyncio.to_thread(program.start_again)
                    outage.end_s = time.monotonic()

    # -- rounds

    async def _load(self, numbers):
        """Have clients work through some rounds, and end them."""
        stop = asyncio.Event()
        ports = [place.gate.port for place in self._routers]
        clients = [
            kind(f"{kind.__name__.lower()} {at}", ports, self.ledger, random.Random(self._chance.random()))
            for at, kind in enumerate(CLIENTS)
        ]
        async with asyncio.TaskGroup() as group:
            supervisor = group.create_task(self._supervise())
            for client in clients:
                group.create_task(client.run(stop))
            for number in numbers:
                await self._round(number, clients)
            stop.set()
            supervisor.cancel()

    async def _round(self, number, clients):
        before = self.ledger.puts, self.ledger.deletes
        await asyncio.sleep(self._chance.random())
        async with asyncio.TaskGroup() as group:
            move = group.create_task(self._move()) if number % MOVE_EACH == 0 else None
            what, cured_s = await self._fault()
            slowest, slowest_s = await self._all_go_on(number, clients, cured_s)
        if move is not None:
            what += f"; {move.result()}"
        puts, deletes = self.ledger.puts - before[0], self.ledger.deletes - before[1]
        done = f"{puts} puts, {deletes} deletes"
        self._tell(f"round {number}: {what}; {done}; all go on {slowest_s:.2f} s after it, {slowest} last")

    async def _fault(self):
        """Do something to a server, a database or a router; return what, and when it was over."""
        chance = self._chance
        place = chance.choice([*self._programs, *self._databases])
        kind = chance.choice(["kill", "halt", "cut"])
        away_s = chance.uniform(0.2, 3.0)
        self.faults[f"{kind} of a {place.kind}"] += 1
        outage = self.ledger.begin_outage(place.loses) if kind in place.loses_by else None
        if kind == "halt":
            what = f"{place.name} halted for {away_s:.1f} s"
            await place.halt(away_s)
        elif kind == "kill":
            what = f"{place.name} killed, away for {away_s:.1f} s"
            await place.kill(away_s)
        else:
            how = chance.choice(CUTS)
            what = f"{place.name} cut off ({how}) for {away_s:.1f} s"
            await place.cut(how, away_s)
        for member in self._members:
            if place in member.places:
                await asyncio.to_thread(member.find)
        if outage is not None:
            outage.end_s = time.monotonic()
        return what, time.monotonic()

    async def _all_go_on(self, number, clients, cured_s):
        """Wait for all clients; return the last one, and how long it took."""
        waited = ["nobody"]
        while waiting := [str(client) for client in clients if client.went_on_s < cured_s]:
            if time.monotonic() > cured_s + GOES_ON_WITHIN_S:
                self.ledger.complain(f"round {number}: {', '.join(waiting)} did not go on")
                break
            await asyncio.sleep(0.05)
            waited = waiting
        self.went_on_s.append(GOES_ON_WITHIN_S if waiting else time.monotonic() - cured_s)
        return waited[0], self.went_on_s[-1]

    # -- moves

    async def _move(self):
        """Move a tube to another server; return what was done."""
        chance = self._chance
        fleet = Fleet.load(self._file)
        tube = chance.choice(TUBES)
        source = fleet.home(tube.encode()).name
        target = chance.choice([member.name for member in fleet.members if member.name != source])
        await asyncio.sleep(chance.random())
        self.ledger.moved.add(tube)
        self.ledger.moving = tube
        killed = False
        if chance.random() < 0.5:
            killed = await self._shard_move(tube, target, kill_after_s=chance.uniform(0.05, 0.8)) < 0
            self.moves_killed += killed
        end_s = time.monotonic() + MOVES_WITHIN_S
        while code := await self._shard_move(tube, target):
            said = self._said()
            if time.monotonic() > end_s:
                self.ledger.complain(f"{tube} was not moved to {target}: {code}, {said}")
                break
            if "still has jobs" in said:  # of the last move
                await self._shard_move(tube, source)
            await asyncio.sleep(0.2)
        self.ledger.moving = ""
        self.moves += 1
        return f"{tube} moved from {source} to {target}{', killed once' if killed else ''}"

    def _said(self):
        return (self._folder / "move.log").read_text()

    async def _shard_move(self, tube, target, kill_after_s=None):
        """Run the command; return its exit code."""
        self.move_tries += 1
        arguments = ["shard", "move", tube, "--to", target, "--servers", str(self._file)]
        with (self._folder / "move.log").open("wb") as sink:
            process = fork(arguments, self._folder, {}, sink)
        if kill_after_s is not None:
            await asyncio.sleep(kill_after_s)
            process.kill()
        code = await asyncio.to_thread(process.wait)
        if "Traceback" in self._said():
            self.ledger.complain(f"{' '.join(arguments)}: {self._said()}")
        return code

    # -- what there is

    def _places(self):
        """Return where each job is, once the servers have heard of the end of all clients."""
        places = defaultdict(list)
        for member in self._members:
            with Wire(member.find().program.connect()) as wire:
                _wait_until_alone(wire)
                for job in _jobs(wire):
                    key = int(job["preview"].split(":")[0])
                    places[key].append(f"s{member.number}:{job['id']} in {job['tube']}, {job['state']}")
        return places

    def summary(self):
        ledger = self.ledger
        faults = ", ".join(f"{number} times {what}" for what, number in sorted(self.faults.items()))
        return (
            f"{len(self.went_on_s)} rounds: {faults}; {self.moves} moves, {self.moves_killed} of them killed,"
            f" {self.move_tries} runs of the command; {self.fenced} servers ended as another one had taken over\n"
            f"{ledger.puts} puts acknowledged, {ledger.perhaps} perhaps, {ledger.reserves} reservations,"
            f" {ledger.deletes} deletes; all went on {statistics.median(self.went_on_s):.2f} s after a round,"
            f" {max(self.went_on_s):.2f} s at most"
        )


def _wait_until_alone(wire):
    until(lambda: wire.stats()["current-connections"] == "1")


def _jobs(wire):
    return everything(lambda what: wire.request("list-jobs", **what), {"preview": 9}, "jobs")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.router.rounds", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="beanlite-rounds-") as folder:
        rounds = Rounds(Path(folder), asked.seed, lambda line: print(line, flush=True))
        asyncio.run(rounds.run(asked.rounds))
    complaints = rounds.ledger.complaints
    print(rounds.summary(), *complaints, "FAILED" if complaints else "PASSED", sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
