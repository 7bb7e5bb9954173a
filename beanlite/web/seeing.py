"""The pages that change nothing."""

import asyncio
import time
from functools import partial
from itertools import islice
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from beanlite.beanstalk.client import Unreachable
from beanlite.console import listing, timetable
from beanlite.console.bodies import FORMS, beginning, body_lines
from beanlite.console.filters import ID_MAX, Record, encode_tube, pattern_of
from beanlite.console.folding import LINES_MAX, fold, one_by_one
from beanlite.console.live import Live
from beanlite.console.stored import PastView
from beanlite.core.access import READER
from beanlite.core.flows import RANGES
from beanlite.errors import ConfigError
from beanlite.protocol.arguments import U64_MAX
from beanlite.web import overview as looks
from beanlite.web.again import unfit
from beanlite.web.backups import Backup
from beanlite.web.charts import Chart, chart_of_flow, chart_of_totals
from beanlite.web.curves import Curve, curve
from beanlite.web.finding import LIVE, ask, show_jobs
from beanlite.web.looking import from_database, from_history
from beanlite.web.notices import Mistake, WrongForm
from beanlite.web.operating import Asked, Deed, deeds, last_pause
from beanlite.web.pages import number, render, tube_of
from beanlite.web.site import UNKNOWN, Site, path_of, person_of, rights_of, site_of
from beanlite.web.threads import in_thread

# The limits: clients and schedules on the pages of these, events of a job that are looked at, bytes of a body that are
# shown, and numbers of pages.
CLIENTS_MAX: Final = 1000
EVENTS_MAX: Final = 10_000
SCHEDULES_MAX: Final = 200
BODY_BYTES_MAX: Final = 1 << 20
PAGES_MAX: Final = 100_000
_HOUR_S: Final = 3600
# How long after a job was put its event may be.
_ROUGHLY_S: Final = 1.0
# How far back charts go. The server keeps the first ones; the others are in the database: the span of a point in
# seconds, and the number of points.
SPANS: Final = {"5min": "5 min", "hour": "Hour", "day": "Day"}
_SPAN: Final = "hour"
LONGER: Final = {"week": (_HOUR_S, 7 * 24), "quarter": (24 * _HOUR_S, 91)}


async def overview(request: Request) -> Response:
    """Show the state of the server, and its tubes."""
    site, query = site_of(request), request.query_params
    like, sort = looks.name_and_order(query)
    page = number(query, "page", PAGES_MAX) or 1
    fits = pattern_of(like)
    ask_seldom, person = site.questions.ask_seldom, person_of(request)
    stats = await ask_seldom("", "stats", Live.stats)
    findings = await ask_seldom(person, "findings", looks.findings)
    span = query.get("span", _SPAN)
    picture, flow, no_hours = await _flow(request, None, span)
    tubes = await ask_seldom(person, ("tubes", fits, sort, page), partial(looks.tubes, like=fits, sort=sort, page=page))
    hours, unreadable = await _hours(site, [tube["name"] for tube in tubes.tubes])
    context = {
        "stats": stats,
        "rates": flow,
        "findings": findings,
        "unreadable": unreadable or no_hours,
        "tubes": tubes,
        "hours": hours,
        "picture": picture,
        "span": span,
        "spans": SPANS,
        "like": like,
        "sort": sort,
        "kept": {"span": query.get("span", "")},
    }
    return render(request, "overview.html", context)


async def tube(request: Request) -> Response:
    """Show a tube, its curves and its jobs."""
    site, name = site_of(request), tube_of(request)
    encode_tube(name)
    stats = await site.questions.ask_seldom("", "stats", Live.stats)
    reply, policies, (findings, facts) = await ask(
        request,
        site.questions,
        ("tube", name),
        lambda live: (
            live.list_tubes({"names": [name]}),
            live.list_policies({"tube": name}),
            looks.diagnosis(live, name),
        ),
    )
    if not reply["tubes"]:
        return render(request, "no-tube.html", {"name": name}, 404)
    span = request.query_params.get("span", _SPAN)
    spans = SPANS if site.db is None else SPANS | {each: each.capitalize() for each in LONGER}
    picture, _, unreadable = await _flow(request, name, span)
    pause = None
    left_s = reply["tubes"][0]["pause_left_s"]
    if left_s and LIVE not in request.headers:  # a refresh does not show it again
        until_at = time.time() + left_s
        pause, _ = await from_history(site, lambda look: last_pause(look, name, until_at))
    context = {
        "pause": pause,
        "tube": reply["tubes"][0],
        "findings": findings,
        "facts": facts,
        "started_at": site.moments.since("start", stats["uptime"]),
        "policies": policies["policies"],
        "policies_file": policies["file"],
        "picture": picture,
        "unreadable": unreadable,
        "span": _SPAN if unreadable and span in LONGER else span,
        "spans": spans,
    }
    return await show_jobs(request, "tube.html", context)


async def job(request: Request) -> Response:
    """Show all facts about a job."""
    site, job_id = site_of(request), request.path_params["id"]
    form = request.query_params.get("body", "auto")
    end = number(request.query_params, "events", U64_MAX)
    check_id(job_id)
    if form not in FORMS:
        raise ConfigError(f"body: there is no form {form[:40]!r}, only {', '.join(FORMS)}")
    facts = await site.questions.ask(person_of(request), lambda live: live.show_job(job_id))
    stored, unreadable = await from_history(site, lambda look: look.show_job(job_id, EVENTS_MAX + 1))
    history = kept = [] if stored is None else stored["history"][-EVENTS_MAX:]
    is_cut = stored is not None and len(stored["history"]) > EVENTS_MAX
    others = {event["tube"] for event in history} - ({facts["tube"]} if facts else set())
    if others:  # the database knows nothing of rights
        rights = await site.questions.ask(person_of(request), Live.rights)
        hidden = {tube for tube in others if not rights.may(READER, tube.encode())}
        history = [event for event in history if event["tube"] not in hidden]
    if facts is None and not history:
        context = {"id": job_id, "unreadable": unreadable}
        return render(request, "no-job.html", context, 404)
    deleted = await deleted_job(request, job_id) if facts is None else None
    body = b"" if site.hide_bodies else (facts or deleted or {"body": b""})["body"]
    if form == "raw" and (site.hide_bodies or not (facts or deleted)):
        return Response("This body is not shown.\n", 404, media_type="text/plain")
    if form == "raw":
        name = f'attachment; filename="job-{job_id}"'
        return Response(body, media_type="application/octet-stream", headers={"content-disposition": name})
    try:
        text = await in_thread(site.looks, body_lines, beginning(body, BODY_BYTES_MAX), form)
    except ConfigError:
        text = None
    context = {
        "job": facts,
        "id": job_id,
        **await in_thread(site.looks, _history, history, end),
        "is_cut": is_cut,
        "lacks_begin": facts and not is_cut and _lacks_begin(facts, history, kept),
        "kept_since": history[0]["at"] if history else None,
        "unreadable": unreadable,
        "hides": site.hide_bodies,
        "unfit": unfit(body),
        "deleted": deleted,
        "shown": text,
        "cut": len(body) > BODY_BYTES_MAX,
        "form": form,
        "forms": [each for each in FORMS if each != "raw"],
    }
    return render(request, "job.html", context)


def _lacks_begin(facts: Record, history: list[Record], kept: list[Record]) -> bool:
    """Whether the first events of a job are not kept; those that the user may not see are."""
    return bool(kept) and history == kept and kept[0]["at"] > facts["created_at"] + _ROUGHLY_S


def check_id(job_id: int) -> None:
    """Check that a job can have this id, which a database takes as well. HTTPException: none can."""
    if job_id > ID_MAX:
        raise HTTPException(404, "No job has such an id")


async def deleted_job(request: Request, job_id: int) -> Record | None:
    """Return what the history has of a job that was deleted: its tube, pri and body, if the user may see these."""
    site = site_of(request)
    if site.hide_bodies:
        return None
    job, _ = await from_history(site, lambda look: look.deleted_job(job_id))
    if job is None:
        return None
    rights = await site.questions.ask(person_of(request), Live.rights)
    return job if rights.may(READER, job["tube"].encode()) else None


def _history(history: list[Record], end: int | None) -> Record:
    """Return what a page shows of a history: the newest lines; or the last of its first ``end`` events, one by one."""
    lines = fold(history if end is None else [])
    if end is not None:
        end = max(min(end, len(history)), 1)
        start = max(0, end - LINES_MAX)
        lines = one_by_one(history, start, end)
    earlier = lines[-LINES_MAX - 1].end if len(lines) > LINES_MAX else 0
    return {
        "history": lines[-LINES_MAX:],
        "events": len(history),
        "end": end,
        "one_by_one": end is not None,
        "earlier": earlier,
    }


async def clients(request: Request) -> Response:
    """Show the connected clients."""

    def first(live: Live) -> list[Record]:
        return list(islice(listing.everything(live.list_clients, {}, "clients"), CLIENTS_MAX + 1))

    records = await site_of(request).questions.ask_seldom(person_of(request), "clients", first)
    context = {"clients": records[:CLIENTS_MAX], "more": len(records) > CLIENTS_MAX, "most": CLIENTS_MAX}
    return render(request, "clients.html", context)


async def policies(request: Request) -> Response:
    """Show all policies, and the schedules."""
    site = site_of(request)

    def first(live: Live) -> tuple[Record, list[Record]]:
        return live.list_policies({}), timetable.of_one(live, SCHEDULES_MAX + 1)

    reply, rows = await site.questions.ask(person_of(request), first)
    context = {
        "policies": reply["policies"],
        "policies_file": reply["file"],
        "schedules": rows[:SCHEDULES_MAX],
        "more": len(rows) > SCHEDULES_MAX,
        "most": SCHEDULES_MAX,
        "hides": site.hide_bodies,
    }
    return render(request, "policies.html", context)


async def changes(request: Request) -> Response:
    """Show what operators have done, and the last changes made here: of a user who may not do everything, its own."""
    site, user, rights = site_of(request), person_of(request), rights_of(request)
    person = None if rights.everything and rights is not UNKNOWN else user
    context: Record = {"entries": site.recent.entries(person), "deeds": [], "unreadable": ""}
    asked = Asked.of(request.query_params)
    status = 200
    try:
        context["deeds"], context["unreadable"] = await _deeds(request, asked)
    except Mistake as mistake:
        context["wrong"] = WrongForm(path_of(request), mistake.name, mistake.why)
        status = 400
    return render(request, "changes.html", {**context, "asked": asked, "hides": site.hide_bodies}, status)


async def _deeds(request: Request, asked: Asked) -> tuple[list[Deed], str]:
    """Return what operators have done, and why that can't be told, if so. Mistake: it is asked for wrongly."""
    site, user = site_of(request), person_of(request)
    if site.db is None or LIVE in request.headers:  # the history is long, and a refresh does not show it again
        return [], ""
    try:
        rights = await site.questions.ask(user, Live.rights)
    except Unreachable as error:
        return [], f"who may see it is known to the server alone, and {error}"
    done, unreadable = await from_history(site, lambda look: deeds(look, asked, rights, user, hides=site.hide_bodies))
    return done or [], unreadable


async def journal(request: Request) -> Response:
    """Show the statistics of the server: its journal, its memory, its backups, what it has refused."""
    site = site_of(request)
    stats = await site.questions.ask_seldom("", "stats", Live.stats)
    refusals = {key.removeprefix("refused-"): times for key, times in stats.items() if key.startswith("refused-")}
    started_at = site.moments.since("start", stats["uptime"])
    return render(request, "journal.html", {"stats": stats, "refused": refusals, "started_at": started_at})


async def backups(request: Request) -> Response:
    """Show the existing backups, even if the server is gone: that is when they are needed."""
    site = site_of(request)
    try:
        stats = await site.questions.ask_seldom("", "stats", Live.stats)
    except Unreachable:
        stats = {}
    backups: list[Backup] = []
    unreadable = ""
    if site.backups is not None:
        try:
            backups = await asyncio.to_thread(site.backups.existing)
        except OSError as error:
            unreadable = str(error)
    context = {
        "folder": site.backups,
        "backups": backups,
        "unreadable": unreadable,
        "succeeded_at": max([stats.get("backup-succeeded-at", 0), *(backup.made_at for backup in backups)]),
        "failed_at": stats.get("backup-failed-at", 0),
        "in_memory": stats.get("binlog-current-index") == 0,
        "in_database": stats.get("binlog-max-size") == 0,
        "now": time.time(),
    }
    return render(request, "backups.html", context)


async def _hours(site: Site[Live], names: list[str]) -> tuple[dict[str, Curve], str]:
    """Return curves of the jobs put into each tube in the last 24 hours, and why the database can't be read, if so."""
    rows, unreadable = await from_database(site, lambda look: look.totals(_HOUR_S, 24, names))
    if rows is None:
        return {}, unreadable
    return {name: curve((row for row in rows if row["tube"] == name), "put", _HOUR_S, 24) for name in names}, ""


async def _flow(request: Request, name: str | None, span: str) -> tuple[Chart, Record, str]:
    """Return the chart of a tube, or of the whole server if that is None, with what the server says of its flow.

    The last is why the database can't be read, if so. The server keeps nothing that was before its start: of a day the
    database has that by the hour.
    """
    site = site_of(request)
    longer = LONGER if name is not None and site.db is not None else {}
    if span not in SPANS and span not in longer:
        raise ConfigError(f"span: {', '.join([*SPANS, *longer])}")
    unreadable = ""
    if span in longer:
        span_s, points = longer[span]
        rows, unreadable = await from_database(site, lambda look: _totals(look, name, span_s, points))
        if rows is not None:
            return chart_of_totals(rows, span_s, points, time.time()), {}, ""
        span = _SPAN
    asked: Record = {"range": span} | ({} if name is None else {"tube": name})
    flow = await site.questions.ask_seldom(
        person_of(request), ("flow", name, span), lambda live: live.ask("show-flow", asked)
    )
    step_s, points = RANGES[span]
    hours: list[Record] | None = None
    if span == "day" and flow["since_at"] > time.time() - step_s * points:
        hours, unreadable = await from_database(site, lambda look: _totals(look, name, _HOUR_S, 25))
    if name is None:
        flow = {key: values for key, values in flow.items() if not key.startswith("wait_")}
    return chart_of_flow(flow, points, hours or ()), flow, unreadable


def _totals(look: PastView, name: str | None, span_s: int, points: int) -> list[Record]:
    """Return totals of a tube, or of all together."""
    return look.totals_of_all(span_s, points) if name is None else look.totals(span_s, points, [name])
