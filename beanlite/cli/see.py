"""``beanlite tubes``, ``jobs``, ``job``, ``clients``, ``stats``, ``tail``."""

import sys
from typing import Annotated, Final

import typer

from beanlite.cli.groups import NUMBER_MAX, Json, Limit, ServerOption, ServerOrFile, Which, grouped
from beanlite.console import listing, tables
from beanlite.console.bodies import FORMS
from beanlite.console.filters import WILDCARDS, encode_tube
from beanlite.console.live import Live
from beanlite.core.events import WORDS
from beanlite.errors import BeanliteError, ConfigError
from beanlite.journal.lines import body_of

EPILOG: Final = (
    "Exit codes: 0 done; 1 the server can't be reached or refuses the command, or there is no such job or tube; 2 a"
    " wrong setting or flag; 3 the database was refused, or is damaged; 130 Ctrl-C."
)
EXAMPLES: Final = """
beanlite tubes
beanlite tubes 'mail*' --sort buried
beanlite tubes --db /backups/queue.db --json

beanlite jobs --tube mail --state ready --sort queue -n 1    the next one
beanlite jobs --tube mail --state buried --text timeout
beanlite jobs --state reserved --in-state 1h --json

beanlite job 17
beanlite job 17 --body hex
beanlite job 17 --db /var/lib/beanlite/beanlite.db          with its history, if any

beanlite clients
beanlite clients --connect unix:/run/beanlite.sock --json

beanlite stats
beanlite stats --json --connect queue.example.org:11300
beanlite stats --db beanlite.db

beanlite tail
beanlite tail --tube mail --what bury --what delete
beanlite tail --json | tee -a transitions.jsonl
"""


@grouped
def tubes(
    like: Annotated[
        str, typer.Argument(metavar="NAME", help="Tubes with this name; * is any text, ? any character.")
    ] = "*",
    *,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help=f"One of {', '.join(listing.TUBE_SORTS)}.")] = "name",
    limit: Limit = 100,
    place: ServerOrFile,
    as_json: Json = False,
) -> None:
    """Show the tubes, and how many jobs each has."""
    with place.open() as source:
        records, total = listing.tubes(source, like, sort, limit)
        if not records and not WILDCARDS & set(like):
            source.check_tube(like)
    if as_json:
        tables.print_json(records)
    elif not tables.print_table(records, tables.TUBES):
        print("no tubes", file=sys.stderr)
    if len(records) < total and sys.stderr.isatty():
        print(f"These are {len(records):,} of {total:,} tubes: --limit", file=sys.stderr)


@grouped
def jobs(
    *,
    which: Which,
    sort: Annotated[str, typer.Option(metavar="KEY", help=f"One of {', '.join(listing.JOB_SORTS)}.")] = "id",
    limit: Limit = 100,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue an earlier list that had the same options.")
    ] = None,
    place: ServerOrFile,
    as_json: Json = False,
) -> None:
    """Show jobs, with the first 200 bytes of each body.

    They are sorted by id, the order in which they were put; by queue, the order in which the jobs of one tube and state
    come out of it; by age, in-state, size or timeouts, the largest first; or by pri, the smallest first.
    """
    with place.open() as source:
        filter_ = which.filter()
        page = listing.jobs(source, filter_, sort, limit, after)
        if filter_.tube is not None and not page.records:
            source.check_tube(filter_.tube)
    if as_json:
        tables.print_json(page.records)
    elif not tables.print_table(page.records, tables.JOBS):
        print("no jobs", file=sys.stderr)
    if page.after is not None:
        print(f"There may be more: --after {page.after}", file=sys.stderr)


@grouped
def job(
    job_id: Annotated[int, typer.Argument(metavar="ID", min=1, max=NUMBER_MAX, help="The job.")],
    *,
    body: Annotated[
        str,
        typer.Option(
            metavar="FORM", help=f"How to show the body: {', '.join(FORMS)}. With raw, nothing else is printed."
        ),
    ] = "auto",
    place: ServerOrFile,
    as_json: Json = False,
) -> None:
    """Show everything known about a job.

    With --db also its history, as far as the server keeps one, even if the job has gone. Dates are in UTC.
    """
    if body not in FORMS:
        raise ConfigError(f"--body: there is no form {body!r}, only {', '.join(FORMS)}")
    with place.open() as source:
        facts = source.show_job(job_id)
    if facts is None:
        raise BeanliteError(f"there is no job {job_id}")
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
def clients(*, server: ServerOption, as_json: Json = False) -> None:
    """Show the connected clients.

    The list includes what each uses, watches, waits for and holds, but not the connection of this command.
    """
    with Live(server.address) as source:
        everybody = listing.everything(source.list_clients, {}, "clients")
        records = [client for client in everybody if not client.pop("asks")]
    if as_json:
        tables.print_json(records)
    elif not tables.print_table(records, tables.CLIENTS):
        print("no clients", file=sys.stderr)


@grouped
def stats(*, place: ServerOrFile, as_json: Json = False) -> None:
    """Show the server's statistics.

    With --db: which server has or last had that file, since when (in UTC), and how many jobs it holds.
    """
    with place.open() as source:
        facts = source.stats()
    if as_json:
        tables.print_json([facts])
    else:
        tables.print_facts(facts)


@grouped
def tail(
    tube: Annotated[str | None, typer.Option("--tube", "-t", metavar="TUBE", help="Only events in this tube.")] = None,
    what: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Only this kind of event, such as bury; repeatable.")
    ] = None,
    *,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Show what happens to jobs, until Ctrl-C.

    Each event is shown as soon as it is durable. Dates are in UTC.
    """
    if tube is not None:
        encode_tube(tube)
    for word in what or ():
        if word not in WORDS:
            raise ConfigError(f"--what: there is no event {word!r}, only {', '.join(WORDS)}")
    with Live(server.address) as source:
        if tube is not None and not source.list_tubes({"names": [tube]})["tubes"]:
            print(f"{source.no_tube(tube)}; waiting for one of that name", file=sys.stderr)
        for event in source.watch({"tube": tube, "what": what}):
            if as_json:
                tables.print_json([event])
            else:
                print(tables.event_line(event))
            sys.stdout.flush()
