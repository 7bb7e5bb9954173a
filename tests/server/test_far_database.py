"""Two real servers whose database is some milliseconds away, under load, with a ledger of the acknowledgements.

``FAILOVERS=25 pytest tests/server/test_far_database.py`` kills the active server 25 times at each distance.
"""

import contextlib
import os

import pytest

from tests.support.cutting import Cutting
from tests.support.failover import Load, Node

ROUNDS = int(os.environ.get("FAILOVERS", "0"))
ROUND_TRIPS_MS = (1, 5, 20) if ROUNDS else (20,)


@pytest.mark.parametrize("round_trip_ms", ROUND_TRIPS_MS)
async def test_nothing_is_lost_on_a_long_way(postgres, database, tmp_path, round_trip_ms):
    async with contextlib.AsyncExitStack() as stack:
        way = await stack.enter_async_context(Cutting(postgres.port, round_trip_ms / 1000))
        url = database.replace(f":{postgres.port}/", f":{way.port}/")
        cluster = Load([Node(tmp_path, number, url, flags=("--require-sync", "false")) for number in range(2)])
        stack.callback(cluster.kill)
        await cluster.begin()
        for _ in range(ROUNDS):
            node = await cluster.active()
            node.process.kill()
            await node.ended()
            await cluster.goes_on()
            node.start()
        for lost in ("question", "answer"):
            way.cut_at = lost
            await cluster.goes_on()
        assert way.cuts == 2
        await cluster.end()
        await cluster.agrees()
        for node in cluster.nodes:
            assert "Traceback" not in node.log()
