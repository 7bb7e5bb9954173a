"""The replies to operators: JSON objects."""

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from beanlite.core.engine import Engine
from beanlite.core.events import NOTE, POLICY, SCHEDULE, Event
from beanlite.core.job import DELAYED, RESERVED, SECOND_NS, Job
from beanlite.core.snapshot import ClientSnapshot, first_s, tube_snapshot
from beanlite.core.tube import Client, Peer, Tube, claim_in, without_claim
from beanlite.journal.columns import SHOWN
from beanlite.protocol.replies import EVENT, REFUSED

Record = dict[str, object]

# Why a client seems to be stuck: it has touched a job for longer than its ttr; or holds some, and has been silent for
# so long.
TOUCHES: Final = "touches"
SILENT: Final = "silent"
SILENT_S: Final = 600

# What was set of a schedule is told whole to clients that watch if it has no more bytes.
SETTING_MAX: Final = 1000

# Of a longer reason the beginning and the end are told, so many characters of each: it may repeat what the client sent.
REASON_PART: Final = 400

# How the address of a Peer begins that is the policy which did something, and no client.
_POLICY: Final = "policy "

_facts_of: Final[Callable[[Job], tuple[object, ...]]] = attrgetter(*SHOWN.values())


def as_json(record: Record) -> bytes:
    """Encode an object as the body of a reply."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()


def refusal(why: str) -> bytes:
    """Return the reply to a request that can't be carried out."""
    if len(why) > 2 * REASON_PART:
        why = f"{why[:REASON_PART]}…{why[-REASON_PART:]}"
    body = as_json({"error": why})
    return REFUSED % (len(body), body)


def cursor(place: int | None, bound: int) -> str | None:
    """Make a cursor of the place to continue after and the ``bound`` of all slices; None if there is no more."""
    return None if place is None else f"{place}-{bound}"


def job_record(job: Job, now_ns: int, utc_s: Callable[[int], float]) -> Record:
    """Describe a job without its body. ``utc_s`` converts a time of the clock to UTC."""
    state = job.shown_state
    timed = state is DELAYED or state is RESERVED
    return {
        "id": job.id,
        "tube": job.tube.name.decode(),
        "state": state.value,
        "pri": job.pri,
        "size": job.size,
        "created_at": round(utc_s(job.created_ns), 6),
        "age_s": (now_ns - job.created_ns) // SECOND_NS,
        "in_state_s": (now_ns - job.since_ns) // SECOND_NS,
        "delay_s": job.delay_s,
        "ttr_s": job.ttr_s,
        "left_s": max(0, job.due_ns - now_ns) // SECOND_NS if timed else None,
        **dict(zip(SHOWN, _facts_of(job), strict=True)),
        "tries": job.tries,
        "holder": peer_record(job.last_holder),
        "why": job.why,
    }


def peer_record(peer: Peer | None) -> Record | None:
    """Describe the identity of a client."""
    if peer is None:
        return None
    return {"address": without_claim(peer.address), "number": peer.number, "name": claim_in(peer.address)}


def tube_record(engine: Engine, tube: Tube, asker: Client, now_ns: int) -> Record:
    """Describe a tube. The client that asks does not count among those that use and watch it."""
    facts = tube_snapshot(tube, now_ns)
    flow, lost = engine.ledger.flows.find(tube.name), engine.ledger.flows.lost
    put = deleted = None if lost else 0.0
    if flow is not None:
        put, _, deleted = flow.rates(now_ns)
    return {
        **facts._asdict(),
        "using": facts.using - (asker.use is tube),
        "watching": facts.watching - (tube in asker.watched),
        "first_ready_s": first_s(engine, tube.ready, now_ns),
        "first_buried_s": first_s(engine, tube.buried, now_ns),
        "puts_per_s": None if put is None else round(put, 3),
        "deletes_per_s": None if deleted is None else round(deleted, 3),
        "policy": None if tube.rules is None else tube.rules.values,
    }


def client_record(
    client: ClientSnapshot, buffer_bytes: int, contact: tuple[int, int, str | None] | None, now_ns: int, *, asks: bool
) -> Record:
    """Describe a client. ``contact``: as of ``Service.contact_of``; ``asks``: it is the one that asks."""
    connected_s = silent_s = last = None
    if contact is not None:
        since_ns, heard_ns, last = contact
        connected_s, silent_s = [max(0, now_ns - at_ns) // SECOND_NS for at_ns in (since_ns, heard_ns)]
    record: Record = client._asdict()
    stuck = None
    if record.pop("overdue"):
        stuck = TOUCHES
    elif client.holds and client.waits_s is None and silent_s is not None and silent_s >= SILENT_S:
        stuck = SILENT
    times: Record = {"connected_s": connected_s, "silent_s": silent_s, "last": last, "stuck": stuck}
    return {**record, **times, "buffered": buffer_bytes, "asks": asks}


def event_reply(event: Event, utc_s: Callable[[int], float]) -> bytes:
    """Return the reply that reports an event to clients that watch; ``utc_s`` as above."""
    peer, by, policy = event.by, peer_record(event.by), ""
    if peer is not None and by is not None:
        if peer.address.startswith(_POLICY):
            by, policy = None, peer.address.removeprefix(_POLICY)
        else:
            by |= {"operator": event.by_operator, "person": peer.person or None}
    record: Record = {
        "at": round(utc_s(event.at_ns), 6),
        "id": event.job_id,
        "tube": event.tube.name.decode(),
        "what": event.what,
        "by": by,
        "pri": event.pri,
        "delay_s": event.delay_s,
        "size": event.size,
    }
    if policy:
        record["policy"] = policy
    if event.what in {POLICY, SCHEDULE}:
        record["change"] = (event.body or b"").decode()
    if event.what == NOTE:
        record["note"] = (event.body or b"").decode()
    body = as_json(record)
    return EVENT % (len(body), body)


def without_long_body(setting: bytes) -> bytes:
    """Return what was set of a schedule; without the body of its jobs, unless that is short."""
    if len(setting) <= SETTING_MAX:
        return setting
    return as_json({key: value for key, value in json.loads(setting).items() if key not in {"body", "base64"}})


def lost_reply(events: int) -> bytes:
    """Return the reply that reports to a client that watches how many events it has missed."""
    body = as_json({"lost": events})
    return EVENT % (len(body), body)
