"""Two real servers, a PostgreSQL and its synchronous standby, and clients, each on a machine of its own, between which
packets are silently dropped: under load, with a ledger of the acknowledgements.

``FAILOVERS=25 pytest tests/server/test_partitions.py`` makes 25 rounds of each kind; by default there is one round of
the most telling kinds, and none in which the standby forwards clients.
"""

import asyncio
import contextlib
import os
import time

import pytest

from tests.support.failover import LEASE_S, SOON_S, Load, Node
from tests.support.needs import need
from tests.support.network import Network, no_network
from tests.support.postgres import Pair, programs

ROUNDS = int(os.environ.get("FAILOVERS", "0"))
LEASE_LOST = 6
CUT_S = 1.5 * LEASE_S


class Cluster(Load):
    """Five machines, one of them for the clients."""

    def __init__(self, folder, network, standby):
        self.network = network
        *servers, one, two, self.machine = network.machines
        self.pair = Pair((one, two))
        self.databases = (one, two)
        flags = ("--standby", standby)
        nodes = [Node(folder, number, self.pair.url(), machine, flags) for number, machine in enumerate(servers)]
        super().__init__(nodes, forwarded=standby == "forward")

    def close(self):
        self.kill()
        self.pair.end()

    def other(self, node):
        return next(each for each in self.nodes if each is not node)

    def takeovers(self):
        return sum(node.log().count("lease acquired") for node in self.nodes)

    async def stands_still(self):
        """Wait until nothing has been acknowledged for longer than the lease."""
        acknowledged, since_s = -1, time.monotonic()
        async with asyncio.timeout(SOON_S):
            while time.monotonic() - since_s < CUT_S:
                if self.ledger.acknowledged != acknowledged:
                    acknowledged, since_s = self.ledger.acknowledged, time.monotonic()
                await asyncio.sleep(0.01)

    async def goes_on_for(self, seconds):
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            await self.goes_on()


@pytest.fixture(params=["refuse", "forward"] if ROUNDS else ["refuse"])
def cluster(tmp_path, request):
    need(programs(), "PostgreSQL is not installed")
    why = no_network()
    need(not why, why)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(5))
        cluster = Cluster(tmp_path, network, request.param)
        stack.callback(cluster.close)
        yield cluster


@contextlib.contextmanager
def cut(cluster, one, *others):
    cluster.network.cut(one, *others)
    try:
        yield
    finally:
        cluster.network.heal()


async def taken_over(node):
    """Check that a server that was cut off ends when it finds that another has taken over; start it again."""
    assert await node.ended() == LEASE_LOST, node.log()
    node.start()


async def between_the_clients_and_the_active_one(cluster):
    node = await cluster.active()
    before = cluster.takeovers()
    with cut(cluster, cluster.machine, node.machine):
        if cluster.forwarded:
            await cluster.goes_on_for(CUT_S)
        else:
            await cluster.stands_still()
    await cluster.goes_on()
    assert cluster.takeovers() == before


async def between_the_servers(cluster):
    before = cluster.takeovers()
    with cut(cluster, cluster.nodes[0].machine, cluster.nodes[1].machine):
        await cluster.goes_on_for(CUT_S)
    assert cluster.takeovers() == before


async def between_the_one_that_stands_by_and_the_primary(cluster):
    node = cluster.other(await cluster.active())
    before = cluster.takeovers()
    with cut(cluster, node.machine, *cluster.databases):
        await cluster.goes_on_for(CUT_S)
    await cluster.goes_on_for(CUT_S)  # the standby sees again that the lease is kept
    assert cluster.takeovers() == before


async def between_the_primary_and_its_standby(cluster):
    before = cluster.takeovers()
    with cut(cluster, *cluster.databases):
        await cluster.stands_still()
    await cluster.goes_on()
    assert cluster.takeovers() == before


async def between_the_active_one_and_the_primary(cluster):
    node = await cluster.active()
    with cut(cluster, node.machine, *cluster.databases):
        await cluster.goes_on()
    await taken_over(node)


async def between_the_active_one_and_all_others(cluster):
    node = await cluster.active()
    with cut(cluster, node.machine, *(machine for machine in cluster.network.machines if machine is not node.machine)):
        await cluster.goes_on()
    await taken_over(node)


async def from_the_primary_to_the_active_one_only(cluster):
    """What the server sends is stored, but it gets no answer."""
    node = await cluster.active()
    for machine in cluster.databases:
        cluster.network.mute(machine, node.machine)
    await cluster.goes_on()
    cluster.network.heal()
    await taken_over(node)


async def between_the_primary_and_both_servers(cluster):
    """The database's standby is promoted, and its primary made a standby, before the servers can reach that again.

    Which of the servers is the first to find the new primary is left to chance.
    """
    node = await cluster.active()
    before = cluster.takeovers()
    primary = cluster.pair.primary.machine
    with cut(cluster, primary, *(node.machine for node in cluster.nodes)):
        await asyncio.to_thread(cluster.pair.fail_over)
        await asyncio.to_thread(cluster.pair.make_standby)
        await cluster.goes_on()
    if cluster.takeovers() != before:
        await taken_over(node)


PARTITIONS = (
    between_the_clients_and_the_active_one,
    between_the_servers,
    between_the_one_that_stands_by_and_the_primary,
    between_the_primary_and_its_standby,
    between_the_active_one_and_the_primary,
    between_the_active_one_and_all_others,
    from_the_primary_to_the_active_one_only,
    between_the_primary_and_both_servers,
)
SOME = (
    between_the_one_that_stands_by_and_the_primary,
    between_the_primary_and_its_standby,
    between_the_active_one_and_the_primary,
)


async def test_whatever_is_cut_off_nothing_that_was_acknowledged_is_lost(cluster):
    await cluster.begin()
    for _ in range(ROUNDS or 1):
        for part in PARTITIONS if ROUNDS else SOME:
            await part(cluster)
            assert cluster.ledger.wrong == [], part.__name__
    await cluster.end()
    await cluster.agrees()
    for node in cluster.nodes:
        assert "Traceback" not in node.log()
