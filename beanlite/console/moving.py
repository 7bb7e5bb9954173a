"""Moves the jobs of a tube from one server to another, so that a move that was cut off can be taken up again.

Meanwhile the jobs wait in tubes that nobody watches: in ``mail(leaving)`` on the old server, their copies in
``mail(coming)`` on the new one. Each copy has a note that names its original. When all have a copy the originals are
deleted, and only then are the copies moved into the tube itself. So it can be told at any moment what is to be done: a
copy without such a note is of a job that is still there, and is made again; a copy without an original is the job.
This holds for one move at a time: each uses both tubes as long as it is connected, and one that sees another stops.
"""

import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from beanlite.console.changes import Result, change_all
from beanlite.console.filters import STATES, Record, filter_by
from beanlite.console.listing import everything
from beanlite.console.live import Live, by_me, login_name
from beanlite.console.putting import NewJob, batches, put_batch
from beanlite.core.notes import NOTE_MAX
from beanlite.core.policies import OFF
from beanlite.core.tube import is_tube_name
from beanlite.errors import BeanliteError, ConfigError

# For so long, and so often, jobs are looked for that have come to the old server since: routers read the changed file
# within a second, and whoever has an older copy of it may go on for good.
FOLLOW_S: Final = 5.0
LOOK_S: Final = 0.2
_STATES: Final = ("ready", "delayed", "buried")
# The keys of policies by which jobs are lost or kept out where they wait meanwhile. Jobs that are moved into a tube are
# not refused, so on the old server only their age counts; all other keys concern jobs that clients reserve.
_HARM_LEAVING: Final = frozenset({"ttl"})
_HARM_COMING: Final = frozenset({"ttl", "unique", "max_jobs"})
_NOTE: Final = re.compile(r"moved from (?P<server>[^:]+):(?P<id>[0-9]+)(?P<buried>, buried)?")


@dataclass(slots=True)
class MoveResult:
    """What has become of the jobs of a tube."""

    copied: int = 0
    """Jobs that are on the new server now."""
    reserved: int = 0
    """Jobs that clients have reserved on the old server."""
    left: int = 0
    """Others that have come to the old server since."""


def leaving(tube: str) -> str:
    """Return the tube in which jobs of another one wait on the server that they leave."""
    return f"{tube}(leaving)"


def coming(tube: str) -> str:
    """Return the tube in which their copies wait on the new server."""
    return f"{tube}(coming)"


def check_name(tube: str) -> None:
    """Check that there can be such tubes. ConfigError: the name is too long."""
    if not is_tube_name(leaving(tube).encode(errors="surrogateescape")):
        raise ConfigError(f"{tube} can't be moved: no tube can be named {leaving(tube)}")


def check_policies(old: Live, new: Live, tube: str) -> None:
    """Check that no policy, such as one of ``*``, takes the jobs of a tube on their way. BeanliteError: one does."""
    found = [
        (server, place, keys)
        for server, place, harm in ((old, leaving(tube), _HARM_LEAVING), (new, coming(tube), _HARM_COMING))
        if (keys := _keys_set(server, place) & harm)
    ]
    if found:
        where = " and ".join(f"{place} on {server.name} ({', '.join(sorted(keys))})" for server, place, keys in found)
        way_out = " && ".join(_exempting(place, keys) for _, place, keys in found)
        raise BeanliteError(
            f"{tube} can't be moved while policies hold for {where}; run this first, on both servers: {way_out}"
        )


def _keys_set(server: Live, tube: str) -> set[str]:
    """Return the keys of policies that have a value for a tube."""
    return {row["key"] for row in server.list_policies({"tube": tube})["policies"] if row["value"] != OFF}


def _exempting(tube: str, keys: Iterable[str]) -> str:
    """Return the command that exempts a tube from keys of policies."""
    return " ".join(["beanlite policy set", shlex.quote(tube), *(f"{key}={OFF}" for key in sorted(keys))])


def check_takes(old: Live, new: Live, tube: str) -> None:
    """Check that the new server takes jobs, and none of a tube is too large for it. BeanliteError."""
    stats = new.stats()
    if stats["draining"] == "true":
        raise BeanliteError(f"{tube} can't be moved: {new.name} is draining, and takes no job until it is restarted")
    limit = stats["max-job-size"]
    largest = max((job["size"] for job in everything(old.list_jobs, {"tube": tube}, "jobs")), default=0)
    if largest > limit:
        raise BeanliteError(
            f"{tube} can't be moved: it has a job of {largest} bytes, and the max_job_size of {new.name} is {limit}"
        )


def is_cut_off(old: Live, new: Live, tube: str) -> bool:
    """Whether a move of a tube has begun and not ended. BeanliteError."""
    return has_jobs(old, leaving(tube)) or has_jobs(new, coming(tube))


def has_jobs(server: Live, tube: str) -> bool:
    """Whether a server has jobs of a tube. BeanliteError."""
    return any(each[state] for each in server.list_tubes({"names": [tube]})["tubes"] for state in STATES)


def claim(old: Live, new: Live, tube: str) -> None:
    """Keep other moves of a tube away for as long as we are connected. BeanliteError: there is one.

    So the commands of a move that was killed are over as well, of which a server may still have received some.
    """
    for server, own in ((old, leaving(tube)), (new, coming(tube))):
        server.use(own)
        if any(each["using"] for each in server.list_tubes({"names": [own]})["tubes"]):
            raise BeanliteError(f"another move of {tube} is under way: a client uses {own} on {server.name}")


def pause_likewise(old: Live, new: Live, tube: str) -> None:
    """Pause a tube on the new server for as long as on the old one, unless it is for longer. BeanliteError.

    This has to be another connection to the new server than that of ``claim``.
    """
    left_s, own_s = (
        max((each["pause_left_s"] for each in server.list_tubes({"names": [tube]})["tubes"]), default=0)
        for server in (old, new)
    )
    if left_s > own_s:
        new.use(tube)  # only a tube that exists can be paused
        new.pause(tube, left_s, by_me())


def move_jobs(old: Live, new: Live, server: str, tube: str, progress: Callable[[int], None] | None) -> MoveResult:
    """Move all jobs of a tube that are not reserved; the old server has the name ``server``. BeanliteError.

    The move is whole or not at all: if it fails, or is killed, the next one begins with what is left of it.
    """
    moved = MoveResult()
    follow_until_s = time.monotonic() + FOLLOW_S
    is_last = False
    while not is_last:
        is_last = time.monotonic() >= follow_until_s
        for state in _STATES:
            change_all(old, {"do": "move", "to": leaving(tube), **by_me()}, filter_by(tube=tube, state=state))
        copies = _copies(new, tube, server)
        originals = list(everything(old.list_jobs, {"tube": leaving(tube)}, "jobs"))
        if not originals and not copies:
            if not is_last:
                time.sleep(LOOK_S)
            continue
        missing = [job for job in originals if job["id"] not in copies]
        ids = {job["id"] for job in originals}
        try:
            for copied in _copy(old, new, server, tube, missing, set(copies.values())):
                if progress is not None:
                    progress(moved.copied + copied)
        except BeanliteError as error:
            raise BeanliteError(f"{_give_back(old, new, server, tube, ids)}: {error}") from error
        _delete_originals(old, new, server, tube, ids)
        moved.copied += _open(new, tube)
    for each in old.list_tubes({"names": [tube]})["tubes"]:
        moved.reserved = each["reserved"]
        moved.left = sum(each[state] for state in _STATES)
    return moved


def _copies(new: Live, tube: str, server: str) -> dict[int, int]:
    """Return the copy of each job that has one, by their ids; a copy without a note is deleted.

    BeanliteError: there are copies from another server as well, whose move was cut off.
    """
    copies: dict[int, int] = {}
    unmarked: list[int] = []
    for job in everything(new.list_jobs, {"tube": coming(tube), "notes": True}, "jobs"):
        note = _NOTE.match(job.get("note") or "")
        if note is None:
            unmarked.append(job["id"])
        elif note["server"] != server:
            raise BeanliteError(f"{coming(tube)} of {new.name} has jobs of {note['server']}: end their move first")
        else:
            copies[int(note["id"])] = job["id"]
    _delete(new, unmarked)
    return copies


def _copy(old: Live, new: Live, server: str, tube: str, originals: list[Record], copy_ids: set[int]) -> Iterator[int]:
    """Copy jobs to the new server, where there are copies already; yield how many were added."""
    done = 0
    for batch in batches(_new_jobs(old, tube, originals)):
        ids = put_batch(new, batch, login_name())
        known = len(copy_ids)
        copy_ids.update(ids)
        if len(copy_ids) < known + len(ids):  # the copy of another job was taken for that of this one
            raise BeanliteError(
                f"a policy of {new.name} keeps jobs with the same body out of {coming(tube)}; run this first:"
                f" {_exempting(coming(tube), ['unique'])}"
            )
        for job, copy_id in zip(originals[done:], ids, strict=False):
            _mark(new, copy_id, server, job)
        done += len(ids)
        yield done


def _new_jobs(old: Live, tube: str, originals: Iterable[Record]) -> Iterator[NewJob]:
    for each in originals:
        job = old.show_job(each["id"])
        if job is None:
            raise BeanliteError(f"job {each['id']} of {old.name} has gone from {leaving(tube)} meanwhile")
        each["text"] = job["note"] or ""
        delay_s = job["left_s"] if job["state"] == "delayed" else 0
        yield NewJob(job["body"], coming(tube), job["pri"], delay_s, job["ttr_s"])


def _mark(new: Live, copy_id: int, server: str, job: Record) -> None:
    """Note on a copy which job it is of, above the note that this job has. BeanliteError: the copy is gone."""
    state = ", buried" if job["state"] == "buried" else ""
    note = f"moved from {server}:{job['id']}{state}\n{job['text']}".strip()
    note = note.encode()[:NOTE_MAX].decode(errors="ignore")
    if copy_id not in change_all(new, {"do": "note", "note": note, **by_me()}, filter_by(ids=[copy_id])).changed:
        raise BeanliteError(f"job {copy_id} of {new.name}, the copy of {server}:{job['id']}, is gone meanwhile")


def _give_back(old: Live, new: Live, server: str, tube: str, ids: set[int]) -> str:
    """Let workers have jobs again that can't all be copied, and of which none is deleted; return where they are."""
    try:
        # What the old server does not have any more is left to its copies.
        there = ids & {job["id"] for job in everything(old.list_jobs, {"tube": leaving(tube)}, "jobs")}
        copies = _copies(new, tube, server)
        _delete(new, [copies[job_id] for job_id in there & copies.keys()])
        _open(new, tube)  # copies without an original, of a move that was cut off
        change_all(old, {"do": "move", "to": tube, **by_me()}, filter_by(tube=leaving(tube)))
    except BeanliteError:
        return f"the jobs wait in {leaving(tube)} of {old.name}, or as copies, until this command is run again"
    return f"the jobs are in {tube} of {old.name} again"


def _delete_originals(old: Live, new: Live, server: str, tube: str, ids: set[int]) -> None:
    """Delete jobs, and the copies of those that clients have deleted meanwhile. BeanliteError: as ``_delete``."""
    if not ids:
        return
    outcome = change_all(old, {"do": "delete", **by_me()}, filter_by(ids=sorted(ids)))
    gone = ids - outcome.changed - outcome.unchanged_ids
    if gone:
        copies = _copies(new, tube, server)
        _delete(new, [copies[job_id] for job_id in gone & copies.keys()])
    _check_none_is_left(old, outcome)


def _delete(server: Live, ids: list[int]) -> None:
    """Delete jobs. BeanliteError: a client has reserved one, by its id."""
    if ids:
        _check_none_is_left(server, change_all(server, {"do": "delete", **by_me()}, filter_by(ids=ids)))


def _check_none_is_left(server: Live, outcome: Result) -> None:
    if outcome.unchanged_ids:
        raise BeanliteError(
            f"job {min(outcome.unchanged_ids)} of {server.name} can't be deleted: a client has it reserved"
        )


def _open(new: Live, tube: str) -> int:
    """Move the copies into their tube, buried as their originals were; returns how many there are."""
    copies = list(everything(new.list_jobs, {"tube": coming(tube), "notes": True}, "jobs"))
    buried = [job["id"] for job in copies if job["state"] != "buried" and _is_of_buried(job)]
    if buried:
        change_all(new, {"do": "bury", **by_me()}, filter_by(ids=buried))
    return change_all(new, {"do": "move", "to": tube, **by_me()}, filter_by(tube=coming(tube))).done if copies else 0


def _is_of_buried(job: Record) -> bool:
    note = _NOTE.match(job.get("note") or "")
    return note is not None and note["buried"] is not None
