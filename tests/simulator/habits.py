"""What clients do, by chance."""

import asyncio

from tests.simulator.clients import DELAYS_S, PRIS, SIZES, TTRS_S, TUBES, Client

WORDS = {
    "put": 30, "reserve": 20, "delete held": 10, "release": 6, "bury": 6, "kick": 3, "kick-job": 3, "delete": 4,
    "reserve-job": 3, "touch": 2, "peek": 2, "stats-job": 1, "stats-tube": 1, "use": 4, "watch": 3, "ignore": 1,
    "pause-tube": 1, "operator": 5,
}  # fmt: skip
PAUSES_S = (0.0, 0.0, 0.0001, 0.001, 0.02, 0.3, 2.0)
OPERATOR = ("kick", "bury", "delete", "delay", "release", "move", "reprioritise")


def command(client: Client, word: str) -> bytes:
    """A command of this kind, or a put if there is no job for it."""
    chance, ledger = client.chance, client._ledger
    known = list(ledger.jobs)
    held = list(client.held)
    pri = chance.choice(PRIS)
    if word in {"delete held", "release", "bury", "touch"} and held:
        job_id = chance.choice(held)
        if word == "delete held":
            return client.delete(job_id)
        if word == "release":
            return client.release(job_id, pri, chance.choice(DELAYS_S))
        if word == "bury":
            return client.bury(job_id, pri)
        return client.plain("touch", b"%d" % job_id, job=job_id)
    if word in {"delete", "kick-job", "reserve-job", "peek", "stats-job", "operator"} and known:
        job_id = chance.choice(known[-30:])
        if word == "delete":
            return client.delete(job_id)
        if word == "kick-job":
            return client.kick_job(job_id)
        if word == "operator":
            return operate(client, job_id, chance.choice(OPERATOR), pri)
        return client.plain(word, b"%d" % job_id)
    if word == "reserve":
        return client.reserve(chance.choice((0, 0, 1)))
    if word == "kick":
        return client.kick(chance.choice((1, 2, 100)))
    tube = chance.choice(TUBES)
    if word == "use":
        return client.use_tube(tube)
    if word in {"watch", "ignore", "stats-tube"}:
        return client.plain(word, tube)
    if word == "pause-tube":
        return client.plain(word, tube + b" %d" % chance.choice((0, 1, 5)))
    return client.put(pri, chance.choice(DELAYS_S), chance.choice(TTRS_S), chance.choice(SIZES))


def operate(client: Client, job_id: int, do: str, pri: int) -> bytes:
    chance = client.chance
    more: dict = {}
    if do == "delay":
        more["delay_s"] = chance.choice((1, 60))
    elif do == "move":
        more["to"] = chance.choice(TUBES).decode()
    elif do == "reprioritise":
        more["pri"] = pri
    return client.change(job_id, do, **more)


async def live(client: Client, connect, turns: int) -> None:
    """Connect, and do something so many times."""
    chance = client.chance
    words, weights = list(WORDS), list(WORDS.values())
    client.connect(connect())
    pipelines = chance.random() < 0.4
    for _ in range(turns):
        await asyncio.sleep(chance.choice(PAUSES_S))
        wire = client.wire
        assert wire is not None
        if wire.closed:
            client.connect(connect())
            continue
        what = chance.random()
        if what < 0.02:
            wire.vanish()
            continue
        if what < 0.03:
            client._ledger.leaves(client)  # the server lets go of what it had as soon as it is done
            wire.end()
            await asyncio.sleep(1)
            wire.vanish()
            continue
        if what < 0.06:
            wire.stalled = not wire.stalled
            if not wire.stalled:
                wire.read_on()
        number = chance.randint(2, 12) if pipelines else 1
        client.send(*[command(client, word) for word in chance.choices(words, weights, k=number)])
        if chance.random() < 0.9:
            await client.all_answered(3)
    if client.wire is not None and client.wire.stalled:
        client.wire.read_on()
