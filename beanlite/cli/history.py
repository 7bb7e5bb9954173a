"""``beanlite history`` and ``undelete``."""

import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from heapq import merge
from typing import TYPE_CHECKING, Annotated, Final

import typer

from beanlite.beanstalk.client import TIMEOUT_S
from beanlite.cli import see
from beanlite.cli.groups import (
    NAMED,
    Ids,
    Json,
    Limit,
    ServerOption,
    age_option,
    as_id,
    grouped,
    moment_option,
    open_stored,
    seconds_of,
)
from beanlite.cli.options import ConfigFile, Database, Db, ids_text, tell_those_there
from beanlite.cli.printing import print_done
from beanlite.client.calls import TTR_S
from beanlite.console import tables, units
from beanlite.console.filters import JobId, Record, filter_by, own_ids
from beanlite.console.live import login_name
from beanlite.console.putting import NewJob, put as put_all
from beanlite.console.several import Several
from beanlite.errors import BeanliteError, ConfigError

if TYPE_CHECKING:
    from beanlite.console.stored import Stored

EPILOG: Final = {
    "history": see.EPILOG["job"],
    "undelete": (
        "Exit codes: 0 done; 1 the server or the database can't be reached, or the server refuses a job, or a body is"
        " not kept; 2 a wrong setting or flag; 3 the database was refused, or is damaged; 130 Ctrl-C (what is printed"
        " was put)."
    ),
}
EXAMPLES: Final = """
beanlite history --operators --since 02:00                  what has been changed since 2 o'clock
beanlite history --by ann --what delete --since 24h
beanlite history --where customer=4711                      the deleted jobs of a customer
beanlite history --tube mail --what pause                   when it was paused, and by whom
beanlite history --id 17 --db /backups/queue.db
beanlite history --database postgresql://beanlite@db1,db2/queue

beanlite undelete 17 18
beanlite undelete --by ann --since 02:00 --dry-run          how many has ann deleted since 2 o'clock?
beanlite undelete --by ann --since 02:00 --where customer=4711
"""
By = Annotated[
    str | None,
    typer.Option(metavar="WHO", help="Only what this person has done, a client (its host or address) or policy."),
]
Since = Annotated[float | None, moment_option(text="Only from this moment on: 02:00, 24h (ago) or 2026-11-27 14:30.")]
Until = Annotated[float | None, moment_option(text="Only up to this moment.", is_end=True)]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH=VALUE",
        help="Only deletions whose body was kept, with this value at this path in it: customer=4711. Repeatable.",
    ),
]

# How many events are read at least: those that recur become one line.
_READ_MIN: Final = 10_000
_NOTHING_PUT: Final = "nothing was put (bodies are kept with the server's setting history_bodies)"
# What may be given as a person by those who look for what any operator has done.
_OPERATORS: Final = frozenset({"operator", "operators"})


def history(
    *,
    job_id: Annotated[
        JobId | None, typer.Option("--id", parser=as_id, metavar="ID", help="Only events of this job.")
    ] = None,
    tube: see.TubeOfEvents = None,
    what: see.What = None,
    by: By = None,
    operators: Annotated[
        bool, typer.Option("--operators", help="Only what operators have done, be it by a command or on the page.")
    ] = False,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    limit: Limit = 100,
    db: Annotated[
        list[str] | None,
        typer.Option(
            "--db",
            "-b",
            metavar="PATH",
            help="The database file; repeatable with names, one=PATH two=PATH. Default: db in the server's settings.",
        ),
    ] = None,
    database: Database = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show what has happened to jobs and tubes, the last events.

    What operators do is always kept, with their names; everything else as the server's setting history says. Read from
    the database. Dates are in UTC. Events that recur are one line, unless --limit 0 or --json shows each.
    """
    from beanlite.core.events import WORDS

    see.check_words(what, WORDS)
    asked = _conditions(tube, by, since, until, where, id=job_id, what=what, operators=operators or None)
    with ExitStack() as stack:
        paths = _paths(db or [], job_id)
        if paths and database is not None:
            raise ConfigError("--db and --database exclude each other")
        files = {name: stack.enter_context(open_stored(path, None, config_file)) for name, path in paths.items()}
        files = files or {"": stack.enter_context(open_stored(None, database, config_file))}
        if as_json or not limit:
            count = _print_each(_merged(files, asked, limit), as_json=as_json)
            more = 0 < limit == count
        else:
            most = max(limit, _READ_MIN)
            events = list(_merged(files, asked, most))
            lines = tables.history_lines(events, of_one_job=job_id is not None and len(files) == 1)
            count, more = len(lines[-limit:]), len(lines) > limit or len(events) == most
            for line in lines[-limit:]:
                print(line)
        if not count:
            if tube is not None and len(files) == 1:
                next(iter(files.values())).check_tube(tube)
            print(_nothing(files, asked), file=sys.stderr)
    if more:
        print(f"These are the last {count:,} lines; there may be more: --limit", file=sys.stderr)


def _nothing(files: "Mapping[str, Stored]", asked: Record) -> str:
    """Return what to say if there are no such events."""
    if asked.get("operators"):
        return "no events"
    if asked.get("by") in _OPERATORS:
        return "no events; --by takes a name: what any operator has done is told by --operators"
    of = f" of {asked['tube']}" if "tube" in asked else f" of job {asked['id']}" if "id" in asked else ""
    kept = {f"in {name}, {file.kept()}" if name else file.kept() for name, file in files.items()}
    return f"no events{of}; {'; '.join(sorted(kept))}"


def _paths(db: list[str], job_id: JobId | None) -> dict[str, str]:
    """Return the files that may know of a job, if one is asked for, by the names of their servers.

    A single file is shown without a name, so its name is empty. ConfigError: a name is missing, or of no file.
    """
    pairs = [_parted(text) for text in db]
    if len(pairs) < 2:
        name, path = pairs[0] if pairs else ("", "")
        own_ids([] if job_id is None else [job_id], name)
        return {"": path} if pairs else {}
    paths = {name: path for name, path in pairs if name}
    if len(paths) < len(db):
        raise ConfigError("--db: give each of several files a name of its own: --db one=PATH --db two=PATH")
    if job_id is None or job_id.server is None:
        return paths
    if job_id.server not in paths:
        raise ConfigError(f"--id: there is no {job_id.server}, only {', '.join(paths)}")
    return {job_id.server: paths[job_id.server]}


def _parted(text: str) -> tuple[str, str]:
    """Return the name and the path of a file; a file whose own name has an equals sign has none."""
    match = NAMED.fullmatch(text)
    if match is None or not match["name"] or not match["address"] or os.path.lexists(text):
        return "", text
    return match["name"], match["address"]


def _merged(files: "Mapping[str, Stored]", asked: Record, limit: int) -> Iterable[Record]:
    """Return the last events of all files, 0 meaning all, the oldest first; of several each has its server."""
    if "" in files:
        return files[""].look.history(asked, limit)
    parts = [map({"server": name}.__or__, file.look.history(asked, limit)) for name, file in files.items()]
    events = merge(*parts, key=lambda event: event["at"])
    return deque(events, maxlen=limit) if limit else events


def _print_each(events: Iterable[Record], *, as_json: bool) -> int:
    """Print a line for each event; return how many there were."""
    count = 0
    for event in events:
        count += 1
        if as_json:
            tables.print_json([event])
        else:
            print(tables.event_line(event))
    return count


@grouped
def undelete(
    ids: Ids = None,
    *,
    tube: see.TubeOfEvents = None,
    by: By = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    ttr: Annotated[
        float, age_option("--ttr", text="How long a client may hold a job, which is not kept. Default: 60s.")
    ] = TTR_S,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, only report how many jobs it would be.")
    ] = False,
    db: Db = None,
    database: Database = None,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Put deleted jobs again, as new jobs.

    Only those whose bodies the history keeps, with the server's setting history_bodies; without IDs and --by, only
    those that operators have deleted. They are ready, with their tubes, pris and bodies, but new ids; the output has
    the old id of each and the new one.
    """
    places = server.places.places
    named = own_ids(ids or [], places[0].name if len(places) == 1 else "")
    asked = _conditions(tube, by, since, until, where, ids=named or None)
    if not asked:
        raise ConfigError("which jobs? say their ids, --tube, --by, --since, --until or --where")
    if not named and by is None:
        asked["operators"] = True
    ttr_s = seconds_of("--ttr", ttr)
    with open_stored(db, database, server.config_file) as file:
        old_ids = list(dict.fromkeys(file.look.deletions_of(asked)))  # an import may have it deleted twice
        if missing := sorted(set(named) - set(old_ids)):
            raise BeanliteError(f"the history has no body of {ids_text(missing)}; {_NOTHING_PUT}")
        if dry_run:
            would = {"do": "undelete", "done": len(old_ids), "dry_run": True}
            print(json.dumps(would) if as_json else f"{units.jobs(len(old_ids))} would be put again")
            return
        if not old_ids:
            raise BeanliteError(f"the history has no body of such a job; {_NOTHING_PUT}")
        there: list[JobId] = []
        with ExitStack() as stack, server.open(TIMEOUT_S) as servers:
            stack.callback(tell_those_there, there)
            done: list[int] = []
            for new_ids in put_all(
                servers, _put_again(file, old_ids, ttr_s, done), login_name(), doubt=partial(_in_doubt, done)
            ):
                pairs = zip(new_ids, done, strict=False)  # a job more may have been read
                lines = [
                    json.dumps({**new.record(), "was": old})
                    if as_json
                    else f"job {old} is not put: job {new} has its body"
                    if new.was_there
                    else f"job {old} is job {new} now"
                    for new, old in pairs
                ]
                there += [new for new in new_ids if new.was_there]
                del done[: len(new_ids)]
                print_done("\n".join(lines), "jobs are put, but not all of their ids can be printed")
            if isinstance(servers, Several):
                servers.away.clear()  # none of those was needed


def _put_again(file: "Stored", ids: list[int], ttr_s: int, read: list[int]) -> Iterator[NewJob]:
    """Yield deleted jobs as new ones, and note the ids of those in ``read``."""
    for job_id in ids:
        job = file.look.deleted_job(job_id)
        if job is not None:  # the history may have forgotten it by now
            read.append(job_id)
            yield NewJob(job["body"], job["tube"], job["pri"], 0, ttr_s)


def _in_doubt(read: list[int], number: int) -> str:
    """Name this many jobs, which may have been put. All of them: they are to be looked at before another attempt."""
    return f"these were put again: {', '.join(map(str, read[:number]))}"


def _conditions(
    tube: str | None, by: str | None, since: float | None, until: float | None, where: list[str] | None, **more: object
) -> Record:
    """Return which events are meant. ConfigError: there can't be such ones."""
    which = {
        "tube": tube,
        "by": by,
        "since_at": since,
        "until_at": until,
        "where": filter_by(where=where).where or None,
    }
    return {key: value for key, value in {**which, **more}.items() if value is not None}
