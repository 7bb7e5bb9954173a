"""``beanlite backup``."""

import contextlib
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.cli.options import AsJson, ConfigFile, Db, counting, mebibytes, path_of_db
from beanlite.cli.paths import path_given
from beanlite.cli.printing import print_done
from beanlite.console import units
from beanlite.errors import BeanliteError, ConfigError

EPILOG: Final = (
    "Exit codes: 0 the backup is in place; 1 it could not be made, or an old one could not be deleted; 2 a wrong"
    " setting or flag; 3 the database was refused, or is damaged; 130 interrupted. If no backup was made, DEST is"
    " unchanged."
)
EXAMPLES: Final = {
    "backup": (
        "beanlite backup copy.db",
        "beanlite backup /backups --keep 7 --db /var/lib/beanlite/beanlite.db",
    )
}


def backup(
    dest: Annotated[
        str,
        typer.Argument(
            metavar="DEST",
            parser=path_given,
            help="The file to write, which must not exist yet; or a folder, in which the file is named after the"
            " database and the time (UTC), such as beanlite-20261122T213456.789Z.db.",
        ),
    ],
    *,
    db: Db = None,
    config_file: ConfigFile = None,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="If DEST is a folder: keep N backups of this database, and delete older ones once the new one is in"
            " place.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DEST if it is a file that no server holds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a database, live or stopped, to one new file.

    The copy is a snapshot of one moment. It is read back and synced before it gets its name.
    """
    source = path_of_db(db, config_file, "backup")

    from beanlite.journal.sqlite.file import dated  # noqa: PLC0415 - `serve` starts faster without it
    from beanlite.journal.sqlite.tools.backup import backup as copy  # noqa: PLC0415 - likewise

    file = Path(dest)
    folder = file if os.path.isdir(file) else None  # noqa: PTH112 - Path.is_dir raises an error without permission
    if folder is None and (keep is not None or dest.endswith("/")):
        raise ConfigError(f"{dest} is not a folder")
    if folder is not None:
        if force:
            raise ConfigError(f"--force: {dest} is a folder, in which each backup has a name of its own")
        file = dated.dated(folder, source, time.time())
        with contextlib.suppress(OSError):  # the backup itself reports what is wrong with the folder
            dated.delete_left(folder, source)
    began_s = time.monotonic()
    with counting(mebibytes) as progress:
        result = copy(source, file, progress, replace=force)
    seconds = round(time.monotonic() - began_s, 3)
    deleted: list[Path] = []
    if keep is not None and folder is not None:
        try:
            deleted = dated.delete_oldest(folder, source, keep, file)
        except OSError as error:
            raise BeanliteError(f"{file} is made, but an older backup can't be deleted: {error}") from error
    if as_json:
        names = [str(old) for old in deleted]
        print_done(json.dumps({"file": str(file), **asdict(result), "seconds": seconds, "deleted": names}))
        return
    made = f"{file}: {units.jobs(result.jobs)}, {result.size:,} bytes, {seconds} s"
    print_done("\n".join([made, *(f"{old}: deleted" for old in deleted)]))
