"""``beanlite export``."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.cli.options import ConfigFile, Database, Db, counting, lines, path_of_db, url_of_database
from beanlite.cli.paths import as_new_file
from beanlite.cli.printing import print_done
from beanlite.errors import ConfigError

EPILOG: Final = (
    "Exit codes: 0 done; 1 it could not be written, and there is no new DEST; 2 a wrong setting or flag; 3 the database"
    " was refused, or is damaged; 130 interrupted."
)
EXAMPLES: Final = {
    "export": (
        "beanlite export queue.jsonl",
        'beanlite export --db copy.db | grep \'"tube": "mail"\'',
    )
}


def export(
    dest: Annotated[
        Path | None,
        typer.Argument(
            metavar="DEST", parser=as_new_file, help="The file to write. Default: standard output, also as -."
        ),
    ] = None,
    *,
    db: Db = None,
    database: Database = None,
    config_file: ConfigFile = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DEST if it is a file that no server holds.")] = False,
) -> None:
    """Write all jobs and pauses of a database as JSON.

    The output has one object per line, with everything a job has, as of one moment; the database may be live. "beanlite
    import" makes the same database from it again.
    """
    if str(dest) == "-":  # as for import
        dest = None
    if force and dest is None:
        raise ConfigError("--force: there is no DEST to replace")
    from beanlite.journal.sqlite.tools import dump as sqlite  # noqa: PLC0415 - `serve` starts faster without it

    url = url_of_database(db, database, config_file)
    if url is not None:
        from beanlite.journal.postgres import dump as postgres  # noqa: PLC0415 - it may not be installed

        source, write = None, partial(postgres.export, url)
    else:
        source = path_of_db(db, config_file)
        write = partial(sqlite.export, source)
    with counting(lines) as progress:
        if dest is None:
            write(sys.stdout.buffer, progress)
            return
        count = sqlite.export_to_file(partial(write, progress=progress), dest, source, replace=force)
    print_done(f"{dest}: {count - 2} jobs and pauses exported")  # the first line and the last one are about the queue
