"""Several servers, each with a site of its own below ``/on/NAME``, and the site that shows them together."""

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from beanlite.beanstalk.over_tls import mark_of
from beanlite.console.live import Live
from beanlite.console.several import AWAY_S, Place, Places, Several
from beanlite.core.access import NOTHING, Rights
from beanlite.errors import BeanliteError, ConfigError
from beanlite.web.app import make_app
from beanlite.web.safety import User
from beanlite.web.site import Site

Answer = TypeVar("Answer")

# How long a page of all servers waits for each; and for one that was late before, until it answers again.
WAIT_S: Final = 1.0
_LATE_S: Final = 0.02
# How many threads ask servers at most: those that wait for halted servers are to leave some for the others.
THREADS: Final = 300
# How often it is looked whether the file of servers has changed.
_LOOK_S: Final = 1.0


class Away(NamedTuple):
    """What is known of a server that does not answer."""

    why: str
    since_s: float


@dataclass(kw_only=True)
class Together(Site[Several]):
    """The site of all servers: what it shows is asked of those that answer."""

    load: Callable[[], Places]
    """Reads which servers there are. ConfigError: something in the file of servers is wrong."""
    file: Path | None
    make: Callable[[Place], Site[Live]]
    connect: Callable[[str, float], Several] = field(init=False)
    places: Places = field(init=False)
    sites: dict[str, Site[Live]] = field(init=False, default_factory=dict)
    away: dict[str, Away] = field(init=False, default_factory=dict)
    fault: str = field(init=False, default="")
    """Why the file of servers can't be read again."""

    def __post_init__(self) -> None:
        self.connect = self._several
        super().__post_init__()
        self._apps: dict[str, tuple[Place, Starlette]] = {}
        self._late: set[tuple[str, Hashable]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._looked_s = time.monotonic()
        self._mark = None if self.file is None else mark_of(self.file)
        self._set(self.load())

    async def rights(self, user: User) -> Rights:  # noqa: ARG002 - as of one server
        """Return that nothing is changed here: each server has pages of its own for that."""
        return NOTHING

    async def close(self) -> None:
        """End what is under way."""
        await super().close()
        await asyncio.gather(*(site.close() for site in self.sites.values()), *self._closing)

    def _several(self, person: str, within_s: float) -> Several:
        here = tuple(place for place in self.places.places if place.name not in self.away)
        return Several(Places(here or self.places.places, self.places.fleet), person, min(within_s, AWAY_S))

    # -- which servers there are

    def refresh(self) -> None:
        """Read the file of servers again, if it has changed."""
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = now_s
        mark = None if self.file is None else mark_of(self.file)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self._set(self.load())
        except ConfigError as error:
            self.fault = str(error)

    def _set(self, places: Places) -> None:
        for place in places.places:
            if "/" in place.name:
                raise ConfigError(f"--connect {place.name} needs a name here: NAME={place.name}")
        self.places, self.fault = places, ""
        before, self._apps, sites = self._apps, {}, dict(self.sites)
        for place in places.places:
            known = before.pop(place.name, None)
            if known is None or known[0] != place:
                site = self.make(place)
                self._end(sites.get(place.name))
                sites[place.name] = site
                known = place, make_app(site)
            self._apps[place.name] = known
        for name in before:
            self._end(sites[name])
        self.sites = {name: sites[name] for name in self._apps}
        self.members = tuple(self.sites)
        for site in self.sites.values():
            site.members = self.members
        self.away = {name: away for name, away in self.away.items() if name in self.sites}

    def _end(self, site: Site[Live] | None) -> None:
        if site is not None:
            task = asyncio.get_running_loop().create_task(site.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a page of one of the servers."""
        self.refresh()
        name = scope["path_params"]["server"]
        if name not in self._apps:
            raise HTTPException(404, f"There is no server {name[:40]}")
        await self._apps[name][1](scope, receive, send)

    # -- questions to all of them

    async def ask_each(
        self, person: str, key: Hashable, question: Callable[[Live], Answer], names: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Answer], dict[str, str]]:
        """Ask all servers, or those with these names; return what they answer in time, and why others do not."""
        kind = key[0] if isinstance(key, tuple) else key
        tasks = {
            name: asyncio.create_task(site.questions.ask_seldom(person, key, question))
            for name, site in self.sites.items()
            if names is None or name in names
        }
        for name, task in tasks.items():
            task.add_done_callback(partial(self._came, (name, kind)))
        late = {name: task for name, task in tasks.items() if (name, kind) in self._late}
        for waited, within_s in ((tasks.keys() - late.keys(), WAIT_S), (late.keys(), _LATE_S)):
            if waited:
                await asyncio.wait([tasks[name] for name in waited], timeout=within_s)
        answers: dict[str, Answer] = {}
        reasons: dict[str, str] = {}
        for name, task in tasks.items():
            if not task.done():
                self._late.add((name, kind))
                reasons[name] = "it does not answer"
            elif (error := task.exception()) is None:
                answers[name] = task.result()
            elif isinstance(error, BeanliteError):
                reasons[name] = str(error)
            else:
                raise error
        return answers, reasons

    def _came(self, late: tuple[str, Hashable], task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._late.discard(late)

    async def stats(self) -> dict[str, dict[str, Any]]:
        """Return the statistics of the servers that answer, and note which are away."""
        stats, reasons = await self.ask_each("", "stats", Live.stats)
        now_s = time.monotonic()
        since = {name: away.since_s for name, away in self.away.items()}
        self.away = {name: Away(why, since.get(name, now_s)) for name, why in reasons.items()}
        return stats
