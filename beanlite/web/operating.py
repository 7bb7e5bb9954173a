"""What operators have done, wherever they did it, as the history tells it."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from beanlite.console.filters import Record
from beanlite.console.folding import SETS_DELAY, without_puts_of_copies
from beanlite.console.query import values_of
from beanlite.console.stored import PastView
from beanlite.console.tables import details
from beanlite.console.units import parse_moment, zone_of_reader
from beanlite.core.access import READER, Rights
from beanlite.core.events import PAUSE
from beanlite.errors import ConfigError
from beanlite.web.notices import Mistake

# How many lines a page shows, and of how many events.
DEEDS_MAX: Final = 100
EVENTS_MAX: Final = 50_000
# Alike events with no longer pause between them are one line: a change of many jobs is made in slices.
_PAUSE_S: Final = 10.0
TEXT_MAX: Final = 300
# By how much clocks may differ, of the server and of the page.
_ROUGHLY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that an operator did, to one or many jobs, or to a tube."""

    first_at: float
    last_at: float
    by: Record
    what: str
    how: str
    tube: str
    first_job: int
    """0: it was done to the tube."""
    last_job: int
    jobs: int
    is_cut: bool = False
    """Whether there may be more of it, before the events that were looked at."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which deeds a page asks for, as it was written in the form."""

    by: str
    tube: str
    since: str
    body: str
    """Values in the bodies of jobs that were deleted."""
    one_by_one: bool
    zone: str
    """The zone of ``since``."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Asked":
        """Return what the query of a page asks for."""
        names = ("by", "tube", "since", "body", "zone")
        by, tube, since, body, zone = (query.get(name, "").strip()[:TEXT_MAX] for name in names)
        return cls(by, tube, since, body, bool(query.get("each")), zone if since else "")

    @property
    def query(self) -> dict[str, str]:
        """The query of a page that asks for this."""
        each = "1" if self.one_by_one else ""
        return {
            "by": self.by,
            "tube": self.tube,
            "since": self.since,
            "zone": self.zone,
            "body": self.body,
            "each": each,
        }

    def conditions(self, now_s: float, *, hides: bool) -> Record:
        """Return the conditions that events meet. Mistake: the moment can't be read, or the values; or are hidden."""
        which: Record = {"operators": True, "by": self.by, "tube": self.tube}
        if self.since:
            try:
                which["since_at"] = parse_moment(self.since, now_s, zone_of_reader(self.zone))
            except ValueError as error:
                raise Mistake("since", str(error)) from None
        if self.body:
            if hides:
                raise Mistake("by", "bodies are hidden here, and so can't be searched")  # the other field is not there
            try:
                which["where"] = values_of(self.body)
            except ConfigError as error:
                raise Mistake("body", str(error)) from None
        return {key: value for key, value in which.items() if value}


def deeds(look: PastView, asked: Asked, rights: Rights, person: str, *, hides: bool) -> list[Deed]:
    """Return the last deeds that are asked for, the newest first: of a user who may not do everything, its own."""
    which = asked.conditions(time.time(), hides=hides)
    if not rights.everything:
        which.setdefault("by", person)  # or the last EVENTS_MAX may all be those of others
    events = list(look.history(which, EVENTS_MAX))
    is_cut = len(events) == EVENTS_MAX
    if not rights.everything:
        events = [
            event
            for event in events
            if person and event["by"]["person"] == person and rights.may(READER, event["tube"].encode())
        ]
    lines = list(_lines(events, one_by_one=asked.one_by_one, hides=hides))
    if is_cut and lines:
        lines[0] = replace(lines[0], is_cut=True)
    return lines[: -DEEDS_MAX - 1 : -1]


def last_pause(look: PastView, tube: str, until_at: float) -> Record | None:
    """Return the event of the pause of a tube that ends at this moment; None if the history does not have it."""
    last = next(look.history({"tube": tube, "what": [PAUSE]}, 1), None)
    return last if last and abs(last["at"] + last["delay_s"] - until_at) <= _ROUGHLY_S else None


def _lines(events: Iterable[Record], *, one_by_one: bool, hides: bool) -> Iterator[Deed]:
    deed: Deed | None = None
    for event in events if one_by_one else without_puts_of_copies(events):
        at, job = event["at"], event["id"]
        tells_delay = one_by_one or event["what"] in SETS_DELAY
        how = details(event if tells_delay else {**event, "delay_s": 0}, hides=hides)
        same = deed is not None and (deed.by, deed.what, deed.how, deed.tube) == (
            event["by"], event["what"], how, event["tube"],
        )  # fmt: skip
        is_next = deed is not None and job not in {0, deed.last_job} and at - deed.last_at <= _PAUSE_S
        if deed is not None and same and is_next and not one_by_one:
            deed = replace(deed, last_at=at, last_job=job, jobs=deed.jobs + 1)
            continue
        if deed is not None:
            yield deed
        deed = Deed(at, at, event["by"], event["what"], how, event["tube"], job, job, 1 if job else 0)
    if deed is not None:
        yield deed
