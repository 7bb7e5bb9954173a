"""``beanlite compact``."""

import json
import time
from dataclasses import asdict
from typing import Final

from beanlite.cli.options import AsJson, ConfigFile, Db, counting, mebibytes, path_of_db
from beanlite.cli.printing import print_done
from beanlite.console import units

EPILOG: Final = (
    "Exit codes: 0 done; 1 it could not be done; 2 a wrong setting or flag; 3 a server holds the database or was killed"
    " while holding it, another program has it open or has written to it meanwhile, or it is damaged; 130 interrupted."
    " After all but 0 the database is unchanged, unless the message says that it is replaced."
)
EXAMPLES: Final = {"compact": ("beanlite compact --db /var/lib/beanlite/beanlite.db",)}


def compact(*, db: Db = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Shrink the file of a stopped database.

    The database is copied without gaps, and the copy is checked, synced and put in its place; the disk needs room for
    both. A running server gives space back by itself, so this helps only after the database was very large.
    """
    path = path_of_db(db, config_file, "compact")

    from beanlite.journal.sqlite.tools.compact import compact as shrink  # noqa: PLC0415 - `serve` starts faster without it

    began_s = time.monotonic()
    with counting(mebibytes) as progress:
        result = shrink(path, progress)
    seconds = round(time.monotonic() - began_s, 3)
    if as_json:
        print_done(json.dumps({"file": str(path), **asdict(result), "seconds": seconds}))
    else:
        jobs = units.jobs(result.jobs)
        print_done(f"{path}: {jobs}, {result.before:,} bytes before, {result.after:,} bytes now, {seconds} s")
