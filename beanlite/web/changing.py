"""The pages that change something, requested by our own forms; what can't be undone is to be confirmed first."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from beanlite.beanstalk.client import Unauthorized, Unreachable
from beanlite.client.calls import NOTE_BYTES_MAX
from beanlite.console import units
from beanlite.console.changes import DONE_WORDS, Result, count, slices
from beanlite.console.expiring import expiring
from beanlite.console.filters import Record, filter_by, settled
from beanlite.console.live import Live
from beanlite.console.policies import changes_text
from beanlite.console.putting import run_schedule
from beanlite.console.query import without
from beanlite.console.stored import Location
from beanlite.core.job import U32_MAX
from beanlite.errors import BeanliteError, ConfigError
from beanlite.protocol.operators.filters import Filter
from beanlite.web.again import ONCE
from beanlite.web.finding import LOOK_S
from beanlite.web.looking import from_database
from beanlite.web.notices import Mistake, WrongForm, field_of
from beanlite.web.pages import (
    asked_ago_s,
    filter_of,
    form,
    number,
    render,
    schedule_in,
    text_in,
    tube_name,
    whole_seconds,
)
from beanlite.web.redirects import back_of, note, on_behalf, once, redirect, tell
from beanlite.web.running import WORDS, Running, description
from beanlite.web.site import Site, has_gone, person_of, root_of, site_of
from beanlite.web.undeleting import JOBS_MAX, PutAgain, is_of, not_kept
from beanlite.web.undoing import UndoJobs, UndoPause, pause_left, unrecoverable

# How long to wait for a change before its progress is shown: longer than a busy disk takes for a few jobs, or people
# would be led away from their page for these.
WAIT_S: Final = 2.0
_LENGTH: Final = "a length of time, such as 90s, 5min or 3h"
# Why a change can't be undone.
_NO_WAY_BACK: Final = {
    "release": "The clients that hold them do not get them back.",
    "copy": "The copies can't be taken back together.",
    "note": "The notes that jobs have already are replaced.",
}

_UNKNOWN: Final = f"They can't be brought back together: it takes more than {LOOK_S:.0f} s to look at all of them."
_AS_NEW: Final = "Deleted jobs can be put again as new jobs, with new ids, as long as the history has their bodies."


@once
async def change(request: Request) -> Response:
    """Change the jobs that a form selects; if that can't be undone, ask for confirmation with their number first."""
    site, fields = site_of(request), await form(request)
    back = back_of(request, fields)
    is_shown = _set_moment(fields)
    try:
        what, which = _request(fields)
    except Mistake as mistake:
        return tell(request, back, WrongForm("/change", mistake.name, mistake.why, fields))
    if site.hide_bodies and which.looks_into_bodies:
        raise ConfigError("text: bodies are hidden here, and so can't be searched")
    kept_bytes = await _kept_bytes(site) if what["do"] == "delete" else 0
    undo = _undo_of({**what, **on_behalf(request)}, site.db if kept_bytes else None)
    # What has come to the state since the page was shown is not meant, nor has it been agreed to.
    shown_s = time.monotonic() - asked_ago_s(fields, time.time()) if is_shown else None
    if fields.get("sure"):
        return await _carry_out(request, what, which, back, undo if isinstance(undo, PutAgain) else None, shown_s)
    outlook = partial(_outlook, what=what, which=_shown(which, shown_s), kept_bytes=kept_bytes)
    would, lost, why = await site.questions.ask(person_of(request), outlook)
    if has_gone(request):  # and what it would have been told is not
        return Response(status_code=204)
    if which.up_to_id is None:
        which = which.model_copy(update={"up_to_id": would.last_id})
    if would.ended and not would.done:
        return redirect(request, back, _result_text(what["do"], would))
    if not lost:
        if isinstance(undo, UndoJobs):
            undo.most = would.done
        return await _carry_out(request, what, which, back, undo, shown_s)
    fields |= {"up_to_id": str(which.up_to_id or 0), "sure": "1"}
    context = {"what": what, "described": description(which), "outcome": would, "fields": fields, "back": back}
    why = why or _why_asked(what["do"], lost, would.done, kept_bytes)
    return render(request, "sure.html", {**context, "why": why, "look_s": LOOK_S})


def _set_moment(fields: dict[str, str]) -> bool:
    """Set in a form the moment as of which its jobs are meant, and return whether that is one that a page has told."""
    if fields.get("scope") != "all" and not fields.get("sure"):  # those that are named are meant, however new
        for name in ("up_to_id", "asked_ms"):
            fields.pop(name, None)
    is_shown = "asked_ms" in fields
    fields.setdefault("asked_ms", str(round(time.time() * 1000)))
    return is_shown


def _shown(which: Filter, shown_s: float | None) -> Filter:
    """Return the filter of the jobs that were in its state at a moment of the monotonic clock; None: that are now."""
    return which if shown_s is None else settled(which, time.monotonic() - shown_s)


def _undo_of(what: Record, db: Location | None) -> UndoJobs | PutAgain:
    """Return what undoes a change; ``db``: the database that keeps the bodies of deleted jobs, if it does."""
    return UndoJobs(what, 0) if db is None else PutAgain(db)


async def _kept_bytes(site: Site[Live]) -> int:
    """Return how many bytes of history keep bodies of deleted jobs, if it can be read here; 0 if they are not kept."""
    if site.db is None:
        return 0
    stats = await site.questions.ask("", Live.stats)
    is_served, _ = await from_database(site, partial(is_of, pid=stats["pid"]))
    return int(stats.get("history-bodies-max", 0)) if is_served else 0


def _why_asked(do: str, lost: int, number: int, kept_bytes: int) -> str:
    """Return why jobs could not be brought back."""
    if do == "delete":
        if not kept_bytes:
            return "What is deleted can't be brought back, unless there is a backup."
        if lost < number:
            return f"{units.jobs(lost)} can't be brought back: workers have them. {_AS_NEW}"
        together = f" More than {JOBS_MAX:,} are put again one by one, from their pages." if number > JOBS_MAX else ""
        return f"They are many, or large: how many the history keeps for long is not certain. {_AS_NEW}{together}"
    if do in _NO_WAY_BACK:
        return _NO_WAY_BACK[do]
    if lost > JOBS_MAX:
        return f"More than {JOBS_MAX:,} jobs can't be brought back."
    return f"{units.jobs(lost)} can't be brought back: reserved ones do not return to their clients, nor does a delay."


async def _carry_out(
    request: Request, what: Record, which: Filter, back: str, undo: UndoJobs | PutAgain | None, shown_s: float | None
) -> Response:
    """Change jobs, such that this can be undone if there is an ``undo``; show the progress if it takes long.

    ``shown_s``: by when the jobs had to be in the state that is asked for, on the monotonic clock.
    """
    site = site_of(request)
    live = await asyncio.to_thread(site.open, person_of(request))

    def steps(live: Live, what: Record, which: Filter, outcome: Result) -> Iterator[Result]:
        change = slices if undo is None else undo.change
        return change(live, what, _shown(which, shown_s), outcome)

    running, task = site.changes.begin(live, {**what, **on_behalf(request)}, which, back, steps)
    if undo is not None:
        running.undo = site.undos.keep(person_of(request), undo)
    note(request, running.title, back, running.undo, running)
    return await _when_ended(request, running, task)


async def _when_ended(request: Request, running: Running, task: asyncio.Task[None]) -> Response:
    """Lead back to where a change was requested, or to its progress if it takes long or fails."""
    await asyncio.wait([task], timeout=WAIT_S)
    if running.ended and not running.error:
        undo = running.undo if running.outcome.done else ""
        return redirect(request, running.back, _result_text(running.do, running.outcome), undo)
    return RedirectResponse(f"{root_of(request)}/change/{running.number}", 303)


async def undo(request: Request) -> Response:
    """Undo a change that was made here, as far as nothing has changed since."""
    site, fields = site_of(request), await form(request)
    back, person, token = back_of(request, fields), person_of(request), fields.get("undo", "")
    change = site.undos.take(person, token)
    try:
        if isinstance(change, UndoPause):
            return await _undo_pause(request, change, token, back)
        return await _undo_jobs(request, change, token, back)
    except BeanliteError:  # before anything was undone
        site.undos.keep(person, change, token)
        raise


async def _undo_jobs(request: Request, change: UndoJobs | PutAgain, token: str, back: str) -> Response:
    site, person, by = site_of(request), person_of(request), on_behalf(request)
    what, which = {"do": change.do}, filter_by(ids=change.ids)

    def steps(live: Live, _what: Record, _which: Filter, outcome: Result) -> Iterator[Result]:
        try:
            yield from change.undo(live, by, outcome)
        except BeanliteError:
            running.undo = site.undos.keep(person, change, token)  # for what is left
            raise
        site.recent.undone(token)

    live = await asyncio.to_thread(site.open, person)
    running, task = site.changes.begin(live, what, which, back, steps)
    note(request, running.title, back, running=running)
    return await _when_ended(request, running, task)


async def _undo_pause(request: Request, change: UndoPause, token: str, back: str) -> Response:
    site = site_of(request)
    is_undone = await site.questions.ask_once(person_of(request), partial(change.undo, by=on_behalf(request)))
    if not is_undone:
        return redirect(request, back, f"The pause of {change.tube} has changed since, and was left as it is")
    site.recent.undone(token)
    left_s = round(change.before_s)
    message = f"{change.tube} is {'paused as before' if left_s else 'not paused any more'}"
    note(request, message, back)
    return redirect(request, back, message)


def _result_text(do: str, outcome: Result) -> str:
    """Return what was done, and to how many jobs."""
    done = f"{units.jobs(outcome.done)} {WORDS[do]}"
    if do == "again":
        as_new = "as a new job with a new id" if outcome.done == 1 else "as new jobs with new ids"
        missing = f"; of {outcome.skipped:,} the history has no body any more" if outcome.skipped else ""
        there = len(outcome.unchanged_ids)
        once = f"; the same body is there already of {there:,}, {ONCE.format('the tube')}" if there else ""
        return f"{done}, {as_new}{once}{missing}"
    if not outcome.skipped:
        return done
    why = "left unchanged" if do != "undo" else "has changed since" if outcome.skipped == 1 else "have changed since"
    return f"{done}, {outcome.skipped:,} {why}"


async def follow(request: Request) -> Response:
    """Show the progress of a change."""
    running = site_of(request).changes.all.get(request.path_params["number"])
    if running is None or running.person != person_of(request):
        raise BeanliteError("this change is not remembered any more")
    return render(request, "change.html", {"running": running, "done": _result_text(running.do, running.outcome)})


async def pause(request: Request) -> Response:
    """Pause a tube."""
    site, fields = site_of(request), await form(request)
    tube, back = fields.get("tube", ""), back_of(request, fields)
    try:
        pause_s = whole_seconds(fields, "for")
    except Mistake as mistake:
        return tell(request, back, WrongForm("/pause", mistake.name, mistake.why, fields))
    if pause_s is None:
        return tell(request, back, WrongForm("/pause", "for", f"{_LENGTH}; 0 ends a pause", fields))

    person, by = person_of(request), on_behalf(request)

    def pause(live: Live) -> UndoPause:
        before_s = pause_left(live, tube)
        live.pause(tube, pause_s, by)
        return UndoPause(tube, before_s, pause_s)

    token = site.undos.keep(person, await site.questions.ask_once(person, pause))
    message = f"{tube} is paused for {units.age(pause_s)}" if pause_s else f"{tube} is not paused any more"
    note(request, message, back, token)
    return redirect(request, back, message, token)


async def policy(request: Request) -> Response:
    """Set or unset one key of a policy."""
    site, fields = site_of(request), await form(request)
    pattern, key, value = (fields.get(name, "").strip() for name in ("pattern", "key", "value"))
    if not pattern:
        return tell(request, back_of(request, fields), WrongForm("/policy", "pattern", "say for which tubes", fields))
    if not value and not fields.get("unset"):
        return tell(request, back_of(request, fields), WrongForm("/policy", "value", "say which", fields))
    how: Record = {"unset": [key]} if fields.get("unset") else {"set": {key: value}}
    what = {"pattern": pattern, **how, **on_behalf(request)}
    try:
        reply = await site.questions.ask_once(person_of(request), lambda live: live.ask("set-policy", what))
    except (Unreachable, Unauthorized):
        raise
    except BeanliteError as error:
        field = field_of(error, ("pattern",), "value")
        return tell(request, back_of(request, fields), WrongForm("/policy", field, str(error), fields))
    lines = changes_text(reply["changes"]) or ["Nothing has changed"]
    if reply["changes"]:
        note(request, "; ".join(lines), back_of(request, fields))
    return redirect(request, back_of(request, fields), "; ".join([*lines, *reply["warnings"]]))


@once
async def schedule(request: Request) -> Response:
    """Set a schedule, have it put its job now, or remove it."""
    site, fields = site_of(request), await form(request)
    name, do = fields.get("name", "").strip(), fields.get("do", "")
    if do == "set":
        return await _set_schedule(request, name, fields)
    if do not in {"run", "unset"}:
        raise ConfigError("do: missing")
    person, by = person_of(request), on_behalf(request)
    if do == "run":
        job_id, is_new = await site.questions.ask_once(person, partial(run_schedule, name=name, person=by))
        if not is_new:
            message = f"Nothing was put: job {job_id} has this body already, {ONCE.format('the tube')}"
            return redirect(request, back_of(request, fields), message)
        message = f"Job {job_id} was put by {name}"
    else:
        await site.questions.ask_once(person, lambda live: live.ask("unset-schedule", {"name": name, **by}))
        message = f"The schedule {name} was removed"
    note(request, message, back_of(request, fields))
    return redirect(request, back_of(request, fields), message)


async def _set_schedule(request: Request, name: str, fields: dict[str, str]) -> Response:
    site, back = site_of(request), back_of(request, fields)
    try:
        what = {**schedule_in(fields), **on_behalf(request)}
        await site.questions.ask_once(person_of(request), lambda live: live.ask("set-schedule", what))
    except (Unreachable, Unauthorized):
        raise
    except BeanliteError as error:
        field = field_of(error, ("name", "zone", "tube"), "when")
        why = error.why if isinstance(error, Mistake) else str(error)
        return tell(request, back, WrongForm("/schedule", field, why, fields))
    message = f"The schedule {name} was set"
    note(request, message, back)
    return redirect(request, back, message)


async def back_up(request: Request) -> Response:
    """Make a backup, if the user may do everything."""
    site = site_of(request)
    folder = site.backups
    if folder is None:
        raise ConfigError("no folder for backups is configured")
    if not (await site.questions.ask(person_of(request), Live.rights)).everything:
        raise Unauthorized("A backup takes the role operator on all tubes, which no rule of the server gives here")
    making = folder.begin()
    await asyncio.wait([making], timeout=WAIT_S)
    if folder.is_busy or folder.error:
        return RedirectResponse(f"{root_of(request)}/backups", 303)
    return redirect(request, f"{root_of(request)}/backups", "A backup was made")


def _request(fields: dict[str, str]) -> tuple[Record, Filter]:
    """Return the change that a form requests, and the filter of its jobs. Mistake or ConfigError: it is wrong."""
    do = fields.get("do", "")
    if do not in DONE_WORDS:
        raise ConfigError("do: missing")
    if fields.get("scope") == "ticked" and not fields.get("ids"):
        raise Mistake("ids", "no job is selected")
    if fields.get("scope") == "all":
        fields.pop("ids", None)
    elif fields.get("ids"):
        fields["q"] = without(fields.get("q", ""), "id")
    which = filter_of(fields)
    if which.criteria().keys() <= {"up_to_id"}:
        raise ConfigError("say which jobs are meant")
    return {"do": do, **_how(do, fields)}, which


def _how(do: str, fields: dict[str, str]) -> Record:
    """Return what a change needs besides the jobs. Mistake: it is missing, or wrong."""
    if do in {"move", "copy"}:
        to = tube_name(fields, "to")
        if not to:
            raise Mistake("to", "say to which tube")
        return {"to": to}
    if do == "reprioritise":
        pri = number(fields, "pri", U32_MAX)
        if pri is None:
            raise Mistake("pri", "say which")
        return {"pri": pri}
    if do == "note":
        note = text_in(fields, "note")
        size = len(note.encode())
        if size > NOTE_BYTES_MAX:
            raise Mistake("note", f"{NOTE_BYTES_MAX:,} bytes at most, and this has {size:,}")
        return {"note": note}
    if do == "delay":
        delay_s = whole_seconds(fields, "delay")
        if not delay_s:
            raise Mistake("delay", _LENGTH)
        return {"delay_s": delay_s}
    return {}


def _outlook(live: Live, what: Record, which: Filter, kept_bytes: int) -> tuple[Result, int, str]:
    """Return how many jobs a change would change, how many of these could not be brought back, and perhaps why."""
    until_s = time.monotonic() + LOOK_S
    outcome = count(live, what, which, until_s)
    if not outcome.ended:
        return outcome, max(outcome.done, 1), "" if what["do"] in {"delete", *_NO_WAY_BACK} else _UNKNOWN
    if kept_bytes:
        return outcome, not_kept(live, which, outcome.done, kept_bytes, until_s), ""
    lost = unrecoverable(live, what, which, outcome.done, until_s) if outcome.done else 0
    too_old, why = expiring(live, what, which, until_s) if outcome.done and not lost else (0, "")
    if too_old:
        return outcome, too_old, f"They can't be brought back: {why}."
    is_unknown = outcome.done and not lost and time.monotonic() >= until_s
    return (outcome, outcome.done, _UNKNOWN) if is_unknown else (outcome, lost, "")
