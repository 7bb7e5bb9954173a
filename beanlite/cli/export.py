"""``beanlite export``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from beanlite.cli.options import ConfigFile, Db, counting, lines, path_of_db
from beanlite.errors import ConfigError

EPILOG = (
    'Examples: beanlite export queue.jsonl; beanlite export --db copy.db | grep \'"tube": "mail"\'.'
    "\n\n"
    "Exit codes: 0 done; 1 it could not be written, and then there is no new DEST; 2 a wrong setting or flag; 3 the"
    " database was refused, or is damaged; 130 it was told to end."
)


def export(
    dest: Annotated[
        Path | None, typer.Argument(metavar="DEST", help="The file to write. Default: standard output.")
    ] = None,
    *,
    db: Db = None,
    config_file: ConfigFile = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DEST if it is a file that no server holds.")] = False,
) -> None:
    """Write all jobs and pauses of a database as JSON.

    It is an object a line, with all that a job has, as of one moment; the database may be live. "beanlite
    import" makes the same database of it again.
    """
    source = path_of_db(db, config_file)
    if force and dest is None:
        raise ConfigError("--force: there is no DEST to replace")

    from beanlite.journal.sqlite import dump  # noqa: PLC0415 - `serve` starts faster without it

    with counting(lines) as progress:
        if dest is not None:
            dump.export_to_file(source, dest, progress, replace=force)
        else:
            dump.export(source, sys.stdout.buffer, progress)
