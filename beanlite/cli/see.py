"""``beanlite tubes``, ``job``, ``clients``, ``stats``, ``tail``."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from beanlite.cli import completion
from beanlite.cli.groups import (
    Json,
    Limit,
    ServerOption,
    ServerOrFile,
    age_option,
    as_id,
    grouped,
    open_stored,
)
from beanlite.console import listing, tables, units
from beanlite.console.bodies import FORMS
from beanlite.console.filters import WILDCARDS, JobId, Record, encode_tube, job_name, own_ids
from beanlite.console.live import Live
from beanlite.console.several import Several, named_each, summed
from beanlite.errors import BeanliteError, ConfigError
from beanlite.journal.lines import body_of

if TYPE_CHECKING:
    from beanlite.console.listing import Source
    from beanlite.console.stored import Stored

EPILOG: Final = dict.fromkeys(
    ("tubes", "job", "stats"),
    "Exit codes: 0 done; 1 a server can't be reached or refuses the command, or there is no such job or tube; 2 a"
    " wrong setting or flag; 3 the database was refused, or is damaged; 130 Ctrl-C.",
) | dict.fromkeys(
    ("clients", "tail"),
    "Exit codes: 0 done; 1 a server can't be reached or refuses the command, or there is no such tube; 2 a wrong"
    " setting or flag; 130 Ctrl-C.",
)
EXAMPLES: Final = """
beanlite tubes
beanlite tubes 'mail*' --sort buried
beanlite tubes --sort ready --over 10s                      when will they be empty?
beanlite tubes --db /backups/queue.db --json

beanlite job 17
beanlite job 17 --body hex
beanlite job 17 --db /var/lib/beanlite/beanlite.db          with its history, if any

beanlite clients
beanlite clients --tube mail --sort hold                    who has had a job of mail for longest?
beanlite clients --connect unix:/run/beanlite/queue.sock --json

beanlite stats
beanlite stats --json --connect queue.example.org:11300
beanlite stats --db beanlite.db

beanlite tail
beanlite tail --tube mail --what bury --what delete
beanlite tail --json | tee -a transitions.jsonl
"""


# The statistics that are bytes, besides those of memory; and those that are moments, 0 if never.
_SIZES: Final = frozenset(
    {
        "max-job-size",
        "binlog-max-size",
        "journal-wal-bytes",
        "bodies-on-disk-bytes",
        "history-bodies-max",
        "disk-free",
        "database-bytes",
    }
)
_MOMENTS: Final = frozenset({"backup-succeeded-at", "backup-failed-at"})
_KIB: Final = 1024


def _words(incomplete: str) -> list[str]:
    from beanlite.core.events import WORDS

    # A shell would take a word with a blank in it for two.
    return [word for word in WORDS if word.startswith(incomplete) and " " not in word]


TubeOfEvents = Annotated[
    str | None,
    typer.Option("--tube", "-t", metavar="TUBE", help="Only events in this tube.", autocompletion=completion.tubes),
]
What = Annotated[
    list[str] | None,
    typer.Option(metavar="WORD", help="Only this kind of event, such as bury; repeatable.", autocompletion=_words),
]


@grouped
def tubes(
    like: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Tubes with this name; * is any text, ? any character.",
            autocompletion=completion.tubes,
        ),
    ] = "*",
    *,
    sort: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help=f"One of {', '.join(listing.TUBE_SORTS)}.",
            autocompletion=completion.one_of(listing.TUBE_SORTS),
        ),
    ] = "name",
    over: Annotated[
        float, age_option("--over", text="Measure for this long, such as 10s, how fast jobs come and go.")
    ] = 0,
    limit: Limit = 100,
    place: ServerOrFile,
    as_json: Json = False,
) -> None:
    """Show the tubes, and how many jobs each has.

    Failed are reservations that ended otherwise than by a delete, since the server's start; with --db in this hour and
    the last. Rates, and when a tube will be empty, are shown with --over, as measured for so long, or with --db, as the
    means of this hour and the last; "why" goes by the last minutes. A small tube in which about as many jobs come as go
    is steady, and shows no time.
    """
    with place.source() as source:
        records, total = listing.tubes(source, like, sort, limit, over)
        if not records and not WILDCARDS & set(like):
            source.check_tube(like)
    if as_json:
        tables.print_json(records)
    elif not tables.print_table(records, tables.TUBES):
        print("no tubes", file=sys.stderr)
    if len(records) < total:
        print(f"These are {len(records):,} of {total:,} tubes: --limit", file=sys.stderr)


@grouped
def job(
    job_id: Annotated[JobId, typer.Argument(metavar="ID", parser=as_id, help="The job; of several servers, two:17.")],
    *,
    body: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help=f"How to show the body: {', '.join(FORMS)}. With raw, nothing else is printed.",
            autocompletion=completion.one_of(FORMS),
        ),
    ] = "auto",
    place: ServerOrFile,
    database: Annotated[
        str | None, typer.Option("--database", metavar="URL", help="Read this PostgreSQL database instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show everything known about a job.

    With --db or --database also its history, as far as the server keeps one, even if the job has gone; and its body, if
    the history keeps those of deleted jobs. Dates are in UTC.
    """
    if body not in FORMS:
        raise ConfigError(f"--body: there is no form {body!r}, only {', '.join(FORMS)}")
    if database is not None and (place.connect or place.servers):
        raise ConfigError("--connect and --database exclude each other")
    with place.source() if database is None else open_stored(place.db, database, None) as source:
        jobs = _find(source, job_id)
        kept = _kept(source, jobs)
    if not jobs:
        none = "no server that answers has a" if isinstance(source, Several) and source.away else "there is no"
        raise BeanliteError(f"{none} job {job_id}{'' if place.db or database else _past_of(job_id)}")
    if body == "raw" and len(jobs) > 1:
        raise BeanliteError(f"several servers have a job {job_id}: {', '.join(map(job_name, jobs))}")
    for at, facts in enumerate(jobs):
        if at and not as_json:
            print()
        _show(facts, job_id, body, as_json=as_json)
    if kept and body != "raw" and not as_json:
        print(kept)


def _kept(source: "Source | Stored", found: list[Record]) -> str:
    """Return why a database does not know of the put of a job, if that is so."""
    if isinstance(source, (Live, Several)) or not found:
        return ""
    history = found[0]["history"]
    if history and history[0]["what"] == "put":
        return ""
    return f"\n{'its put is not in its' if history else 'it has no'} history; {source.kept(found[0].get('created_at'))}"


def _find(source: "Source | Stored", job_id: JobId) -> list[Record]:
    """Return all facts about a job, or about those of several servers that have this id."""
    if isinstance(source, Several):
        return source.show_jobs(job_id)
    (own_id,) = own_ids([job_id], source.server if isinstance(source, Live) else "")
    facts = source.show_job(own_id)
    return [] if facts is None else [facts]


def _show(facts: Record, job_id: JobId, body: str, *, as_json: bool) -> None:
    if as_json:
        text = body_of(facts.pop("body")) if "body" in facts else {}
        tables.print_json([{**facts, **text}])
    elif body == "raw":
        if "body" not in facts:
            raise BeanliteError(f"job {job_id} has gone, and its body with it")
        sys.stdout.buffer.write(facts["body"])
    else:
        print(tables.job_text(facts, body))


@grouped
def clients(
    *,
    tube: Annotated[
        str | None,
        typer.Option(
            "--tube",
            "-t",
            metavar="TUBE",
            help="Only clients that use or watch this tube.",
            autocompletion=completion.tubes,
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help=f"One of {', '.join(listing.CLIENT_SORTS)}.",
            autocompletion=completion.one_of(listing.CLIENT_SORTS),
        ),
    ] = "number",
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Show the connected clients.

    The list includes what each uses, watches, waits for and holds, but not the connection of this command. It is sorted
    by the number, or with the largest first: jobs held, or for how long a client has held one, is silent or connected.

    Those that seem stuck are marked: "touches" if a client has kept a job beyond its ttr by touching it, "silent" if it
    holds jobs and has sent nothing for ten minutes. One that hangs for less than that is found by --sort hold.
    """
    with server.open() as source:
        records = listing.clients(source, tube, sort)
        if tube is not None and not records:
            source.check_tube(tube)
    if as_json:
        tables.print_json(records)
    elif not tables.print_table(records, tables.CLIENTS):
        print("no clients", file=sys.stderr)


@grouped
def stats(*, place: ServerOrFile, as_json: Json = False) -> None:
    """Show the server's statistics.

    Most names begin with what they are about: current-, cmd-, total-, journal-, memory-, bodies-, refused-, backup-,
    disk-, database-; "beanlite stats | grep disk" finds one. With --db: which server has or last had that file, since
    when (in UTC), and how many jobs it holds.
    """
    with place.source() as source:
        if isinstance(source, Several):
            _show_each(source.each(Live.stats), as_json=as_json)
            return
        facts = source.stats()
    if as_json:
        tables.print_json([facts])
    else:
        tables.print_facts({key: _with_unit(key, value) for key, value in facts.items()})


def _show_each(stats: Mapping[str, Record], *, as_json: bool) -> None:
    """Print the statistics of several servers beside each other, after their sums."""
    if as_json:
        tables.print_json(named_each(stats))
        return
    sums = summed(stats.values())
    rows = [
        {"": key, "sum": sums.get(key), **{f"at {name}": each.get(key) for name, each in stats.items()}}
        for key in dict.fromkeys(key for each in stats.values() for key in each)
    ]
    titles = {"": "", "sum": "sum", **{f"at {name}": name for name in stats}}
    columns = [tables.Column(key, title, str, shrinks=not title) for key, title in titles.items()]
    tables.print_table(rows, columns)


@grouped
def tail(
    tube: TubeOfEvents = None,
    what: What = None,
    *,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Show what happens to jobs, until Ctrl-C.

    Each event is shown as soon as it is durable. Dates are in UTC.
    """
    if tube is not None:
        encode_tube(tube)
    from beanlite.core.events import RESTART, WORDS

    check_words(what, [word for word in WORDS if word != RESTART])  # that is over before a client is served
    with server.open() as source:
        if tube is not None and not source.list_tubes({"names": [tube]})["tubes"]:
            print(f"{source.no_tube(tube)}; waiting for one of that name", file=sys.stderr)
        if isinstance(source, Several):
            server.report()
            source.on_away = server.report
        for event in source.watch({"tube": tube, "what": what}):
            if as_json:
                tables.print_json([event])
            else:
                print(tables.event_line(event))
            sys.stdout.flush()


def _with_unit(key: str, value: object) -> object:
    """Return a statistic as it is, followed by what it means if that is hard to see."""
    if key in _MOMENTS and isinstance(value, int):
        return f"{value} ({units.utc(value) if value else 'never'})"
    if key == "uptime" and isinstance(value, int):
        return f"{value} ({units.age(value)})"
    is_size = isinstance(value, int) and value >= _KIB and (key.startswith("memory-") or key in _SIZES)
    return f"{value} ({units.size(value)})" if is_size else value  # type: ignore[arg-type]


def _past_of(job_id: int) -> str:
    return f"; beanlite job {int(job_id)} --db PATH shows what the database still has of it"


def check_words(what: list[str] | None, words: Sequence[str]) -> None:
    """Check the words of ``--what``. ConfigError: one is none of ``words``."""
    for word in what or ():
        if word not in words:
            raise ConfigError(f"--what: there is no event {word!r}, only {', '.join(words)}")
