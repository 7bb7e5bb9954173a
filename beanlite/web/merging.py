"""The pages of several servers together. Nothing is changed here: they lead to the pages of each server."""

import asyncio
import time
from functools import partial
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from beanlite.console.filters import JobId, Record, encode_tube, pattern_of
from beanlite.console.live import Live
from beanlite.console.why import asked_of
from beanlite.core.findings import KINDS, SEVERITIES
from beanlite.errors import ConfigError
from beanlite.web import finding, overview as looks
from beanlite.web.app import make_application
from beanlite.web.members import Together
from beanlite.web.pages import link, number, quoted, render, tube_of
from beanlite.web.seeing import PAGES_MAX
from beanlite.web.site import person_of, site_of

_COUNTS = ("ready", "reserved", "delayed", "buried", "waiting")


def together_of(request: Request) -> Together:
    """Return the site of all servers, which a request is for."""
    return cast(Together, site_of(request))


async def overview(request: Request) -> Response:
    """Show the state of all servers, what is wrong with any of them, and their tubes."""
    together, query, person = together_of(request), request.query_params, person_of(request)
    together.refresh()
    (like, sort), page = looks.name_and_order(query), number(query, "page", PAGES_MAX) or 1
    stats = await together.stats()
    facts, reasons = await together.ask_each(person, "facts", _facts, stats)
    server = query.get("server", "")
    if server and server not in together.sites:
        raise ConfigError(f"server: there is no server {server[:40]}, only {', '.join(together.sites)}")
    chosen = {name: None for name in facts if server in {"", name}}
    tubes, late = await _tubes(together, person, chosen, (like, sort, page))
    missing = {name: away.why for name, away in together.away.items()} | reasons | late
    findings = [_of_server(together, name, each) for name, (found, _) in facts.items() for each in found]
    findings.sort(key=lambda each: (SEVERITIES.index(each["severity"]), KINDS.index(each["kind"])))
    now_s = time.monotonic()
    rows = [
        {
            "name": name,
            "away": together.away[name].why if name in together.away else reasons.get(name, ""),
            "away_s": now_s - together.away[name].since_s if name in together.away else None,
            "stats": stats.get(name),
            "flow": facts[name][1] if name in facts else None,
        }
        for name in together.sites
    ]
    context = {
        "servers": rows,
        "sums": {key: sum(_count(each, key) for each in stats.values()) for key in _COUNTS},
        "rates": {key: sum(flow[f"{key}_per_s"] or 0 for _, flow in facts.values()) for key in ("puts", "deletes")},
        "findings": findings,
        "tubes": tubes,
        "lacking": {name: why for name, why in missing.items() if server in {"", name}},
        "fault": together.fault,
        "chosen": server,
        "kept": {"server": server},
        "hours": {},
        "like": like,
        "sort": sort,
    }
    return render(request, "servers.html", context)


def _count(stats: Record, key: str) -> int:
    count: int = stats["current-waiting" if key == "waiting" else f"current-jobs-{key}"]
    return count


def _of_server(together: Together, name: str, finding: Record) -> Record:
    """Return a finding with its server, which the command that it names asks."""
    command = finding["command"] and asked_of(finding["command"], together.sites[name].options)
    return {**finding, "server": name, "command": command}


def _facts(live: Live) -> tuple[list[Record], Record]:
    """Return what is wrong with a server, and its rates."""
    return looks.findings(live), live.ask("show-flow", {"range": "5min"})


async def _tubes(
    together: Together, person: str, chosen: dict[str, None], asked: tuple[str, str, int]
) -> tuple[looks.TubesPage, dict[str, str]]:
    """Return a page of the tubes of these servers, and why some servers' are missing."""
    like, sort, page = asked
    fits = pattern_of(like)
    end = page * looks.PAGE
    leading, reasons = await together.ask_each(
        person, ("leading", fits, sort, end), partial(looks.leading, like=fits, sort=sort, most=end), chosen
    )
    places = sorted((*place, server) for server, (first, _) in leading.items() for place in first)
    shown = {(server, name): at for at, (_, name, server) in enumerate(places[end - looks.PAGE : end])}
    tubes: list[Record] = []

    async def details(server: str) -> None:
        names = [name for its_server, name in shown if its_server == server]
        question = partial(looks.tubes_named, names=names)
        told, why = await together.ask_each(person, ("tubes", *names), question, {server: None})
        tubes.extend({**tube, "server": server} for tube in told.get(server, ()))
        reasons.update(why)

    await asyncio.gather(*map(details, leading))
    tubes.sort(key=lambda tube: shown[tube["server"], tube["name"]])
    return looks.TubesPage(tubes, page, sum(total for _, total in leading.values()) > end), reasons


async def jobs(request: Request) -> Response:
    """Show jobs of all servers."""
    together = together_of(request)
    together.refresh()
    answers = await together.stats()
    _, refusals = await together.ask_each(person_of(request), "look", _look, answers)
    lacking = {name: away.why for name, away in together.away.items()} | refusals
    return await finding.show_jobs(request, "all-jobs.html", {"tube": None, "lacking": lacking})


def _look(live: Live) -> Record:
    """Look at a job, to find out whether that is allowed."""
    return live.list_jobs({"limit": 1})


async def job(request: Request) -> Response:
    """Lead to a job: two:17."""
    try:
        job_id = JobId.parse(request.path_params["id"])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if job_id.server is None:
        raise HTTPException(404, f"A job is named with its server here, as two:17, and not {str(job_id)[:60]}")
    if job_id.server not in together_of(request).sites:
        raise HTTPException(404, f"There is no server {job_id.server[:40]}")
    return RedirectResponse(f"/on/{job_id.server}/job/{job_id:d}", 303)


async def tube(request: Request) -> Response:
    """Lead to a tube: on the server that it belongs to or, if no file says which, to all of this name."""
    together, name = together_of(request), tube_of(request)
    encode_tube(name)
    together.refresh()
    if together.places.fleet is None:
        return RedirectResponse(link("/", like=name), 303)
    home = together.places.fleet.home(name.encode()).name
    return RedirectResponse(f"/on/{home}/tube/{quoted(name)}", 303)


async def targets(request: Request) -> Response:
    """Tell Prometheus where it asks the servers."""
    together = together_of(request)
    together.refresh()
    fleet = together.places.fleet
    return JSONResponse([] if fleet is None else fleet.targets())


def make_app_of_all(together: Together) -> Starlette:
    """Make the application for several servers."""
    return make_application(
        together,
        [
            Route("/", overview),
            Route("/jobs", jobs),
            Route("/job/{id}", job),
            Route("/tube/{name:path}", tube),
            Route("/complete", finding.complete),
            Route("/targets", targets),
            Mount("/on/{server}", together),
        ],
    )
