"""Operators set and unset policies, at random."""

import asyncio

from tests.simulator.clients import Client
from tests.simulator.habits import PAUSES_S, Mix
from tests.simulator.ledger import must
from tests.simulator.referee import Referee
from tests.simulator.rules import MEANING, PATTERNS, SCHEDULED, WHEN

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
    if referee.schedules and chance.random() < 0.4:
        return _schedule(client, referee)
    if what < 0.1:
        return client.operate("list-policies", {}, lambda reply: _note_list(referee, reply))
    pattern = chance.choice(PATTERNS)
    if what < 0.2:
        return _change(client, referee, {each: None for each in referee.known.all() if each[0] == pattern})
    if what < 0.25:  # only these remain
        return _change(client, referee, dict.fromkeys(referee.known.all()) | _values(referee, pattern), prune=True)
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
    return client.operate("set-policy", request, lambda reply: referee.known.answered(number, reply))


def _schedule(client: Client, referee: Referee) -> bytes:
    """Return a command about a schedule."""
    chance, known = referee.chance, referee.known_schedules
    name, what = chance.choice(list(SCHEDULED)), chance.random()
    if what < 0.2:
        return client.operate("run-schedule", {"name": name}, lambda _reply: None)
    if what < 0.4:
        return _unset_schedule(client, referee, name)
    body = SCHEDULED[name]
    schedule = {
        "name": name, "when": chance.choice(WHEN), "tube": chance.choice(client.tubes).decode(), "body": body.decode(),
        "ttr_s": int(body.split(b".")[2]), "if_absent": chance.random() < 0.7,
        "missed": chance.choice(("skip", "once")),
    }  # fmt: skip
    number = known.asks({name: f"{schedule['when']} {schedule['tube']}"})
    return client.operate("set-schedule", schedule, lambda reply: known.answered(number, reply))


def _unset_schedule(client: Client, referee: Referee, name: str) -> bytes:
    number = referee.known_schedules.asks({name: None})
    return client.operate("unset-schedule", {"name": name}, lambda _reply: referee.known_schedules.done(number))


def _note_list(referee: Referee, reply: dict) -> None:
    rows = {(row["pattern"].encode(), row["key"]): row["value"] for row in reply["policies"]}
    fault = referee.known.fault(rows)
    must(fault is None, f"list-policies: {fault}")


async def unset_all(client: Client, referee: Referee) -> None:
    """Unset all policies and schedules."""
    client.send(*[_unset_schedule(client, referee, name) for name in referee.known_schedules.all()])
    client.send(_change(client, referee, dict.fromkeys(referee.known.all()), prune=True))
    await client.all_answered(60)
    must(not client.waits, "set-policy or unset-schedule was never answered")
