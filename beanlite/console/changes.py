"""Changes many jobs, in slices so that clients are not held up."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from beanlite.console.filters import Record, after
from beanlite.console.live import Live, explanation, telling_doubt
from beanlite.errors import BeanliteError
from beanlite.host import signals
from beanlite.protocol.operators.filters import IDS_MAX, Filter

# The word in messages for the jobs that a command has changed.
DONE_WORDS: Final = {
    "kick": "kicked",
    "bury": "buried",
    "delete": "deleted",
    "release": "released",
    "move": "moved",
    "copy": "copied",
    "reprioritise": "reprioritised",
    "delay": "delayed",
    "note": "noted",
}
# How many ids of jobs that were selected by something else and skipped are kept, to be told.
_UNCHANGED_MAX: Final = 100


@dataclass(slots=True)
class Result:
    """The progress of a change."""

    done: int = 0
    """Jobs that were changed, or would be in a dry run."""
    skipped: int = 0
    """Jobs that are left unchanged, because they are in the wrong state for the change."""
    changed: set[int] = field(default_factory=set, repr=False)
    """The ids of the jobs that were changed, if the jobs were given by their ids."""
    unchanged_ids: set[int] = field(default_factory=set, repr=False)
    """The ids of the jobs that are left unchanged; of very many, the first ones, unless they were given."""
    interrupted: bool = False
    """Whether the change was interrupted before it was complete."""
    ended: bool = False
    """Whether the change is complete."""
    last_id: int | None = field(default=None, repr=False)
    """The last id that had been given out when the change began: jobs with higher ids are not examined."""


class Interrupt:
    """Whether Ctrl-C or SIGTERM has asked us to end."""

    came = False

    def __call__(self, *_: object) -> None:
        """Note the first signal; a second one raises KeyboardInterrupt."""
        if self.came:
            raise KeyboardInterrupt
        self.came = True

    def noted(self) -> AbstractContextManager[None]:
        """Handle the signals in this block."""
        return signals.handling(self, *signals.STOPS)


def change(server: Live, what: Record, which: Filter, progress: Callable[[Result], None] = lambda _: None) -> Result:
    """Change all jobs that the filter selects; `what` is a request without its filter. BeanliteError: that fails.

    A tube that does not exist is an error, too. Each slice is durable before the next one is requested. Ctrl-C stops
    between two slices.
    """
    outcome = Result()
    interrupt = Interrupt()
    with interrupt.noted():
        for _ in slices(server, what, which, outcome):
            progress(outcome)
            if interrupt.came and not outcome.ended:
                outcome.interrupted = True
                break
    if which.tube is not None and not outcome.done + outcome.skipped:
        server.check_tube(which.tube)
    return outcome


def trial(server: Live, what: Record, which: Filter) -> Result:
    """Return what a change would do, as of now. BeanliteError, as ``change``. KeyboardInterrupt: it was interrupted."""
    outcome = change(server, {**what, "dry_run": True}, which)
    if outcome.interrupted:  # so it is not known
        raise KeyboardInterrupt
    return outcome


def slices(server: Live, what: Record, which: Filter, outcome: Result) -> Iterator[Result]:
    """Change jobs as ``change`` does, but yield the progress after each slice; Ctrl-C is not handled. BeanliteError.

    Ages are as of the beginning: what grows old enough, or comes to its state, while the change runs is left alone.
    """
    began_s = time.monotonic()
    if not what.get("dry_run"):
        server.check()  # this may take a round trip, so it comes before the ages are computed
    parts, place = parts_of(which), Record()
    while parts:
        request = {**what, **after(parts[0], time.monotonic() - began_s).criteria(), **place}
        try:
            reply = _asked(server, what, request, outcome)
        except BeanliteError as error:
            if not outcome.done:
                raise
            raise BeanliteError(f"{error}{_so_far(what, outcome)}") from error
        outcome.done += reply["done"]
        outcome.skipped += reply["skipped"]
        outcome.changed.update(reply.get("changed", ()))
        if which.ids is not None or len(outcome.unchanged_ids) < _UNCHANGED_MAX:
            outcome.unchanged_ids.update(reply.get("left", ()))
        outcome.last_id = outcome.last_id or reply["last_id"]
        if "stopped" in reply:
            raise BeanliteError(f"{server.name} refused a put: {explanation(reply['stopped'])}{_so_far(what, outcome)}")
        if reply["next"] is None:
            parts.pop(0)
            place = {}
        else:
            place = {"after": reply["next"]}
        outcome.ended = not parts
        yield outcome


def change_all(server: Live, what: Record, which: Filter, outcome: Result | None = None) -> Result:
    """Change jobs as ``slices`` does, to the end; that there is none, and so no tube, is no error. BeanliteError."""
    outcome = Result() if outcome is None else outcome
    for _ in slices(server, what, which, outcome):
        pass
    return outcome


def count(server: Live, what: Record, which: Filter, until_s: float = math.inf) -> Result:
    """Return how many jobs a change would change: as far as they are counted by a moment of the monotonic clock."""
    outcome = Result()
    for _ in slices(server, {**what, "dry_run": True}, which, outcome):
        if time.monotonic() >= until_s:
            break
    return outcome


def _asked(server: Live, what: Record, request: Record, outcome: Result) -> Record:
    """Return the reply to the request of a slice; if the connection ends before it, the error tells of that doubt."""
    if what.get("dry_run"):
        return server.ask("change-jobs", request)
    more = "more " if outcome.done else ""
    with telling_doubt(f"{more}jobs were {DONE_WORDS[what['do']]}"):
        return server.ask("change-jobs", request)


def parts_of(which: Filter) -> list[Filter]:
    """Return the filter, or split it into several if it has more ids than a request may list."""
    if which.ids is None:
        return [which]
    ids = sorted(set(which.ids))
    return [which.model_copy(update={"ids": ids[at : at + IDS_MAX]}) for at in range(0, len(ids), IDS_MAX)]


def _so_far(what: Record, outcome: Result) -> str:
    would = "would be" if what.get("dry_run") else "had been"
    return f"; {outcome.done} jobs {would} {DONE_WORDS[what['do']]} before"
