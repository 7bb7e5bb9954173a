"""``beanlite import``."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from beanlite.cli.options import AsJson, ConfigFile, Db, counting, lines, path_of_db
from beanlite.errors import BeanliteError

EPILOG = (
    "Examples: beanlite import queue.jsonl --db new.db; beanlite export --db copy.db | beanlite import - --new-ids."
    "\n\n"
    "Exit codes: 0 all of it is in; 1 a line is wrong, or an id is taken; 2 a wrong setting or flag; 3 a server holds"
    " the database, or it was refused; 130 it was told to end. After all of these but 0 nothing was imported."
)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What was exported; - is standard input.")],
    *,
    db: Db = None,
    config_file: ConfigFile = None,
    new_ids: Annotated[
        bool, typer.Option("--new-ids", help="Give each job a new id. Without it, an id that is taken is an error.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put what was exported into a database.

    That is a new one, or one that no server holds; all jobs and pauses come into it, or none. Lines may have been
    left out, as by grep, or made by hand. Buried jobs come behind those that are buried already.
    """
    target = path_of_db(db, config_file)

    from beanlite.journal.sqlite.load import load  # noqa: PLC0415 - `serve` starts faster without it

    try:
        source = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise BeanliteError(f"{file} can't be opened: {error.strerror}") from error
    with source, counting(lines) as progress:
        result = load(source, target, new_ids=new_ids, progress=progress)
    if as_json:
        print(json.dumps({"file": str(target), "jobs": result.jobs, "pauses": result.pauses}))
    else:
        print(f"{target}: {result.jobs} jobs and {result.pauses} pauses imported")
