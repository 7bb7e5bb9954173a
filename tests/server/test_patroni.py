"""Two real servers on a PostgreSQL that Patroni manages, with two and with three members, under load.

``PATRONI=24 pytest tests/server/test_patroni.py`` makes 24 rounds of each kind with each number of members; ``-k two``
and ``-k three`` choose one number, and PATRONI_SEED repeats the choices of a run. Clients, servers, members and etcd
each have a machine of their own. For each round a line says what was lost and for how long, how long Patroni then took
to be healthy, how long after that the next acknowledgement came, the longest time without one, how often a server lost
its lease, and which member was the leader before and after, with the timelines.
"""

import asyncio
import contextlib
import os
import random
import time

import pytest

from tests.support.failover import LEASE_S, Load, Node
from tests.support.needs import need
from tests.support.network import Network, no_network
from tests.support.patroni import Patroni, missing

ROUNDS = int(os.environ.get("PATRONI", "1"))
SEED = int(os.environ.get("PATRONI_SEED") or random.randrange(1 << 32))
LEASE_LOST = 6
LATEST_S = LEASE_S + 2
HEALTHY_WITHIN_S = 180
SHORTEST_S, LONGEST_S = 5, 60
OTHERS = 0.25  # the share of rounds in which it is not the leader that is lost

pytestmark = [] if "PATRONI" in os.environ else pytest.mark.nightly


class Cluster(Load):
    """Two servers, their database and its etcd, and clients, each on a machine of its own."""

    patience_s = HEALTHY_WITHIN_S

    def __init__(self, folder, network, patroni, machines):
        self.network = network
        self.patroni = patroni
        *servers, self.machine = machines
        super().__init__([Node(folder, number, patroni.url(), machine) for number, machine in enumerate(servers)])
        self.chance = random.Random(SEED)
        self.leases_lost = 0
        self.silence = 0.0
        """The longest time without an acknowledgement in this round."""

    async def begin(self):
        self._watches = [asyncio.create_task(self._start_again()), asyncio.create_task(self._time())]
        await super().begin()

    async def end(self):
        await super().end()
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    async def _start_again(self):
        """Start a server again that has lost its lease. It must not end otherwise."""
        while True:
            for node in self.nodes:
                if (code := node.process.poll()) is not None:
                    assert code == LEASE_LOST, node.log()
                    self.leases_lost += 1
                    node.start()
            await asyncio.sleep(0.02)

    async def _time(self):
        acknowledged, since_s = -1, time.monotonic()
        while True:
            if self.ledger.acknowledged != acknowledged:
                acknowledged, since_s = self.ledger.acknowledged, time.monotonic()
            self.silence = max(self.silence, time.monotonic() - since_s)
            await asyncio.sleep(0.01)

    def _still_at_work(self):
        super()._still_at_work()
        for watch in self._watches:
            if watch.done():
                watch.result()

    async def health(self):
        """Wait until Patroni is healthy."""
        async with asyncio.timeout(HEALTHY_WITHIN_S):
            while (health := await asyncio.to_thread(self.patroni.health)) is None:
                self._still_at_work()
                await asyncio.sleep(0.1)
        return health

    async def next_acknowledgement(self):
        acknowledged = self.ledger.acknowledged
        async with asyncio.timeout(self.patience_s):
            while self.ledger.acknowledged == acknowledged:
                self._still_at_work()
                await asyncio.sleep(0.002)

    def victim(self, health):
        """Choose a member, most often the leader."""
        others = [member for member in self.patroni.members if member is not health.leader]
        return self.chance.choice(others) if self.chance.random() < OTHERS else health.leader

    async def passes(self, longest_s):
        """Wait for a time by chance; with three members, also until the others have gone on."""
        await asyncio.sleep(self.chance.uniform(SHORTEST_S, longest_s))
        if len(self.patroni.members) > 2:
            await self.goes_on()


@pytest.fixture(params=[pytest.param(2, id="two"), pytest.param(3, id="three")])
def cluster(tmp_path, request):
    need(not missing(), missing())
    why = no_network()
    need(not why, why)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(request.param + 4))
        members, etcd, others = network.machines[:-4], network.machines[-4], network.machines[-3:]
        patroni = Patroni(members, etcd, tmp_path)
        stack.callback(patroni.close)
        patroni.start()
        cluster = Cluster(tmp_path, network, patroni, others)
        stack.callback(cluster.kill)
        yield cluster


async def switchover(cluster, health):
    await asyncio.to_thread(cluster.patroni.switch_over, health)
    return health.leader


async def kill(cluster, health):
    member = cluster.victim(health)
    await asyncio.to_thread(member.kill)
    await cluster.passes(LONGEST_S / 2)
    member.start()
    return member


async def halt(cluster, health):
    """With two members the leader may take back its key when it continues, although the other was promoted."""
    member = cluster.victim(health)
    member.halt()
    try:
        await asyncio.sleep(cluster.chance.uniform(SHORTEST_S, LONGEST_S))
    finally:
        member.resume()
    return member


async def cut(cluster, health):
    member = cluster.victim(health)
    cluster.network.cut(member.machine, *(each for each in cluster.network.machines if each is not member.machine))
    try:
        await cluster.passes(LONGEST_S)
    finally:
        cluster.network.heal()
    return member


KINDS = (switchover, kill, halt, cut)


def role_of(member, health):
    return {health.leader: "leader", health.standby: "sync"}.get(member, "async")


async def lose(cluster, kind):
    """Make a round; return the line that tells of it, and how long the next acknowledgement took."""
    before = await cluster.health()
    await cluster.goes_on()
    cluster.silence, leases_lost = 0.0, cluster.leases_lost
    began_s = time.monotonic()
    member = await kind(cluster, before)
    back_s = time.monotonic()
    after = await cluster.health()
    healthy_s = time.monotonic()
    await cluster.next_acknowledgement()
    acknowledged_s = time.monotonic()
    await cluster.goes_on()
    line = (
        f"{len(cluster.patroni.members)} members  {kind.__name__:10}  {role_of(member, before):6}"
        f"  lost {back_s - began_s:5.1f} s  healthy after {healthy_s - back_s:5.1f} s"
        f"  acknowledged after {acknowledged_s - healthy_s:6.3f} s  silent {cluster.silence:5.1f} s"
        f"  leases lost {cluster.leases_lost - leases_lost}"
        f"  {before.leader.name} {before.timeline} -> {after.leader.name} {after.timeline}"
    )
    return line, acknowledged_s - healthy_s


async def test_whatever_patroni_does_nothing_acknowledged_is_lost(cluster, capsys):
    def show(line):
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201 - a line for each round

    show(f"\nPATRONI_SEED={SEED}")
    await cluster.begin()
    late = []
    for number in range(ROUNDS):
        for kind in KINDS:
            line, took_s = await lose(cluster, kind)
            show(f"{time.strftime('%H:%M:%S')}  {number + 1:3}  {line}")
            assert cluster.ledger.wrong == [], line
            if took_s > LATEST_S:
                late.append(line)
    await cluster.end()
    await cluster.agrees()
    for node in cluster.nodes:
        assert "Traceback" not in node.log()
    assert late == []
