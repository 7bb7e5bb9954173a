"""``beanlite export``."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.cli.options import ConfigFile, Database, Db, counting, lines, path_of_db, url_of_database
from beanlite.cli.paths import as_path
from beanlite.cli.printing import print_done
from beanlite.errors import BeanliteError, ConfigError

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
        typer.Argument(metavar="DEST", parser=as_path, help="The file to write. Default: standard output, also as -."),
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
    url = url_of_database(db, database, config_file)
    if url is not None:
        _export_database(url, dest, replace=force)
        return
    source = path_of_db(db, config_file)

    from beanlite.journal.sqlite import dump  # noqa: PLC0415 - `serve` starts faster without it

    with counting(lines) as progress:
        if dest is None:
            dump.export(source, sys.stdout.buffer, progress)
            return
        count = dump.export_to_file(source, dest, progress, replace=force)
    _tell(dest, count)


def _export_database(url: str, dest: Path | None, *, replace: bool) -> None:
    from beanlite.journal.postgres import dump  # noqa: PLC0415 - it may not be installed
    from beanlite.journal.sqlite.wholefile import unserved, written_whole  # noqa: PLC0415 - as above

    with counting(lines) as progress:
        if dest is None:
            dump.export(url, sys.stdout.buffer, progress)
            return
        try:
            dest_file = dest.resolve()
            with (
                unserved(dest_file, None) if replace else nullcontext(enter_result=False) as is_there,
                written_whole(dest_file, replace=is_there) as partial,
                partial.open("wb") as sink,
            ):
                count = dump.export(url, sink, progress)
        except OSError as error:
            raise BeanliteError(f"nothing was exported to {dest}: {error.strerror}") from error
    _tell(dest, count)


def _tell(dest: Path, count: int) -> None:
    print_done(f"{dest}: {count - 2} jobs and pauses exported")  # the first line and the last one are about the queue
