"""The lists of jobs: all, those of a tube, and those that a line of text chooses."""

import json
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from beanlite.console import listing, query
from beanlite.console.filters import STATES, Record, filter_by
from beanlite.console.grouping import FACTS, grouping_of, paths_of
from beanlite.console.several import Servers
from beanlite.console.units import count, zone_of
from beanlite.core.access import OPERATOR
from beanlite.errors import ConfigError
from beanlite.protocol.operators.filters import Filter
from beanlite.web.notices import Mistake, WrongForm
from beanlite.web.operating import TEXT_MAX
from beanlite.web.pages import filter_of, line_of, link, render
from beanlite.web.questions import Questions, Server_co
from beanlite.web.site import Site, path_of, person_of, rights_of, site_of

Answer = TypeVar("Answer")

# How many jobs a page has, and how many names of tubes a word is completed to.
JOBS: Final = 50
COMPLETIONS_MAX: Final = 12
# Up to how many jobs that match are counted, how many at a time, and for how long.
COUNT_MAX: Final = 1000
_COUNTED: Final = 200
_COUNT_S: Final = 0.1
# How long jobs, or names of tubes, are looked for: four questions that take as long must not keep all others waiting.
LOOK_S: Final = 3.0
# The header of requests by which a page refreshes itself.
LIVE: Final = "beanlite-live"
_QUEUE: Final = "queue"
_TUBE: Final = "tube:"
_NARROWING: Final = frozenset({"ids", "tube_like", "holder", "holder_host"})


async def ask(
    request: Request, questions: Questions[Server_co], key: Hashable, question: Callable[[Server_co], Answer]
) -> Answer:
    """Return the answer to a question; one that many browsers share, if the page only refreshes itself."""
    person, refreshes = person_of(request), LIVE in request.headers
    return await (questions.ask_seldom(person, key, question) if refreshes else questions.ask(person, question))


async def jobs(request: Request) -> Response:
    """Show jobs of any tube."""
    return await show_jobs(request, "jobs.html", {"tube": None})


async def show_jobs(request: Request, template: str, context: Record) -> Response:
    """Show a page with a list of jobs, or of what they are grouped by."""
    site: Site[Servers] = site_of(request)
    fields = dict(request.query_params)
    tube = None if context["tube"] is None else context["tube"]["name"]
    fields.pop("tube", None) if tube else None
    find = _Find(fields, tube, hides=site.hide_bodies)
    which = find.which
    groups, found, of_all = None, _Found(listing.Page([], None), "", {}), ""
    if find.mistake is None and find.by is not None:
        key, again = (tube, find.line, find.zone, find.group), LIVE not in request.headers
        groups = await site.counts.of(key, person_of(request), which, find.by, again=again)
        # Of a user with fewer rights, and with these criteria, only some of the jobs are looked at.
        if groups.ended_s is None and rights_of(request).everything and not which.criteria().keys() & _NARROWING:
            there = filter_by(tube=which.tube, state=which.state)
            question = partial(_matching, which=there)
            of_all = await site.questions.ask_seldom(person_of(request), ("there", which.tube, which.state), question)
    elif find.mistake is None:
        after = fields.get("after", "")[:1000] or None
        list_jobs = partial(
            _page_of_jobs,
            which=which,
            sort=find.sort,
            after=after,
            paths=find.paths,
            to_change=rights_of(request).has(OPERATOR),
        )
        found = await ask(
            request, site.questions, ("jobs", json.dumps(which.criteria()), find.sort, after, *find.paths), list_jobs
        )
    page = found.page
    context |= {
        "jobs": page.records,
        "matching": found.matching,
        "meant": found.meant,
        "is_cut": page.is_cut,
        "look_s": LOOK_S,
        "more": link(path_of(request), **find.query, after=page.after) if page.after else None,
        "which": which,
        "find": find,
        "groups": groups,
        "of_all": of_all,
        "hides": site.hide_bodies,
    }
    if find.mistake is not None:
        context["wrong"] = WrongForm(path_of(request), find.mistake.name, find.mistake.why)
    return render(request, template, context, 200 if find.mistake is None else 400)


class _Find:
    """What the query of a page asks for. ConfigError: there is no such order, or what it looks for is hidden."""

    def __init__(self, fields: Mapping[str, str], tube: str | None, *, hides: bool) -> None:
        self.line = line_of(fields)
        """The filter, without the tube whose page it is."""
        self.columns, self.group, self.span = (
            fields.get(name, "").strip()[:2000] for name in ("columns", "group", "span")
        )
        self.zone = ""
        """The zone of the moments in the filter, if it has any; empty if that is the zone of this process."""
        self.mistake: Mistake | None = None
        self.paths: list[str] = []
        self.by: Record | None = None
        self.which = filter_by(tube=tube)
        try:
            zone = fields.get("zone", "")
            self.which = filter_of({"q": self.line, "tube": tube or "", "zone": zone})
            if zone_of(zone) and (self.which.since_at is not None or self.which.until_at is not None):
                self.zone = zone
            self._read_paths()
        except Mistake as mistake:
            self.mistake = mistake
        reads_bodies = self.which.looks_into_bodies or self.paths or (self.by and self.by.get("fact") in {None, "note"})
        if hides and reads_bodies:
            raise ConfigError("text: bodies are hidden here, and so can't be searched")
        by_queue = self.which.tube is not None and self.which.state not in {None, "reserved"}
        self.sorts = [each for each in listing.JOB_SORTS if each != _QUEUE or self.which.tube is not None]
        self.sort = fields.get("sort") or (_QUEUE if by_queue else "id")
        self.sort_hint = ""
        """Why they are not sorted as it was asked for."""
        if self.sort == _QUEUE and not by_queue:
            self.sort = "id"
            self.sort_hint = "sorted by id: queue is for the ready, delayed or buried jobs of one tube"
        self.is_sorted = "sort" in fields
        self.facts = tuple(fact for fact in FACTS if fact != "tube" or tube is None)

    def _read_paths(self) -> None:
        name = "columns"
        try:
            self.paths = paths_of(self.columns)
            name = "group"
            self.by = grouping_of(self.group) if self.group else None
        except ConfigError as error:
            raise Mistake(name, str(error)) from None

    @property
    def query(self) -> dict[str, str]:
        """What a link has in it that leads to the same."""
        sort = self.sort if self.is_sorted else ""
        words = {"q": self.line, "zone": self.zone, "columns": self.columns, "group": self.group, "sort": sort}
        return {"span": self.span, **words}

    def with_state(self, state: str) -> dict[str, str]:
        """Return the query of the same in another state; of any, if it is empty."""
        line = query.without(self.line, "state")
        return {**self.query, "q": f"{line} state:{state}".strip() if state else line}

    def with_value(self, value: str) -> dict[str, str] | None:
        """Return the query of the jobs of a group; None if they can't be looked for."""
        if self.by is None or query.is_cut(value):
            return None
        if self.group in FACTS and self.group not in self.facts:  # all are of this tube
            return {**self.query, "group": ""}
        word = query.write(self.group if self.group in FACTS else query.key_of(self.group), value)
        line = query.without(self.line, self.group) if self.group in FACTS else self.line
        return {**self.query, "q": f"{line} {word}".strip(), "group": ""}

    @property
    def hint(self) -> str:
        """What may be meant by a word that is looked for in bodies."""
        return query.hint(self.line)

    def deleted(self, page: str) -> str:
        """Return the link to the changes that tell which such jobs were deleted; empty if that is not told there."""
        values = query.values_in(self.line)
        return link(page, tube=self.which.tube, body=values) if 0 < len(values) <= TEXT_MAX else ""


class _Found(NamedTuple):
    """A page of jobs."""

    page: listing.Page
    matching: str
    """How many match in all, as far as that is known."""
    meant: dict[str, str]
    """What a form has of the jobs that it means by all that match, besides the filter: the last id, and the moment."""


def _page_of_jobs(
    live: Servers, which: Filter, sort: str, after: str | None, paths: list[str], *, to_change: bool
) -> _Found:
    """Return a page of jobs. ``to_change``: the page has a form that changes them."""
    meant = {}
    if to_change:
        asked_ms = str(round(time.time() * 1000))
        meant = {"up_to_id": str(live.list_jobs({"ids": [1]})["last_id"]), "asked_ms": asked_ms}
    page = listing.jobs(live, which, sort, JOBS, after, paths, time.monotonic() + LOOK_S)
    if page.is_cut:
        return _Found(page, "jobs", meant)
    if len(page.records) < JOBS and after is None:
        return _Found(page, count(len(page.records)), meant)
    return _Found(page, _matching(live, which), meant)


def _matching(live: Servers, which: Filter) -> str:
    """Return how many jobs match; if they have to be looked for, only up to COUNT_MAX are counted."""
    states = STATES if which.state is None else (which.state,)
    if which.criteria().keys() <= {"tube", "state"}:
        if which.tube is None:
            stats = live.stats()
            return count(sum(stats[f"current-jobs-{state}"] for state in states))
        return count(sum(tube[state] for tube in live.list_tubes({"names": [which.tube]})["tubes"] for state in states))
    number = 0
    until_s = time.monotonic() + _COUNT_S
    for records, after in listing.slices(live.list_jobs, {**which.criteria(), "limit": _COUNTED}, "jobs"):
        number += len(records)
        if after is not None and (number > COUNT_MAX or time.monotonic() > until_s):
            return f"of more than {count(number)}"
    return count(number)


async def complete(request: Request) -> Response:
    """Tell what the word of a filter may become that is being typed."""
    word = request.query_params.get("word", "")[:300]
    completions = query.complete(word)
    if word.startswith(_TUBE):
        begin = word.removeprefix(_TUBE)

        def names(live: Servers) -> list[str]:
            until_s = time.monotonic() + LOOK_S
            records = listing.everything(live.list_tubes, {"like": f"{begin}*"}, "tubes", until_s)
            return list(dict.fromkeys(record["name"] for record in islice(records, COMPLETIONS_MAX)))

        site: Site[Servers] = site_of(request)
        tubes = await site.questions.ask_seldom(person_of(request), ("names", begin), names)
        completions = [query.Completion(f"{_TUBE}{name}", "", is_whole=True) for name in tubes]
    but = {f"{request.query_params.get('but', '')}:"} | ({"text:", "note:"} if site_of(request).hide_bodies else set())
    completions = [each for each in completions if each.word not in but]
    return JSONResponse([each._asdict() for each in completions[:COMPLETIONS_MAX]])
