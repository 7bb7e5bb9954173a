"""Two real servers on a PostgreSQL with a synchronous standby, any of which is lost under load.

``FAILOVERS=25 pytest tests/server/test_failover.py`` makes 25 rounds of each kind. Clients keep a ledger of the
acknowledgements, which has to agree with the jobs that are there at the end. With more than one round, as many more
are made in which the standby forwards clients.
"""

import asyncio
import os
import signal

import pytest

from tests.support.failover import SOON_S, Load, Node
from tests.support.needs import need
from tests.support.postgres import Pair, programs

ROUNDS = int(os.environ.get("FAILOVERS", "1"))
LEASE_LOST = 6


class Cluster(Load):
    """Two servers, their database, and clients."""

    def __init__(self, folder, standby):
        self.pair = Pair()
        flags = ("--standby", standby)
        nodes = [Node(folder, number, self.pair.url(), flags=flags) for number in range(2)]
        super().__init__(nodes, forwarded=standby == "forward")

    def close(self):
        self.kill()
        self.pair.end()


@pytest.fixture(params=["refuse"] if ROUNDS == 1 else ["refuse", "forward"])
def cluster(tmp_path, request):
    need(programs(), "PostgreSQL is not installed")
    cluster = Cluster(tmp_path, request.param)
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
    async with asyncio.timeout(SOON_S):
        while await cluster.active() is node:
            await asyncio.sleep(0.01)
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
