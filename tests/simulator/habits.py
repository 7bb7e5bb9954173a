"""What clients do, at random."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.simulator.clients import DELAYS_S, LARGE_SIZES, PRIS, SIZES, TTRS_S, Client
from tests.simulator.notes import TEXTS

# How often clients give each command, unless the mix of a seed is another one.
WORDS = {
    "put": 30, "reserve": 20, "delete held": 10, "release": 6, "bury": 6, "kick": 3, "kick-job": 3, "delete": 4,
    "reserve-job": 3, "touch": 2, "note": 4, "peek": 2, "stats-job": 1, "stats-tube": 1, "use": 4, "watch": 3,
    "ignore": 1, "pause-tube": 1, "operator": 5, "put-jobs": 3, "reserve-batch": 6, "watch-events": 2,
    "offer": 6, "take": 6, "decline": 2, "name": 1,
}  # fmt: skip
PAUSES_S = (0.0, 0.0, 0.0001, 0.001, 0.02, 0.3, 2.0)
OPERATOR = ("kick", "bury", "delete", "delay", "release", "move", "reprioritise", "note")


class Mix(NamedTuple):
    """What the clients of one life of a server are like."""

    words: dict[str, int]
    """How often each command is given."""
    sizes: tuple[int, ...]
    latest: int
    """Only so many of the latest jobs are acted on."""


def mix(chance: random.Random) -> Mix:
    """Return a mix of commands and sizes.

    Half of the mixes leave some commands out, give others far more often, or act on a few large jobs all the time:
    what goes wrong only when two rare commands meet is found sooner that way.
    """
    if chance.random() < 0.5:
        return Mix(WORDS, SIZES, 30)
    words = {word: weight * chance.choice((0, 0, 1, 1, 5, 20)) for word, weight in WORDS.items()}
    return Mix(words | {"put": 30}, chance.choice((SIZES, LARGE_SIZES)), chance.choice((1, 2, 5, 30)))


def command(client: Client, word: str) -> bytes:
    """Return a command of this kind, or a put if there is no job for it."""
    chance = client.chance
    for words, ids in ((ON_HELD, client.held), (ON_OFFERED, client.offered)):
        if word in words and ids:
            return words[word](client, chance.choice(list(ids)))
    if word in ON_ANY and client.known():
        return ON_ANY[word](client, chance.choice(client.known()))
    if word in WITH_ID and client.known():
        return client.plain(word, b"%d" % chance.choice(client.known()))
    if word in WITH_TUBE:
        return client.plain(word, chance.choice(client.tubes))
    if word in OTHERS:
        return OTHERS[word](client, chance.choice(client.tubes))
    return put(client)


def put(client: Client) -> bytes:
    chance = client.chance
    if client.again and chance.random() < client.again:
        return client.put_again(chance.choice(PRIS), chance.choice(DELAYS_S))
    return client.put(*a_job(client))


def a_job(client: Client) -> tuple[int, int, int, int]:
    """Return pri, delay_s, ttr_s and size of a random job."""
    chance = client.chance
    return chance.choice(PRIS), chance.choice(DELAYS_S), chance.choice(TTRS_S), chance.choice(client.sizes)


def operate(client: Client, job_id: int) -> bytes:
    chance = client.chance
    do = chance.choice(OPERATOR)
    more: dict = {}
    if do == "delay":
        more["delay_s"] = chance.choice((1, 60))
    elif do == "move":
        more["to"] = chance.choice(client.tubes).decode()
    elif do == "reprioritise":
        more["pri"] = chance.choice(PRIS)
    elif do == "note":
        more["note"] = chance.choice(TEXTS).decode()
    return client.change(job_id, do, **more)


def release(client: Client, job_id: int) -> bytes:
    return client.release(job_id, client.chance.choice(PRIS), client.chance.choice(DELAYS_S))


# Commands that do not affect the ledger: with an id, and with a tube.
WITH_ID = ("peek", "stats-job")
WITH_TUBE = ("watch", "ignore", "stats-tube")
Say = Callable[[Client, Any], bytes]
# Commands for a job that the client holds, for one that it is offered, for any job, and with a tube or nothing.
ON_HELD: dict[str, Say] = {
    "delete held": Client.delete,
    "release": release,
    "bury": lambda client, job_id: client.bury(job_id, client.chance.choice(PRIS)),
    "touch": lambda client, job_id: client.plain("touch", b"%d" % job_id, job=job_id),
    "note": lambda client, job_id: client.note(job_id, client.chance.choice(TEXTS)),
}
ON_OFFERED: dict[str, Say] = {
    "take": lambda client, job_id: client.answer_offer("take", job_id),
    "decline": lambda client, job_id: client.answer_offer("decline", job_id),
}
ON_ANY: dict[str, Say] = {
    "delete": Client.delete,
    "kick-job": Client.kick_job,
    "reserve-job": Client.reserve_job,
    "operator": operate,
}
OTHERS: dict[str, Say] = {
    "reserve": lambda client, _tube: client.reserve(client.chance.choice((0, 0, 1))),
    "reserve-batch": lambda client, _tube: client.reserve_several(
        *client.chance.choice(((1, 0), (3, 0), (20, 0), (3, 1)))
    ),
    "offer": lambda client, _tube: client.offer(client.chance.choice((0, 0, 1))),
    "kick": lambda client, _tube: client.kick(client.chance.choice((1, 2, 100))),
    "use": Client.use_tube,
    "put-jobs": lambda client, _tube: client.put_several([a_job(client) for _ in range(client.chance.randint(1, 8))]),
    "watch-events": lambda client, tube: client.watch_events(client.chance.choice((None, None, tube))),
    "name": lambda client, _tube: client.plain("name", b"worker/%d" % client.chance.randrange(9)),
    "pause-tube": lambda client, tube: client.plain("pause-tube", tube + b" %d" % client.chance.choice((0, 1, 5))),
}


async def live(client: Client, connect, turns: int, mixed: Mix) -> None:
    """Connect, and act the given number of times."""
    chance = client.chance
    words, weights = list(mixed.words), list(mixed.words.values())
    client.sizes, client.latest = mixed.sizes, mixed.latest
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
            client.check_held()
    if client.wire is not None and client.wire.stalled:
        client.wire.read_on()
