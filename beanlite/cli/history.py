"""``beanlite history``."""

import sys
from collections.abc import Iterable
from typing import Annotated, Final

import typer

from beanlite.cli import see
from beanlite.cli.groups import NUMBER_MAX, Json, Limit, moment_option
from beanlite.cli.options import ConfigFile, Db, path_of_db
from beanlite.console import tables
from beanlite.console.filters import Record, filter_by

EPILOG: Final = see.EPILOG
EXAMPLES: Final = """
beanlite history --operators --since 02:00                  what has been changed since 2 o'clock
beanlite history --by ann --what delete --since 24h
beanlite history --where customer=4711                      the deleted jobs of a customer
beanlite history --tube mail --what pause                   when it was paused, and by whom
beanlite history --id 17 --db /backups/queue.db
"""
# How many events are read at least: those that recur become one line.
_READ_MIN: Final = 10_000
_KEPT: Final = "those of clients are kept only with the server's setting history"


def history(
    *,
    job_id: Annotated[
        int | None, typer.Option("--id", min=1, max=NUMBER_MAX, metavar="ID", help="Only events of this job.")
    ] = None,
    tube: see.TubeOfEvents = None,
    what: see.What = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Only what this person has done, a client (its host or address) or policy."),
    ] = None,
    operators: Annotated[
        bool, typer.Option("--operators", help="Only what operators have done, be it by a command or on the page.")
    ] = False,
    since: Annotated[
        float | None, moment_option(text="Only from this moment on: 02:00, 24h (ago) or 2026-11-27 14:30.")
    ] = None,
    until: Annotated[float | None, moment_option(text="Only up to this moment.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=VALUE",
            help="Only deletions whose body was kept, with this value at this path in it: customer=4711. Repeatable.",
        ),
    ] = None,
    limit: Limit = 100,
    db: Db = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show what has happened to jobs and tubes, the last events.

    What operators do is always kept, with their names; everything else as the server's setting history says. Read from
    the database file. Dates are in UTC. Events that recur are one line, unless --limit 0 or --json shows each.
    """
    see.check_words(what)
    which = {"id": job_id, "tube": tube, "what": what, "by": by, "since_at": since, "until_at": until}
    which |= {"operators": operators or None, "where": filter_by(where=where).where or None}
    asked = {key: value for key, value in which.items() if value is not None}
    from beanlite.console.file import File  # noqa: PLC0415 - SQLite and its tools are slow to import

    with File(path_of_db(db, config_file)) as file:
        if as_json or not limit:
            count, more = _print_each(file.history(asked, limit), as_json=as_json), False
        else:
            most = max(limit, _READ_MIN)
            events = list(file.history(asked, most))
            lines = tables.history_lines(events, of_one_job=job_id is not None)
            count, more = len(lines[-limit:]), len(lines) > limit or len(events) == most
            for line in lines[-limit:]:
                print(line)
        if not count and tube is not None:
            file.check_tube(tube)
    if not count:
        print("no events" if operators else f"no events; {_KEPT}", file=sys.stderr)
    elif more:
        print(f"These are the last {count:,} lines; there may be more: --limit", file=sys.stderr)


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
