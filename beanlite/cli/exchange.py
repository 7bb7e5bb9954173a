"""``beanlite export``, ``import``, ``import-binlog``."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, BinaryIO, Final, cast

import typer

from beanlite.cli.options import (
    AsJson,
    ConfigFile,
    Database,
    Db,
    Force,
    beside_text,
    counting,
    existing_db,
    ids_text,
    measure,
    path_of_db,
    url_of_database,
)
from beanlite.cli.paths import as_new_file_or_stdout, as_path, check_new
from beanlite.cli.printing import print_done
from beanlite.cli.source import reader
from beanlite.console import units
from beanlite.errors import BeanliteError, ConfigError, JournalFailed
from beanlite.host.signals import finish
from beanlite.journal.lines import read_lines

EPILOG: Final = {
    "export": (
        "Exit codes: 0 done; 1 it could not be written, and there is no new DEST; 2 a wrong setting or flag; 3 the"
        " database was refused, or is damaged; 130 interrupted."
    ),
    "import": (
        "Exit codes: 0 everything is imported; 1 FILE can't be read, a line is wrong, or an id is taken; 2 a wrong"
        " setting or flag; 3 a server holds the database, or it was refused; 4 everything is imported, but the disk"
        " failed when the database was closed; 130 interrupted. After all but 0 and 4 nothing was imported, unless the"
        " message says that this is not known: the commit in PostgreSQL was interrupted, or its answer lost; or the"
        " commit in the file could not be synced."
    ),
    "import-binlog": (
        "Exit codes: 0 the jobs are in the database; 1 something could not be read or written; 2 a wrong setting or"
        " flag; 3 a beanstalkd is running on DIR, or DIR has no binlog or a damaged one, or the database was refused,"
        " perhaps because it has jobs; 4 the jobs are in the database, but the disk failed when it was closed; 130"
        " interrupted. After 1, 2, 3 and 130 the database is unchanged, unless the message says that this is not known."
    ),
}
EXAMPLES: Final = """
beanlite export queue.jsonl
beanlite export --db copy.db | grep '"tube": "mail"'

beanlite import queue.jsonl --db new.db
beanlite export --db copy.db | beanlite import - --new-ids

beanlite import-binlog /var/lib/beanstalkd --db /var/lib/beanlite/beanlite.db
beanlite import-binlog damaged --salvage --db rescued.db --json
"""
# How each exported line begins.
_BEFORE_KIND: Final = b'{"kind": "'


def export(
    dest: Annotated[
        Path | None,
        typer.Argument(
            metavar="DEST", parser=as_new_file_or_stdout, help="The file to write. Default: standard output, also as -."
        ),
    ] = None,
    *,
    db: Db = None,
    database: Database = None,
    config_file: ConfigFile = None,
    force: Force = False,
) -> None:
    """Write all that is in a database as JSON.

    The output has one object per line, with everything a job has, as of one moment; the database may be live. "beanlite
    import" makes the same database from it again.
    """
    if str(dest) == "-":  # as for import
        dest = None
    if dest is not None:
        check_new(dest)
    elif force:
        raise ConfigError("--force: there is no DEST to replace")
    from beanlite.journal.sqlite.tools import dump as sqlite

    url = url_of_database(db, database, config_file)
    if url is not None:
        from beanlite.journal.postgres import dump as postgres  # it may not be installed

        source, write = None, partial(postgres.export, url)
    else:
        source = existing_db(db, config_file)
        write = partial(sqlite.export, source)
    kinds: Counter[bytes] = Counter()
    with counting("lines") as progress:
        if dest is None:
            write(sys.stdout.buffer, progress)
            return

        def write_and_count(sink: BinaryIO) -> int:
            return write(cast("BinaryIO", _CountingSink(sink, kinds)), progress)

        sqlite.export_to_file(write_and_count, dest, source, replace=force)
    counts = _counts_text(kinds[b"job"], kinds[b"pause"], kinds[b"policy"], kinds[b"schedule"])
    print_done(f"{dest}: {counts} exported")


class _CountingSink:
    """A sink of exported lines, one at a time, that counts them by kind."""

    def __init__(self, sink: BinaryIO, kinds: Counter[bytes]) -> None:
        self._sink = sink
        self._kinds = kinds
        self.flush = sink.flush

    def write(self, line: bytes) -> int:
        """Write a line."""
        self._kinds[line[len(_BEFORE_KIND) : line.index(b'"', len(_BEFORE_KIND))]] += 1
        return self._sink.write(line)


def _counts_text(jobs: int, pauses: int, policies: int, schedules: int) -> str:
    """Return the numbers of what was exported or imported, as text."""
    others = units.settings(pauses, policies, schedules)
    return f"{', '.join([units.jobs(jobs), *others[:-1]])} and {others[-1]}"


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
    """Import what was exported into a database.

    The database is created if need be; no server may hold it. Either all lines are imported, or none. Lines may have
    been left out, as by grep, or written by hand. Buried jobs come after those already buried.
    """
    url = url_of_database(db, database, config_file)
    target = path_of_db(db, config_file) if url is None else None
    if target is not None:
        check_new(target)
    from beanlite.journal.sqlite.tools.load import load

    with reader(file) as source, counting("lines") as progress, _file_for(target) as into:
        try:
            result = load(read_lines(source), into, new_ids=new_ids, progress=progress)
        except JournalFailed as error:
            if url is None:
                raise
            raise BeanliteError(f"nothing was imported: {error.__cause__}") from error  # it is all in the other file
        name = str(target)
        if url is not None:
            from beanlite.journal.postgres import address, dump  # it may not be installed

            name = address.public_url(url)
            result = replace(result, left=None)  # it is beside a file that will be gone
            dump.load(into, url, new_ids=new_ids)
        finish()  # all is imported, and the temporary file takes a while to remove
    if as_json:
        print_done(json.dumps({"file": name, **asdict(result)}))
    else:
        counts = _counts_text(result.jobs, result.pauses, result.policies, result.schedules)
        print_done(f"{name}: {counts} imported{beside_text(result.left)}")


@contextmanager
def _file_for(target: Path | None) -> Iterator[Path]:
    """Yield the file that takes the lines: for PostgreSQL a temporary one, which checks them as it does its own."""
    if target is not None:
        yield target
        return
    try:
        folder = TemporaryDirectory(prefix="beanlite-import-")
    except OSError as error:
        why = f"no temporary folder can be made: {error.strerror}"
        raise BeanliteError(f"nothing was imported: {why}; TMPDIR names the place for it") from error
    with folder as name:
        yield Path(name, "queue.db")


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
    check_new(path)
    from beanlite.binlog.importing import import_binlog as fill

    result, seconds = measure(lambda progress: fill(directory, path, salvage=salvage, progress=progress), "%")
    if as_json:
        print_done(json.dumps({"file": str(path), **asdict(result), "seconds": seconds}))
        return
    states = f"{result.ready:,} ready, {result.delayed:,} delayed, {result.buried:,} buried"
    lines = [f"{path}: {units.jobs(result.jobs)} ({states}), {seconds} s"]
    lines += (f"left out: {part.file}: {part.why}" for part in result.left_out)
    if ids := result.without_body:
        jobs = units.jobs(len(ids))
        lines.append(f"lost: {jobs} of which the binlog has changes, but not their bodies: {ids_text(ids)}")
    print_done("\n".join(lines) + beside_text(result.left))
