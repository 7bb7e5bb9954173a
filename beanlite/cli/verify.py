"""``beanlite verify``."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.cli.paths import as_path, expect_file
from beanlite.errors import JournalRefused
from beanlite.host.signals import terminable

EPILOG: Final = (
    "Exit codes: 0 it is sound; 1 it could not be read; 2 a wrong flag; 3 it is damaged, or not a beanlite database;"
    " 130 interrupted."
)
EXAMPLES: Final = {
    "verify": (
        "beanlite verify /backups/queue.db",
        "beanlite verify beanlite.db --json",
    )
}


def verify(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", parser=as_path, help="A database, live or stopped, or a backup.")
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, for scripts.")] = False,
) -> None:
    """Check a database, live or stopped.

    Prints a line for each check: the file; its -wal (log); SQLite's own check; the schema; the last id and the pauses
    (state); each job's row; each body's checksum. The whole database is read, and nothing is changed. A live database
    is checked as of one moment, and its -wal can't be truncated until the checks end.
    """
    expect_file(file, "verify")

    from beanlite.journal.sqlite.tools.verify import verify as look  # noqa: PLC0415 - `serve` starts faster without it

    unsound = []
    with terminable():
        for finding in look(file):
            if not finding.sound:
                unsound.append(finding)
            if as_json:
                print(json.dumps(finding._asdict()), flush=True)
            else:
                verdict = "ok" if finding.sound else "DAMAGED" if finding.ours else "REFUSED"
                print(f"{finding.check:<7} {verdict:<7} {finding.said}", flush=True)
    if not all(finding.ours for finding in unsound):
        raise JournalRefused(f"{file} can't be checked")
    if unsound:
        raise JournalRefused(f"{file} is not sound: {', '.join(finding.check for finding in unsound)}")
