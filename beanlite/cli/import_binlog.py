"""``beanlite import-binlog``."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.cli.options import AsJson, ConfigFile, Db, counting, listed, path_of_db
from beanlite.cli.paths import as_path
from beanlite.cli.printing import print_done
from beanlite.console import units

EPILOG: Final = (
    "Exit codes: 0 the jobs are in the database; 1 something could not be read or written; 2 a wrong setting or flag;"
    " 3 a beanstalkd is running on DIR, or DIR has no binlog or a damaged one, or the database was refused, perhaps"
    " because it has jobs; 4 the jobs are in the database, but the disk failed when it was closed; 130 interrupted."
    " After 1, 2, 3 and 130 the database is unchanged."
)
EXAMPLES: Final = {
    "import-binlog": (
        "beanlite import-binlog /var/lib/beanstalkd --db /var/lib/beanlite/beanlite.db",
        "beanlite import-binlog damaged --salvage --db rescued.db --json",
    )
}


def import_binlog(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", parser=as_path, help="The directory of beanstalkd's -b, with files binlog.1 and so on."
        ),
    ],
    *,
    db: Db = None,
    config_file: ConfigFile = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Skip what is damaged, and report what was left out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import beanstalkd's binlog into a new database.

    Either all jobs are imported, or none. If the database exists, it must have no jobs. Stop beanstalkd first; its
    directory is only read. Binlogs of beanstalkd 1.4 to 1.13 from 64-bit machines are understood. Reserved jobs become
    ready.
    """
    path = path_of_db(db, config_file)

    from beanlite.binlog.importing import import_binlog as fill  # noqa: PLC0415 - `serve` starts faster without it

    began_s = time.monotonic()
    with counting(lambda percent: f"{percent} %") as progress:
        result = fill(directory, path, salvage=salvage, progress=progress)
    seconds = round(time.monotonic() - began_s, 3)
    if as_json:
        print_done(json.dumps({"file": str(path), **asdict(result), "seconds": seconds}))
        return
    states = f"{result.ready:,} ready, {result.delayed:,} delayed, {result.buried:,} buried"
    told = [f"{path}: {units.jobs(result.jobs)} ({states}), {seconds} s"]
    told += (f"left out: {part.file}: {part.why}" for part in result.left_out)
    if lost := result.without_body:
        jobs = units.jobs(len(lost))
        told.append(f"lost: {jobs} of which the binlog has changes, but not their bodies: {listed(lost)}")
    if result.left:
        told.append(f"beside the database there is still {result.left}; it belongs to it")
    print_done("\n".join(told))
