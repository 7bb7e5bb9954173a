"""Who may give operators' commands, also after a reload."""

import asyncio

import pytest

from beanlite.net.operators import Operators
from beanlite.net.roster import TURN_S
from beanlite.settings import config
from tests.support.simulated import Client, simulated

DEFAULT = config.Settings().operators


@pytest.mark.parametrize(
    ("setting", "peer", "may"),
    [
        (DEFAULT, ("127.0.0.1", 1), True),
        (DEFAULT, ("127.9.9.9", 1), True),
        (DEFAULT, ("::1", 1, 0, 0), True),
        (DEFAULT, ("::ffff:127.0.0.1", 1, 0, 0), True),
        (DEFAULT, "", True),  # a Unix socket
        (DEFAULT, None, False),  # a client that is gone already
        (DEFAULT, ("10.0.0.1", 1), False),
        (DEFAULT, ("::2", 1, 0, 0), False),
        (DEFAULT, ("::ffff:10.0.0.1", 1, 0, 0), False),
        ("none", ("127.0.0.1", 1), False),
        ("none", "", False),
        ("10.0.0.0/8,fe80::/10", ("10.1.2.3", 1), True),
        ("10.0.0.0/8,fe80::/10", ("fe80::1%eth0", 1, 0, 2), True),
        ("10.0.0.0/8,fe80::/10", ("127.0.0.1", 1), False),
        ("10.0.0.0/8,fe80::/10", "", False),
    ],
)
def test_operators_setting_admits_the_addresses_it_names(setting, peer, may):
    assert Operators(setting).include(peer) == may


def test_clients_are_looked_at_again_for_a_short_while_in_each_turn(monkeypatch):
    async def play(server, _journal):
        loop, seen = server.loop, []
        for _ in range(10):
            Client(server)
        gate = server.parts.roster._gate

        def look_again(_connection):
            seen.append(loop.turns)
            loop._simulated.now_s += 0.6 * TURN_S

        async def count():
            while True:
                loop.turns += 1
                await asyncio.sleep(0)

        loop.turns = 0
        counting = asyncio.create_task(count())
        monkeypatch.setattr(gate, "look_again", look_again)
        await server.parts.roster.change(100, 16, Operators("none"), None)
        counting.cancel()
        assert [seen.count(turn) for turn in sorted(set(seen))] == [2] * 5

    assert simulated(play) is None
