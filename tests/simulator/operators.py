"""Operators set and unset policies, at random."""

import asyncio

from tests.simulator.clients import Client
from tests.simulator.habits import PAUSES_S, Mix
from tests.simulator.ledger import must
from tests.simulator.referee import Referee
from tests.simulator.rules import MEANING, PATTERNS

# What clients do more often where tries count.
IN_VAIN = {"put": 20, "reserve": 40, "release": 15, "reserve-job": 6}


def mix_with_policies(referee: Referee, mixed: Mix) -> Mix:
    """Return what clients do in a run with policies: often, they have more jobs come back."""
    return mixed._replace(words=mixed.words | IN_VAIN) if referee.chance.random() < 0.6 else mixed


async def set_policies(client: Client, connect, referee: Referee) -> None:
    """Connect, and set, unset and list policies some times."""
    chance = referee.chance
    client.connect(connect())
    for turn in range(chance.randint(1, 12)):
        if turn:
            await asyncio.sleep(chance.choice(PAUSES_S))
        wire = client.wire
        assert wire is not None
        if wire.closed:
            client.connect(connect())
        elif chance.random() < 0.05:
            wire.vanish()
        else:
            client.send(*[change(client, referee) for _ in range(chance.choice((1, 1, 1, 3)))])
            if chance.random() < 0.8:
                await client.all_answered(3)


def change(client: Client, referee: Referee) -> bytes:
    """Return a command about policies."""
    chance = referee.chance
    what = chance.random()
    if what < 0.1:
        return client.operate("list-policies", {}, lambda reply: _note_list(referee, reply))
    pattern = chance.choice(PATTERNS)
    if what < 0.2:
        return _change(
            client, referee, {each: None for each in referee.known.patterns_and_keys() if each[0] == pattern}
        )
    if what < 0.25:  # only these remain
        return _change(
            client, referee, dict.fromkeys(referee.known.patterns_and_keys()) | _values(referee, pattern), prune=True
        )
    return _change(client, referee, _values(referee, pattern))


def _values(referee: Referee, pattern: bytes) -> dict[tuple[bytes, str], str | None]:
    """Return values of some keys for a pattern."""
    chance = referee.chance
    values: dict[tuple[bytes, str], str | None] = {}
    for key in chance.sample(referee.keys, chance.randint(1, len(referee.keys))):
        texts = [referee.unique] if key == "unique" else list(MEANING[key])
        values[pattern, key] = chance.choice((None, "off", *texts, *texts, *texts))
    return values


def _change(
    client: Client, referee: Referee, values: dict[tuple[bytes, str], str | None], *, prune: bool = False
) -> bytes:
    number = referee.known.asks(values)
    policies: dict[bytes, dict] = {}
    for (pattern, key), value in values.items():
        policy = policies.setdefault(pattern, {"pattern": pattern.decode(), "set": {}, "unset": []})
        if value is not None:
            policy["set"][key] = value
        elif not prune:
            policy["unset"].append(key)
    request = {"policies": list(policies.values()), "prune": prune}
    return client.operate("set-policy", request, lambda _reply: referee.known.done(number))


def _note_list(referee: Referee, reply: dict) -> None:
    rows = {(row["pattern"].encode(), row["key"]): row["value"] for row in reply["policies"]}
    fault = referee.known.fault(rows)
    must(fault is None, f"list-policies: {fault}")


async def unset_all(client: Client, referee: Referee) -> None:
    """Unset all policies."""
    client.send(_change(client, referee, dict.fromkeys(referee.known.patterns_and_keys()), prune=True))
    await client.all_answered(60)
    must(not client.waits, "set-policy was never answered")
