"""``beanlite import``."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer

from beanlite.cli.options import AsJson, ConfigFile, Database, Db, counting, lines, path_of_db, url_of_database
from beanlite.cli.paths import as_path
from beanlite.cli.printing import print_done
from beanlite.cli.source import opened
from beanlite.console import units
from beanlite.journal.lines import read_lines

EPILOG: Final = (
    "Exit codes: 0 everything is imported; 1 FILE can't be read, a line is wrong, or an id is taken; 2 a wrong setting"
    " or flag; 3 a server holds the database, or it was refused; 130 interrupted. After all but 0 nothing was imported."
)
EXAMPLES: Final = {
    "import": (
        "beanlite import queue.jsonl --db new.db",
        "beanlite export --db copy.db | beanlite import - --new-ids",
    )
}


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", parser=as_path, help="The exported file; - is standard input.")
    ],
    *,
    db: Db = None,
    database: Database = None,
    config_file: ConfigFile = None,
    new_ids: Annotated[
        bool, typer.Option("--new-ids", help="Give each job a new id. Otherwise, an id that is taken is an error.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import exported jobs and pauses into a database.

    The database is created if need be; no server may hold it. Either all jobs and pauses are imported, or none. Lines
    may have been left out, as by grep, or written by hand. Buried jobs come after those already buried.
    """
    url = url_of_database(db, database, config_file)
    target = path_of_db(db, config_file) if url is None else None
    with opened(file) as source, counting(lines) as progress, TemporaryDirectory(prefix="beanlite-import-") as folder:
        from beanlite.journal.sqlite.tools.load import load  # noqa: PLC0415 - `serve` starts faster without it

        # Lines for PostgreSQL go into a file first, which checks them as it does its own.
        into = Path(folder, "queue.db") if target is None else target
        result = load(read_lines(source), into, new_ids=new_ids, progress=progress)
        name = str(target)
        if url is not None:
            from beanlite.journal.postgres import address, dump  # noqa: PLC0415 - it may not be installed

            dump.load(into, url, new_ids=new_ids)
            name = address.shown(url)
    if as_json:
        print_done(json.dumps({"file": name, "jobs": result.jobs, "pauses": result.pauses}))
    else:
        print_done(f"{name}: {units.jobs(result.jobs)} and {units.counted(result.pauses, 'pause')} imported")
