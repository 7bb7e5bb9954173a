"""``beanlite jobs``."""

import sys
from typing import Annotated, Final

import typer

from beanlite.cli import completion, see
from beanlite.cli.groups import Json, Limit, ServerOrFile, grouped
from beanlite.cli.which import Which
from beanlite.console import listing, tables

EPILOG: Final = see.EPILOG
EXAMPLES: Final = """
beanlite jobs --tube mail --state ready --sort queue -n 1    the next one
beanlite jobs --tube mail --state buried --text timeout
beanlite jobs --state reserved --in-state 1h --json
beanlite jobs --where customer=4711 --since 02:00            of one customer, changed since 2 o'clock
beanlite jobs --sort reserves -n 10                          those that fail again and again
"""


@grouped
def jobs(
    *,
    which: Which,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help=f"One of {', '.join(listing.JOB_SORTS)}.",
            autocompletion=completion.one_of(listing.JOB_SORTS),
        ),
    ] = "id",
    limit: Limit = 100,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue an earlier list that had the same options.")
    ] = None,
    place: ServerOrFile,
    as_json: Json = False,
) -> None:
    """Show jobs, with the first 200 bytes of each body.

    They are sorted by id, the order in which they were put; by queue, the order in which the jobs of one tube and state
    come out of it; by age, in-state, size, timeouts or reserves, the largest first; or by pri, the smallest first.
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
