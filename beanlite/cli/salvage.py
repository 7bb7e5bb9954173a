"""``beanlite salvage``."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from beanlite.cli.options import AsJson, counting, listed
from beanlite.cli.paths import as_new_file, as_path, expect_file
from beanlite.cli.printing import print_done
from beanlite.console import units
from beanlite.errors import JournalRefused

if TYPE_CHECKING:
    from beanlite.journal.sqlite.tools.salvage import Salvaged

EPILOG: Final = (
    "Exit codes: 0 everything is saved; 1 something could not be read or written, and there is no DEST; 2 a wrong flag;"
    " 3 what is sound is in DEST, but something is lost or in doubt; or a server holds SOURCE or nothing in it can be"
    " saved, and there is no DEST; 130 interrupted."
)
EXAMPLES: Final = {"salvage": ("beanlite salvage beanlite.db.replaced-20261123T040000.123Z rescued.db",)}


def salvage(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", parser=as_path, help="A damaged database that no server holds.")
    ],
    dest: Annotated[
        Path, typer.Argument(metavar="DEST", parser=as_new_file, help="The database to create; it must not exist yet.")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Save what is sound in a damaged database.

    SOURCE and its -wal are only read, page by page and without SQLite. Jobs, pauses and the last id are saved to DEST;
    totals and history are not. Jobs of which only a part is left are listed.
    """
    expect_file(source, "salvage")

    from beanlite.journal.sqlite.tools.salvage import salvage as save  # noqa: PLC0415 - `serve` starts faster without it

    began_s = time.monotonic()
    with counting(lambda percent: f"{percent} %") as progress:
        result = save(source, dest, progress)
    seconds = round(time.monotonic() - began_s, 3)
    if as_json:
        print_done(json.dumps({"file": str(dest), **asdict(result), "seconds": seconds}))
    else:
        print_done(f"{dest}: {units.jobs(result.jobs)}, {units.counted(result.pauses, 'pause')}, {seconds} s")
    if result.is_all:
        return
    raise JournalRefused("; ".join([*_lost(source, result), *_in_doubt(result)]))


def _lost(source: Path, result: "Salvaged") -> list[str]:
    left_out = []
    if result.lost:
        left_out.append(f"{units.jobs(len(result.lost))} of which only a part is left ({listed(result.lost)})")
    if result.lost_pauses:
        left_out.append(units.counted(result.lost_pauses, "pause"))
    if result.lost_clock:
        left_out.append("what clock the times are by, which are now taken for UTC")
    if result.unreadable:
        left_out.append(
            f"what stood on {units.counted(result.unreadable, 'page')} that can't be read, or not understood"
        )
    if result.last_id is None:
        left_out.append("the last id, so that new ones begin a million higher")
    return [f"not saved from {source}: {'; '.join(left_out)}"] if left_out else []


def _in_doubt(result: "Salvaged") -> list[str]:
    doubts = []
    if result.jobs_at_stop not in {None, result.jobs}:
        doubts.append(f"{units.jobs(result.jobs)} saved, and {result.jobs_at_stop:,} were there at the last stop")
    if result.doubtful:
        jobs = units.jobs(len(result.doubtful))
        doubts.append(f"{jobs} of those saved may have been deleted ({listed(result.doubtful)})")
    return doubts
