"""``beanlite jobs``."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from beanlite.cli import completion, see
from beanlite.cli.groups import Json, Limit, ServerOrFile, grouped
from beanlite.cli.which import Which
from beanlite.console import grouping, listing, tables, units
from beanlite.console.filters import Record

if TYPE_CHECKING:
    from beanlite.console.listing import Source
    from beanlite.protocol.operators.filters import Filter

EPILOG: Final = see.EPILOG["job"]
EXAMPLES: Final = """
beanlite jobs --tube mail --state ready --sort queue -n 1    the next one
beanlite jobs --tube mail --state buried --text timeout
beanlite jobs --state reserved --in-state 1h --json
beanlite jobs --where customer=4711 --since 02:00            of one customer, changed since 2 o'clock
beanlite jobs --sort reserves -n 10                          those that fail again and again
beanlite jobs --tube 'web*' --tries-min 5 --columns customer,error.type
beanlite jobs --state buried --group-by note                 the top errors, if workers leave notes
beanlite jobs --state buried --group-by error.type           likewise, if they are in the bodies
beanlite jobs --tube mail --state delayed --group-by due     when the next ones come
"""

# How many of the minutes in which most delayed jobs are due are told when not all are shown.
_MOST: Final = 5


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
    columns: Annotated[
        str, typer.Option(metavar="PATHS", help="Also show what is at these paths in JSON bodies: customer,error.type.")
    ] = "",
    group_by: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help=(
                "Show how many jobs have each value at this path in JSON bodies, or of tube, state, why or note; or how"
                " many delayed jobs are due in each minute."
            ),
            autocompletion=completion.one_of((*grouping.FACTS, grouping.DUE)),
        ),
    ] = "",
    place: ServerOrFile,
    as_json: Json = False,
) -> None:
    """Show jobs, with the first 200 bytes of each body.

    They are sorted by id, the order in which they were put; by queue, the order in which the jobs of one tube and state
    come out of it; by age, in-state, size, timeouts or reserves, the largest first; or by pri, the smallest first.
    Groups are sorted by the number of jobs, minutes by the time, in UTC. "tubes --sort due" tells how many jobs are due
    within 30 minutes.
    """
    paths = grouping.paths_of(columns)
    by = grouping.grouping_of(group_by) if group_by not in {"", grouping.DUE} else None
    with place.source() as source:
        filter_ = which.filter()
        if group_by == grouping.DUE:
            _show_due(source, filter_, limit, as_json=as_json)
            return
        if by is not None:
            _group(source, filter_, by, limit, group_by, as_json=as_json)
            return
        page = listing.jobs(source, filter_, sort, limit, after, paths)
        if filter_.tube is not None and not page.records:
            source.check_tube(filter_.tube)
    for record in page.records if paths else ():
        record["values"] = dict(zip(paths, record["values"], strict=True))
    if as_json:
        tables.print_json(page.records)
    elif not tables.print_table(page.records, _columns(paths)):
        print("no jobs", file=sys.stderr)
    if page.after is not None:
        print(f"There may be more: --after {page.after}", file=sys.stderr)
    elif sort not in listing.CONTINUED and 0 < limit == len(page.records):
        print(f"Cut after {units.jobs(limit)}; there may be more: --limit", file=sys.stderr)


def _columns(paths: Sequence[str]) -> list[tables.Column]:
    """Return the columns of a table of jobs, with those for what is at paths before the note and the body."""
    at = next(at for at, column in enumerate(tables.JOBS) if column.key == "note")
    values = [tables.PathColumn("values", path, str, shrinks=True) for path in paths]
    return [*tables.JOBS[:at], *values, *tables.JOBS[at:]]


def _show_due(source: "Source", which: "Filter", limit: int, *, as_json: bool) -> None:
    """Print how many delayed jobs are due in each minute, the first ones."""
    minutes = grouping.due(source, which)
    rows: list[Record] = [{"due_at": minute, "jobs": jobs} for minute, jobs in sorted(minutes.items())]
    shown = rows[:limit] if limit else rows
    if which.tube is not None and not rows:
        source.check_tube(which.tube)
    if as_json:
        tables.print_json(shown)
    elif not tables.print_table(shown, tables.DUE):
        print("no delayed jobs", file=sys.stderr)
    if len(shown) < len(rows):
        first = f"{sum(row['jobs'] for row in shown):,} of {units.jobs(minutes.total())}"
        most = ", ".join(f"{units.utc(at)[:-3]} ({jobs:,})" for at, jobs in sorted(minutes.most_common(_MOST)))
        print(f"These are the first {len(shown):,} of {len(rows):,} minutes, with {first}: --limit", file=sys.stderr)
        print(f"The most are due at {most}", file=sys.stderr)


def _group(source: "Source", which: "Filter", by: Record, limit: int, title: str, *, as_json: bool) -> None:
    """Print how many jobs have each value."""
    summary = grouping.count(source, which, by).summary(limit)
    if which.tube is not None and not summary.jobs:
        source.check_tube(which.tube)
    rows: list[Record] = [{"value": value, "jobs": jobs} for value, jobs in summary.rows]
    if as_json:
        tables.print_json([*rows, *([{"others": summary.others}] if summary.others else ())])
        return
    shown = [{**row, "share": row["jobs"] / summary.jobs} for row in rows]
    if summary.others:
        shown.append({"value": "(others)", "jobs": summary.others, "share": summary.others / summary.jobs})
    if not tables.print_table(shown, tables.groups(title)):
        print("no jobs", file=sys.stderr)
    if "path" in by and [row["value"] for row in rows] == [None]:
        print(f"No body is JSON with something at {title}; there is also --group-by note.", file=sys.stderr)
    if summary.is_rough:
        print(
            f"There are more than {grouping.VALUES_MAX:,} values: those of few jobs are counted as others.",
            file=sys.stderr,
        )
