"""``beanlite schedule``, with commands of its own."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.beanstalk.client import TIMEOUT_S
from beanlite.cli import completion
from beanlite.cli.epilogs import epilog
from beanlite.cli.groups import Json, ServerOption, age_option, grouped, seconds_of
from beanlite.cli.options import tell_those_there
from beanlite.cli.paths import as_path
from beanlite.cli.printing import prefix, print_done, server_key
from beanlite.cli.source import reader
from beanlite.client.calls import PRI, TTR_S
from beanlite.console import tables, timetable, units
from beanlite.console.filters import JobId, Record, encode_tube
from beanlite.console.live import Live, by_me
from beanlite.console.putting import run_schedule
from beanlite.console.routing import all_of, home, naming
from beanlite.console.several import Servers, Several
from beanlite.core.job import U32_MAX
from beanlite.core.recurrence import EVERY, FIELDS, UTC_ZONE, next_after
from beanlite.core.scheduler import BODY_MAX
from beanlite.core.schedules import NAME_MAX, ONCE, SKIP, is_schedule_name
from beanlite.errors import BeanliteError, ConfigError
from beanlite.journal.lines import body_of

EPILOG: Final = (
    "Exit codes: 0 done; 1 a server can't be reached or refuses the command, there is no such schedule, or FILE can't"
    " be read; 2 a wrong setting or flag; 130 Ctrl-C."
)
EXAMPLES: Final = """
beanlite schedule set nightly --cron '0 3 * * *' --zone Europe/Berlin --tube reports --body nightly
beanlite schedule set poll --every 5min --tube feeds --file poll.json
beanlite schedule set monthly --cron '0 6 1 * *' --tube bills --body all --missed once

beanlite schedule list
beanlite schedule list --json

beanlite schedule run nightly

beanlite schedule unset nightly
"""

schedule = typer.Typer(
    help="Have the server put jobs by itself, at certain times.\n\ndocs/schedules.md has the details."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]


@schedule.command("set", epilog=epilog("schedule set", EXAMPLES, EPILOG))
@grouped
def set_(
    name: Name,
    *,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="FIELDS", help="When: minute, hour, day of the month, month and day of the week, as in crontab."
        ),
    ] = None,
    every: Annotated[
        float | None,
        age_option(
            "--every", text="Or how often, such as 90s, 5min or 2h, counted from midnight UTC on 1 January 1970."
        ),
    ] = None,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="The zone of --cron, such as Europe/Berlin.")] = UTC_ZONE,
    tube: Annotated[
        str,
        typer.Option(
            "--tube", "-t", metavar="TUBE", help="The tube to put the jobs in.", autocompletion=completion.tubes
        ),
    ],
    body: Annotated[str | None, typer.Option(metavar="TEXT", help="The body of the jobs.")] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=as_path, help="A file with the body; - is stdin.")
    ] = None,
    pri: Annotated[int, typer.Option(min=0, max=U32_MAX, metavar="N", help="The pri; 0 comes first.")] = PRI,
    ttr: Annotated[float, age_option("--ttr", text="How long a client may hold a job. Default: 60s.")] = TTR_S,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Put a job even while the last one is still there.")
    ] = False,
    missed: Annotated[
        str,
        typer.Option(
            metavar="skip|once",
            help="What becomes of times at which no server ran: left out, or made up for by one job.",
        ),
    ] = SKIP,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Set a schedule, or change it.

    No job is put while the last one is still in the queue, in whichever state, unless --overlap is given.
    """  # fmt: skip
    _check(name)
    encode_tube(tube)
    if missed not in {SKIP, ONCE}:
        raise ConfigError(f"--missed: it is {SKIP} or {ONCE}, not {missed!r}")
    request = {
        "name": name,
        "when": _when(cron, every, zone),
        "zone": zone,
        "tube": tube,
        **body_of(_body(body, file)),
        "pri": pri,
        "ttr_s": seconds_of("--ttr", ttr),
        "if_absent": not overlap,
        "missed": missed,
    }
    with server.open(TIMEOUT_S) as servers:
        own, live = _home(servers, tube, name)
        with naming(own):
            reply = _ask(live, "set-schedule", request)
    if as_json:
        print_done(json.dumps({**server_key(own), "name": name, **reply}))
    else:
        print_done(f"{prefix(own)}{name} puts its next job at {units.utc(reply['next_at'])} UTC")


@schedule.command("list", epilog=epilog("schedule list", EXAMPLES, EPILOG))
@grouped
def list_(*, server: ServerOption, as_json: Json = False) -> None:
    """Show all schedules, when each puts its next job, and when it put its last. Times are UTC.

    Also shows what a schedule waits for: its last job, which is still there, or a tube or server that refuses puts; and
    the first time since its last job, or since it was set, at which none was put: for that reason, or because no server
    ran.
    """
    with server.open() as servers:
        records = timetable.of_all(servers)
    if as_json:
        tables.print_json(records)
    elif not tables.print_table(records, tables.SCHEDULES):
        print("no schedules", file=sys.stderr)


@schedule.command(epilog=epilog("schedule run", EXAMPLES, EPILOG))
@grouped
def run(name: Name, *, server: ServerOption, as_json: Json = False) -> None:
    """Put a schedule's job now.

    Its next time stays as it is. The id of the job is printed.
    """
    _check(name)
    with server.open(TIMEOUT_S) as servers:
        owners = _owners(servers, name)
        if len(owners) > 1:
            raise BeanliteError(f"{all_of(owners)} have a schedule {name} each: name one by --connect")
        (own,) = owners
        with naming(own):
            number, is_new = run_schedule(servers.lives[own], name, by_me())
    job_id = JobId.of(own, number)
    job_id.was_there = not is_new
    print_done(json.dumps(job_id.record()) if as_json else str(job_id))
    tell_those_there([job_id] if job_id.was_there else [])


@schedule.command(epilog=epilog("schedule unset", EXAMPLES, EPILOG))
@grouped
def unset(name: Name, *, server: ServerOption, as_json: Json = False) -> None:
    """Remove a schedule.

    The jobs that it has put stay.
    """
    _check(name)
    with server.open(TIMEOUT_S) as servers:
        for own in _owners(servers, name):
            with naming(own):
                _ask(servers.lives[own], "unset-schedule", {"name": name})
            print_done(json.dumps({**server_key(own), "name": name}) if as_json else f"{prefix(own)}{name} is unset")


def _owners(servers: Servers, name: str) -> list[str]:
    """Return the servers that have a schedule. BeanliteError: none has it."""
    if not isinstance(servers, Several):
        return list(servers.lives)
    owners = _servers_with(servers, name)
    if not owners:
        raise BeanliteError(f"no server {'that answers ' if servers.away else ''}has a schedule {name}")
    return owners


def _home(servers: Servers, tube: str, name: str) -> tuple[str, Live]:
    """Return the server at which a schedule of a tube is set. BeanliteError: another one has it, and would keep it."""
    owners = _servers_with(servers, name)
    own, live = home(servers, tube)
    others = [each for each in owners if each != own]
    if others:
        raise BeanliteError(f"{tube} belongs to {own}, and {all_of(others)} has a schedule {name}: unset that first")
    return own, live


def _servers_with(servers: Servers, name: str) -> list[str]:
    """Return which of several servers have a schedule of this name."""
    if not isinstance(servers, Several):
        return []
    return [record["server"] for record in servers.list_schedules({"name": name})["schedules"]]


def _check(name: str) -> None:
    if not is_schedule_name(name):
        raise ConfigError(f"the name of a schedule has 1 to {NAME_MAX} printable characters, and no blank: {name!r}")


def _one_of(flag: str, value: object, other_flag: str, other: object) -> None:
    """ConfigError: both flags are given, or neither."""
    if value is None and other is None:
        raise ConfigError(f"{flag} or {other_flag} is missing; beanlite schedule set --help tells how")
    if value is not None and other is not None:
        raise ConfigError(f"{flag} and {other_flag} exclude each other")


def _when(cron: str | None, every_s: float | None, zone: str) -> str:
    """Return when, as the protocol has it. ConfigError: it is no such time."""
    _one_of("--cron", cron, "--every", every_s)
    if every_s is None:
        assert cron is not None
        if len(cron.split()) != FIELDS:
            raise ConfigError(
                f"--cron: {cron!r} has not five fields: minute, hour, day of the month, month and day of the week"
            )
        try:
            next_after(cron, UTC_ZONE, time.time())  # which zones there are is up to the server
        except ValueError as why:
            raise ConfigError(f"--cron: {why}") from None
        return cron
    if zone != UTC_ZONE:
        raise ConfigError("--zone goes with --cron; --every counts in UTC")
    seconds = seconds_of("--every", every_s)
    for unit, length_s in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds and seconds % length_s == 0 and seconds // length_s < 1_000_000:
            return f"{EVERY}{seconds // length_s}{unit}"
    raise ConfigError("--every: at least 1s, and whole minutes if it is longer than 999999s")


def _body(text: str | None, file: Path | None) -> bytes:
    """Return the body. ConfigError: it is not given in one way. BeanliteError: the file can't be read."""
    _one_of("--body", text, "--file", file)
    if file is None:
        assert text is not None
        return text.encode(errors="surrogateescape")
    with reader(file) as source:
        body = source.read(BODY_MAX + 1)
    if len(body) > BODY_MAX:
        raise BeanliteError(f"{file} is larger than {BODY_MAX:,} bytes, which are the most for a schedule")
    return body


def _ask(live: Live, word: str, request: Record) -> Record:
    return live.ask(word, {**request, **by_me()})
