"""``beanlite compact``."""

import json
import time
from dataclasses import asdict

from beanlite.cli.options import AsJson, ConfigFile, Db, counting, mebibytes, path_of_db

EPILOG = (
    "Example: beanlite compact --db /var/lib/beanlite/beanlite.db."
    "\n\n"
    "Exit codes: 0 done; 1 it could not be done; 2 a wrong setting or flag; 3 a server holds the database or was killed"
    " on it, or it is damaged; 130 it was told to end. After all of these but 0 the database is what it was."
)


def compact(*, db: Db = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Make the file of a stopped database smaller.

    It becomes as small as what it holds: it is copied without gaps, checked, synced, and put in its own place; that
    needs room for the copy. A server gives room back while it runs, so this is of use only after something very large.
    """
    path = path_of_db(db, config_file)

    from beanlite.journal.sqlite.compact import compact as shrink  # noqa: PLC0415 - `serve` starts faster without it

    began_s = time.monotonic()
    with counting(mebibytes) as progress:
        result = shrink(path, progress)
    seconds = round(time.monotonic() - began_s, 3)
    if as_json:
        print(json.dumps({"file": str(path), **asdict(result), "seconds": seconds}))
    else:
        print(f"{path}: {result.jobs} jobs, {result.before} bytes before, {result.after} bytes now, {seconds} s")
