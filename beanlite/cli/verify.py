"""``beanlite verify``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from beanlite.cli.terminable import terminable
from beanlite.errors import JournalRefused

EPILOG = (
    "Examples: beanlite verify /backups/queue.db; beanlite verify beanlite.db --json."
    "\n\n"
    "Exit codes: 0 it is sound; 1 it could not be looked at; 2 a wrong flag; 3 it is damaged, or no database of"
    " beanlite's; 130 it was told to end."
)


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup, or a database that is served or stopped.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line, for scripts.")] = False,
) -> None:
    """Check a database, live or not: a line for each check.

    These are: the file; its -wal (log); SQLite's own check; the schema; the last id and the pauses (state); the row of
    each job; the checksum of each body. All of it is read, and nothing is changed. A live one is checked as of one
    moment, and its -wal can't be cut back until that is over.
    """
    from beanlite.journal.sqlite.verify import verify as look  # noqa: PLC0415 - `serve` starts faster without it

    unsound = []
    with terminable():
        for finding in look(file):
            if not finding.sound:
                unsound.append(finding.check)
            if as_json:
                print(json.dumps(finding._asdict()), flush=True)
            else:
                print(f"{finding.check:<7} {'ok     ' if finding.sound else 'DAMAGED'} {finding.said}", flush=True)
    if unsound:
        raise JournalRefused(f"{file} is not sound: {', '.join(unsound)}")
