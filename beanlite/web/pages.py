"""Renders pages from templates, and reads the fields of forms."""

import json
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from beanlite.client.calls import PRI, TTR_S
from beanlite.console import query, tables, units
from beanlite.console.bodies import NOT_SHOWN
from beanlite.console.changes import DONE_WORDS
from beanlite.console.filters import STATES, Record, after, encode_tube, filter_by, job_name
from beanlite.console.folding import LINES_MAX
from beanlite.console.units import parse_age
from beanlite.console.why import LASTING, asked_of
from beanlite.core.access import OPERATOR, PRODUCER
from beanlite.core.job import SECOND_NS, U32_MAX
from beanlite.core.operator import CONCERNS
from beanlite.core.policies import KEYS, OFF
from beanlite.core.queues import OFFER_NS
from beanlite.core.recurrence import UTC_ZONE
from beanlite.errors import ConfigError
from beanlite.journal.columns import SHOWN
from beanlite.protocol.arguments import U64_MAX
from beanlite.protocol.operators.filters import Filter
from beanlite.web.notices import Mistake
from beanlite.web.site import path_of, rights_of, root_of, site_of

# How many values a form may have, and how long a value other than a body may be.
_FIELDS_MAX: Final = 1100
_VALUE_MAX: Final = 1000
# The names that browsers take out of a path, and what these end with there.
_FOLDERS: Final = (".", "..")
_NO_FOLDER: Final = "~"
_EXACT: Final = Markup(" data-exact")
_ZONE: Final = Markup(" data-zone")

# What keys do, in the page's scripts; and those of them that change jobs.
KEYS_OF_PAGES: Final = (
    ("/", "search"),
    ("j", "next job"),
    ("k", "previous job"),
    ("Enter", "open the job"),
    ("x", "select the job, or no longer"),
    ("*", "select all on the page, or none"),
    ("K", "kick the selected"),
    ("b", "bury them"),
    ("d", "delete them"),
    ("m", "to which tube they are moved"),
    ("u", "undo"),
    ("p", "put a job"),
    ("g o", "overview"),
    ("g j", "jobs"),
    ("g c", "clients"),
    ("g l", "policies"),
    ("g b", "backups"),
    ("g s", "server"),
    ("r", "halt refreshes, or go on"),
    ("g h", "what was changed here"),
    ("?", "these keys"),
)
_CHANGING: Final = frozenset("x*Kbdmu")
# The pages that only a single server has.
_OF_ONE: Final = frozenset(("g c", "g l", "g b", "g s"))
# Why a job is buried, behind "Buried for 5 min,".
WHY: Final = {
    "client": "by a client",
    "operator": "by an operator",
    "tries": "after too many tries",
    "expired": "because it was too old",
}


def _time(at: float | None, *, exact: bool = False, zone: bool = False) -> Markup:
    """Return a moment as HTML; the page's script converts it to the reader's day.

    It tells the second if the moment is ``exact``, and with ``zone`` the reader's zone.
    """
    if at is None:
        return Markup()
    moment = datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{}"{}{}>{} UTC</time>').format(
        moment.isoformat(timespec="milliseconds"),
        _EXACT if exact else "",
        _ZONE if zone else "",
        moment.strftime("%Y-%m-%d %H:%M:%S"),
    )


def _lasting(seconds: float | None) -> Markup:
    """Return a length of time that ends now as HTML, with its beginning as the title; the page's script converts it."""
    if seconds is None:
        return Markup()
    moment = datetime.fromtimestamp(time.time() - seconds, UTC)
    return Markup('<time datetime="{}" data-age title="since {} UTC">{}</time>').format(
        moment.isoformat(timespec="seconds"), moment.strftime("%Y-%m-%d %H:%M:%S"), units.age(seconds)
    )


def _tick(at: float, days: bool) -> Markup:  # noqa: FBT001 - of templates
    """Return a moment for a tick of a chart, where HTML can't be: the page's script shows it as it does others."""
    moment = datetime.fromtimestamp(at, UTC)
    kind, text = ("day", f"{moment:%b} {moment.day}") if days else ("time", f"{moment:%H:%M}")
    return Markup('<tspan datetime="{}" data-{}>{}</tspan>').format(moment.isoformat(), kind, text)


def _peer(peer: Record | None) -> str:
    return "" if peer is None else tables.peer(peer)


def _holder(peer: Record | None) -> str:
    """Return a client in little room: what it calls itself, or its address."""
    return "" if peer is None else f"{tables.claim(peer).strip() or peer['address']} #{peer['number']}"


def _root_of_record(root: str, record: Mapping[str, Any]) -> str:
    """Return what the paths of the pages begin with that a job or a finding is on: of several servers, that of its."""
    return f"/on/{quoted(record['server'])}" if "server" in record else root


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": units.age,
        "asked_of": asked_of,
        "count": units.count,
        "jobs": units.jobs,
        "peer": _peer,
        "job_name": job_name,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "holder": _holder,
        "lasting": _lasting,
        "quote": quoted,
        "rate": units.rate,
        "size": units.size,
        "tick": _tick,
        "time": _time,
    }
    environment.globals |= {
        "CONCERNS": {do: [state.value for state in states] for do, states in CONCERNS.items()},
        "DO": {do: do.capitalize() for do in DONE_WORDS} | {"note": "Leave a note on"},
        "LONGEST_FIRST": {"reserved": "in-state"},
        "OFF": OFF,
        "ZONE": time.tzname[0],
        "NOT_SHOWN": NOT_SHOWN,
        "OFFER_S": OFFER_NS // SECOND_NS,
        "POLICY_KEYS": tuple(KEYS),
        "LASTING": LASTING,
        "SYNTAX": query.syntax(),
        "SHOWN": (*SHOWN, "tries"),
        "STATES": STATES,
        "WHY": WHY,
        "LINES_MAX": LINES_MAX,
        "link": link,
    }
    return environment


def quoted(text: object) -> str:
    """Return a text as a part of a path.

    Browsers take . and .. for folders, quoted or not: these get another end, which no name of a tube can have.
    """
    return quote(str(text), safe="") + (_NO_FOLDER if text in _FOLDERS else "")


def tube_of(request: Request) -> str:
    """Return the name of the tube in the path of a request."""
    name: str = request.path_params["name"]
    bare = name.removesuffix(_NO_FOLDER)
    return bare if bare in _FOLDERS else name


def link(path: str, /, **query: object) -> str:
    """Return a path with a query of the given values, except those that are empty or None."""
    values = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{path}?{urlencode(values)}" if values else path


_TEMPLATES: Final = _environment()


def render(request: Request, template: str, context: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    """Render a page; ``context`` has its template's variables."""
    user, rights, query = request.state.user, rights_of(request), dict(request.query_params)
    notice = site_of(request).notices.take(query.pop("done", ""))
    common = {
        "path": path_of(request),
        "query": query,
        "here": link(path_of(request), **query),
        "root": root_of(request),
        "root_of": partial(_root_of_record, root_of(request)),
        "members": site_of(request).members,
        "options": site_of(request).options,
        "server": site_of(request).name,
        "user": user.name,
        "may_change": rights.has(OPERATOR),
        "may_put": rights.has(PRODUCER),
        "may_everything": rights.everything,
        "may": lambda role, tube: rights.may(role, tube.encode()),
        "notice": notice,
        "token": secrets.token_urlsafe(16),
        "since": site_of(request).moments.since,
        "undo_label": partial(site_of(request).undos.label, user.name),
        "wrong": notice.wrong,
        "has_db": site_of(request).db is not None,
        "keys": _keys_of(request),
    }
    return HTMLResponse(_TEMPLATES.get_template(template).render(common | dict(context)), status)


def _keys_of(request: Request) -> list[tuple[str, str]]:
    """Return the keys that do something for this user here, and what they do."""
    rights, site = rights_of(request), site_of(request)
    absent = set() if rights.has(OPERATOR) else set(_CHANGING)
    if not rights.has(PRODUCER):
        absent.add("p")
        if not rights.has(OPERATOR) and site.db is None:
            absent.add("g h")
    if site.members and not root_of(request):
        absent |= _OF_ONE
    return [(key, what) for key, what in KEYS_OF_PAGES if key not in absent]


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form, the last value of each name; ``ids`` joins all that are ticked. ConfigError."""
    try:
        pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError as error:
        raise ConfigError("the form can't be read, or has too many values") from error
    fields = dict(pairs)
    if fields.pop("id", None) is not None:
        fields["ids"] = ",".join(value for name, value in pairs if name == "id")
    return fields


def number(fields: Mapping[str, str], name: str, most: int) -> int | None:
    """Return a whole number from 0 on; None if it is left out. Mistake: it is something else, or too large."""
    text = fields.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 20 or int(text) > most:
        raise Mistake(name, f"a whole number from 0 to {most}, not {text[:40]!r}")
    return int(text)


def whole_seconds(fields: Mapping[str, str], name: str) -> int | None:
    """Return a length of time as the server takes it, in whole seconds; None if it is left out. Mistake: it is none."""
    text = fields.get(name, "").strip()
    if not text:
        return None
    try:
        length_s = parse_age(text[:_VALUE_MAX])
    except ValueError as error:
        raise Mistake(name, str(error)) from None
    if length_s > U32_MAX:
        raise Mistake(name, f"{U32_MAX} seconds at most")
    return units.whole_seconds(length_s)


def tube_name(fields: Mapping[str, str], name: str) -> str:
    """Return the name of a tube; empty if it is left out. Mistake: no tube can have it."""
    tube = fields.get(name, "").strip()[:_VALUE_MAX]
    try:
        encode_tube(tube or "default")
    except ConfigError as error:
        raise Mistake(name, str(error)) from None
    return tube


def line_of(fields: Mapping[str, str]) -> str:
    """Return the filter of a form or of the query of a page as one line, whatever fields it is in."""
    return " ".join(part for part in (fields.get("q", "").strip(), query.from_fields(fields)) if part)


def text_in(fields: Mapping[str, str], name: str) -> str:
    """Return the text of a field of several lines; browsers send line breaks as CR LF."""
    return fields.get(name, "").replace("\r\n", "\n")


def schedule_in(fields: Mapping[str, str]) -> dict[str, object]:
    """Return the schedule that a form describes, as a request has it. Mistake: something is missing, or wrong."""
    for key, why in (("name", "say which"), ("when", "say when"), ("tube", "say in which tube")):
        if not fields.get(key, "").strip():
            raise Mistake(key, why)
    pri, ttr_s = number(fields, "pri", U32_MAX), whole_seconds(fields, "ttr")
    return {
        "name": fields["name"].strip(),
        "when": fields["when"].strip(),
        "zone": fields.get("zone", "").strip() or UTC_ZONE,
        "tube": tube_name(fields, "tube"),
        "body": text_in(fields, "body"),
        "pri": PRI if pri is None else pri,
        "ttr_s": TTR_S if ttr_s is None else ttr_s,
        "if_absent": not fields.get("overlap"),
        "missed": "once" if fields.get("once") else "skip",
    }


def filter_of(fields: Mapping[str, str]) -> Filter:
    """Return the filter that a form or the query of a page describes. Mistake: it is malformed.

    It is that of the moment at which it was written, if the form tells that: jobs that have become older since must not
    grow into it.
    """
    up_to_id, now_s = number(fields, "up_to_id", U64_MAX), time.time()
    passed_s = asked_ago_s(fields, now_s)
    zone = units.zone_of_reader(fields.get("zone", ""))
    try:
        which = filter_by(**query.parse(line_of(fields), now_s - passed_s, zone), up_to_id=up_to_id)
    except ConfigError as error:
        raise Mistake("q", str(error)) from None
    return after(which, passed_s)


def asked_ago_s(fields: Mapping[str, str], now_s: float) -> float:
    """Return how long ago the filter of a form was written, if the form tells that; 0 if not. Mistake: it is wrong."""
    asked_ms = number(fields, "asked_ms", U64_MAX)
    return 0.0 if asked_ms is None else max(0.0, now_s - asked_ms / 1000)
