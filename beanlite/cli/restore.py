"""``beanlite restore``."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.cli.options import AsJson, ConfigFile, Db, counting, mebibytes, path_of_db
from beanlite.cli.paths import as_path
from beanlite.cli.printing import print_done
from beanlite.console import units
from beanlite.errors import ConfigError

EPILOG: Final = (
    "Exit codes: 0 done; 1 it could not be done; 2 a wrong setting or flag; 3 FILE is damaged or not a beanlite"
    " database, a server holds the database, or another program has it open or has written to it meanwhile; 130"
    " interrupted. After all but 0 the database is unchanged, unless the message says that it is replaced."
)
EXAMPLES: Final = {
    "restore": (
        "beanlite restore /backups/queue.db",
        "beanlite restore --undo",
        "beanlite restore old.db --db new/queue.db",
    )
}


def restore(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", parser=as_path, help="The backup to restore; it is only read.")
    ] = None,
    *,
    undo: Annotated[
        bool, typer.Option("--undo", help="Bring back the database that the last restore set aside.")
    ] = False,
    db: Db = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Replace a stopped database with a backup.

    FILE is checked as by "beanlite verify". The old database is set aside as DATABASE.replaced-TIME in the same folder;
    remove it when you are sure. Ids that it gave out after the backup are not given out again.
    """
    if (file is None) != undo:
        raise ConfigError("name either a FILE or --undo")
    target = path_of_db(db, config_file, "restore")

    from beanlite.journal.sqlite.tools import restore as journal  # noqa: PLC0415 - `serve` starts faster without it

    began_s = time.monotonic()
    with counting(mebibytes) as progress:
        result = journal.undo_restore(target, progress) if file is None else journal.restore(file, target, progress)
    seconds = round(time.monotonic() - began_s, 3)
    if as_json:
        print_done(json.dumps({"file": str(target), **asdict(result), "seconds": seconds}))
        return
    kept = "" if result.kept is None else f"\n{result.kept}: the database that was replaced"
    print_done(f"{target}: {units.jobs(result.jobs)}, as in {result.restored}, {seconds} s{kept}")
