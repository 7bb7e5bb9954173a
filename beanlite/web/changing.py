"""The pages that change something, requested by our own forms; changes of jobs are to be confirmed first."""

import asyncio
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from beanlite.beanstalk.client import Unauthorized
from beanlite.console import units
from beanlite.console.changes import DONE_WORDS, Result, slices
from beanlite.console.filters import Record, encode_tube
from beanlite.console.live import Live, on_behalf_of
from beanlite.console.policies import in_words
from beanlite.core.job import U32_MAX
from beanlite.errors import BeanliteError, ConfigError
from beanlite.protocol.operators.filters import Filter
from beanlite.web.pages import filter_of, form, link, number, render, whole_seconds
from beanlite.web.running import description
from beanlite.web.site import person_of, site_of

# How long to wait for a change before showing a page with its progress instead.
WAIT_S: Final = 0.5
_LENGTH: Final = "a length of time, such as 90s, 5min or 3h"


async def change(request: Request) -> Response:
    """Change the jobs that a form selects: ask for confirmation with their number first, then do it."""
    site, fields = site_of(request), await form(request)
    what, which = _request(fields)
    back = _back(fields)
    if site.hide_bodies and which.looks_into_bodies:
        raise ConfigError("text: bodies are hidden here, and so can't be searched")
    if not fields.get("sure"):
        would = await site.questions.ask(person_of(request), partial(_count, what=what, which=which))
        fields |= {"up_to_id": str(would.last_id or 0), "sure": "1"}
        context = {"what": what, "described": description(which), "outcome": would, "fields": fields, "back": back}
        return render(request, "sure.html", context)
    live = await asyncio.to_thread(Live, site.address, person_of(request))
    running, task = site.changes.begin(live, {**what, **_on_behalf(request)}, which, back)
    await asyncio.wait([task], timeout=WAIT_S)
    if running.ended and not running.error:
        return _redirect(request, back, f"{units.jobs(running.outcome.done)} {DONE_WORDS[what['do']]}")
    return RedirectResponse(f"/change/{running.number}", 303)


async def follow(request: Request) -> Response:
    """Show the progress of a change."""
    running = site_of(request).changes.all.get(request.path_params["number"])
    if running is None or running.person != person_of(request):
        raise BeanliteError("this change is not remembered any more")
    return render(request, "change.html", {"running": running})


async def pause(request: Request) -> Response:
    """Pause a tube."""
    site, fields = site_of(request), await form(request)
    tube, pause_s = fields.get("tube", ""), whole_seconds(fields, "for")
    if pause_s is None:
        raise ConfigError(f"for: {_LENGTH}; 0 ends a pause")
    await site.questions.ask_once(person_of(request), lambda live: live.pause(tube, pause_s, _on_behalf(request)))
    message = f"{tube} is paused for {units.age(pause_s)}" if pause_s else f"{tube} is not paused any more"
    return _redirect(request, _back(fields), message)


async def policy(request: Request) -> Response:
    """Set or unset one key of a policy."""
    site, fields = site_of(request), await form(request)
    pattern, key, value = (fields.get(name, "").strip() for name in ("pattern", "key", "value"))
    if not pattern:
        raise ConfigError("pattern: say for which tubes")
    if not value and not fields.get("unset"):
        raise ConfigError("value: say which")
    how: Record = {"unset": [key]} if fields.get("unset") else {"set": {key: value}}
    what = {"pattern": pattern, **how, **_on_behalf(request)}
    reply = await site.questions.ask_once(person_of(request), lambda live: live.ask("set-policy", what))
    lines = in_words(reply["changes"]) or ["Nothing has changed"]
    return _redirect(request, _back(fields), "; ".join([*lines, *reply["warnings"]]))


async def schedule(request: Request) -> Response:
    """Have a schedule put its job now, or remove it."""
    site, fields = site_of(request), await form(request)
    name, do = fields.get("name", ""), fields.get("do", "")
    if do not in {"run", "unset"}:
        raise ConfigError("do: missing")
    what = {"name": name, **_on_behalf(request)}
    reply = await site.questions.ask_once(person_of(request), lambda live: live.ask(f"{do}-schedule", what))
    message = f"Job {reply['id']} was put by {name}" if do == "run" else f"The schedule {name} was removed"
    return _redirect(request, _back(fields), message)


async def put(request: Request) -> Response:
    """Put a job by hand."""
    if request.method != "POST":
        fields = {"tube": request.query_params.get("tube", "default")}
        return render(request, "put.html", {"fields": fields, "error": ""})
    fields = await form(request)
    try:
        pri, ttr_s = number(fields, "pri", U32_MAX), whole_seconds(fields, "ttr")
        tube = fields.get("tube", "").strip() or "default"
        encode_tube(tube)
        job = {
            "tube": tube,
            "pri": 1024 if pri is None else pri,
            "delay_s": whole_seconds(fields, "delay") or 0,
            "ttr_s": 60 if ttr_s is None else ttr_s,
            "body": fields.get("body", "").replace("\r\n", "\n"),  # browsers send line breaks as CR LF
        }
        what = {"jobs": [job], **_on_behalf(request)}
        questions = site_of(request).questions
        reply = await questions.ask_once(person_of(request), lambda live: live.ask("put-jobs", what))
    except BeanliteError as error:
        return render(request, "put.html", {"fields": fields, "error": str(error)}, 422)
    return _redirect(request, f"/job/{reply['ids'][0]}", "The job was put")


async def back_up(request: Request) -> Response:
    """Make a backup, if the user may do everything."""
    site = site_of(request)
    folder = site.backups
    if folder is None:
        raise ConfigError("no folder for backups is configured")
    if not await site.questions.ask(person_of(request), Live.may_everything):
        raise Unauthorized("A backup takes the role operator on all tubes, which no rule of the server gives here")
    making = folder.begin()
    await asyncio.wait([making], timeout=WAIT_S)
    if folder.is_busy or folder.error:
        return RedirectResponse("/backups", 303)
    return _redirect(request, "/backups", "A backup was made")


def _on_behalf(request: Request) -> Record:
    """Return the user as a part of a request to the server."""
    return on_behalf_of(person_of(request))


def _request(fields: dict[str, str]) -> tuple[Record, Filter]:
    """Return the change that a form requests, and the filter of its jobs. ConfigError: the form is wrong."""
    do = fields.get("do", "")
    if do not in DONE_WORDS:
        raise ConfigError("do: missing")
    if fields.get("scope") == "ticked" and not fields.get("ids"):
        raise ConfigError("no job is ticked; tick some, or choose all that fit")
    if fields.get("scope") == "all":
        fields["ids"] = fields.get("of_ids", "")
    which = filter_of(fields)
    if not which.criteria():
        raise ConfigError("say which jobs are meant")
    return {"do": do, **_how(do, fields)}, which


def _how(do: str, fields: dict[str, str]) -> Record:
    """Return what a change needs besides the jobs. ConfigError: it is missing."""
    to, pri, delay_s = fields.get("to", "").strip(), number(fields, "pri", U32_MAX), whole_seconds(fields, "delay")
    if do in {"move", "copy"}:
        if not to:
            raise ConfigError("to: say to which tube")
        encode_tube(to)
        return {"to": to}
    if do == "reprioritise":
        if pri is None:
            raise ConfigError("pri: say which")
        return {"pri": pri}
    if do == "note":
        return {"note": fields.get("note", "").replace("\r\n", "\n")}  # browsers send line breaks as CR LF
    if do == "delay":
        if not delay_s:
            raise ConfigError(f"delay: {_LENGTH}")
        return {"delay_s": delay_s}
    return {}


def _count(live: Live, what: Record, which: Filter) -> Result:
    outcome = Result()
    for _ in slices(live, {**what, "dry_run": True}, which, outcome):
        pass
    return outcome


def _back(fields: dict[str, str]) -> str:
    """Return the page that the form was on, if it is on this site; otherwise the first page."""
    back = fields.get("back", "/")
    return back if back.startswith("/") and not back.startswith(("//", "/\\")) and len(back) < 4000 else "/"


def _redirect(request: Request, path: str, message: str) -> Response:
    """Redirect to a page, which then shows what was done."""
    token = site_of(request).notices.leave(message)
    return RedirectResponse(f"{path}{'&' if '?' in path else '?'}{link('', done=token)[1:]}", 303)
