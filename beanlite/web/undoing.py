"""Undoes changes that were made here: remembers what the jobs were, and changes those back that are unchanged since."""

import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from beanlite.console.changes import Result, change_all, count
from beanlite.console.filters import STATES, Record, filter_by
from beanlite.console.live import Live
from beanlite.core.operator import CONCERNS
from beanlite.errors import BeanliteError
from beanlite.protocol.operators.filters import Filter
from beanlite.web.undeleting import JOBS_MAX, PutAgain, jobs_of

# How many changes can be undone; the oldest are forgotten.
UNDOS_MAX: Final = 100
# What brings jobs back to each state, by what was done to them. A client does not get back what was taken from it, and
# nothing delays a buried job.
_WAYS_BACK: Final = {
    "kick": {"buried": "bury", "delayed": "delay"},
    "bury": {"ready": "kick"},
    "delay": {"ready": "kick", "delayed": "delay"},
    "move": dict.fromkeys(STATES, "move"),
    "reprioritise": dict.fromkeys(STATES, "reprioritise"),
}
# The state in which a change leaves jobs, if it changes that.
_AFTER: Final = {"kick": "ready", "bury": "buried", "delay": "delayed"}
# How much shorter than it seems a job may have been in its state: two clocks are compared.
_MARGIN_S: Final = 0.1
# How far the rest of a pause may be from what it should be, if it is the same pause: it is told in whole seconds.
_PAUSE_MARGIN_S: Final = 2.0


class _Before(NamedTuple):
    """What jobs were before a change, as far as it changed that."""

    tube: str
    state: str
    pri: int | None
    due_at: int | None
    """When their delay was to end, in UTC seconds."""


class _Alike(NamedTuple):
    """Jobs of a change that were alike."""

    before: _Before
    changed_at_s: float
    """On the monotonic clock."""
    ids: list[int]


@dataclass(slots=True)
class UndoJobs:
    """A change of jobs that can be undone."""

    what: Record
    """The change, as it was requested but for the filter."""
    most: int
    """How many jobs it was to change."""
    parts: list[_Alike] = field(default_factory=list)

    label: ClassVar = "Undo"
    do: ClassVar = "undo"

    @property
    def ids(self) -> list[int]:
        """The ids of the jobs that were changed."""
        return [job_id for part in self.parts for job_id in part.ids]

    def change(self, live: Live, what: Record, which: Filter, outcome: Result) -> Iterator[Result]:
        """Change jobs as ``slices`` does, and remember what they were; those that can't be brought back are skipped."""
        for jobs in jobs_of(live, which):
            alike: dict[_Before, list[int]] = {}
            for job in jobs:
                alike.setdefault(_before(job, what["do"]), []).append(job["id"])
            for before, ids in alike.items():
                self._change(live, before, ids, outcome)
            yield outcome

    def _change(self, live: Live, before: _Before, ids: list[int], outcome: Result) -> None:
        """Change jobs that are alike, unless they have ceased to be."""
        outcome.changed.clear()
        done = outcome.done + outcome.skipped
        if before.state in _WAYS_BACK[self.what["do"]]:
            pri = {"pri_min": before.pri, "pri_max": before.pri}
            which = filter_by(ids=ids, tube=before.tube, state=before.state, **pri)
            try:
                change_all(live, self.what, which, outcome)
            finally:
                if outcome.changed:
                    self.parts.append(_Alike(before, time.monotonic(), list(outcome.changed)))
        outcome.skipped += done + len(ids) - outcome.done - outcome.skipped

    def undo(self, live: Live, person: Record, outcome: Result) -> Iterator[Result]:
        """Bring the jobs back that are as the change has left them. ``person`` is a part of the requests."""
        for part in self.parts:
            what = {**self._way_back(part.before), **person}
            change_all(live, what, self._still(part), outcome)
            outcome.skipped = 0  # none fits and is skipped but those that have changed, which are counted below
            yield outcome
        outcome.skipped = len(self.ids) - outcome.done
        yield outcome

    def _way_back(self, before: _Before) -> Record:
        do = _WAYS_BACK[self.what["do"]][before.state]
        what: Record = {"do": do}
        if do == "move":
            what["to"] = before.tube
        elif do == "reprioritise":
            what["pri"] = before.pri
        elif do == "delay" and before.due_at is not None:
            what["delay_s"] = max(1, math.ceil(before.due_at - time.time()))
        return what

    def _still(self, part: _Alike) -> Filter:
        """Return the filter of the jobs that nobody has changed since."""
        before, pri = part.before, self.what.get("pri")
        return filter_by(
            ids=part.ids,
            tube=self.what.get("to", before.tube),
            state=_AFTER.get(self.what["do"], before.state),
            in_state_s=max(0.0, time.monotonic() - part.changed_at_s - _MARGIN_S),
            pri_min=pri,
            pri_max=pri,
        )


def _before(job: Record, do: str) -> _Before:
    """Return what a job is; what the change leaves alone is left out, so that more jobs are alike."""
    delayed = job["state"] == "delayed" and do in {"kick", "delay"}
    due_at = round(time.time() + job["left_s"]) if delayed else None
    return _Before(job["tube"], job["state"], job["pri"] if do == "reprioritise" else None, due_at)


@dataclass(frozen=True, slots=True)
class UndoPause:
    """A pause of a tube, or the end of one, that can be undone."""

    tube: str
    before_s: float
    """How much longer it was paused before."""
    pause_s: float
    """For how long it was paused then; 0 if its pause was ended."""
    at_s: float = field(default_factory=time.monotonic)

    label: ClassVar = "Undo"
    most: ClassVar = 0

    def undo(self, live: Live, by: Record) -> bool:
        """Bring the tube back to the pause it had, or to none; returns whether its pause was unchanged until then.

        ``by`` is a part of the request.
        """
        passed_s = time.monotonic() - self.at_s
        if abs(pause_left(live, self.tube) - max(0.0, self.pause_s - passed_s)) > _PAUSE_MARGIN_S:
            return False
        live.pause(self.tube, max(0, round(self.before_s - passed_s)), by)
        return True


def pause_left(live: Live, tube: str) -> float:
    """Return how much longer a tube is paused; 0 if it is not. BeanliteError: there is no such tube."""
    tubes = live.list_tubes({"names": [tube]})["tubes"]
    if not tubes:
        raise live.no_tube(tube)
    return float(tubes[0]["pause_left_s"] or 0)


Undo = UndoJobs | PutAgain | UndoPause
"""A change that can be undone."""


class Undos:
    """The changes that can be undone, by token; each only by the user that made it."""

    def __init__(self) -> None:
        self._all: dict[str, tuple[str, Undo]] = {}

    def keep(self, person: str, undo: Undo, token: str = "") -> str:
        """Keep a change, and return its token; with ``token``, the one that it had before."""
        token = token or secrets.token_urlsafe(16)
        self._all[token] = person, undo
        while len(self._all) > UNDOS_MAX or sum(each.most for _, each in self._all.values()) > JOBS_MAX:
            del self._all[next(iter(self._all))]
        return token

    def label(self, person: str, token: str) -> str:
        """Return what the button says that undoes a change; empty if this person can't."""
        owner, undo = self._all.get(token, ("", None))
        return undo.label if undo is not None and owner == person else ""

    def take(self, person: str, token: str) -> Undo:
        """Return a change, once. BeanliteError: it is not remembered."""
        owner, undo = self._all.get(token, ("", None))
        if undo is None or owner != person:
            raise BeanliteError("this can't be undone any more: it was undone already, or is too long ago")
        del self._all[token]
        return undo


def unrecoverable(live: Live, what: Record, which: Filter, number: int, until_s: float) -> int:
    """Return how many of the ``number`` jobs that a change concerns could not be brought back, as ``count`` does."""
    ways_back = _WAYS_BACK.get(what["do"])
    if ways_back is None or number > JOBS_MAX:
        return number
    states = [state.value for state in CONCERNS[what["do"]]] if which.state is None else [which.state]
    lost = [state for state in states if state not in ways_back]
    return sum(count(live, what, which.model_copy(update={"state": state}), until_s).done for state in lost)
