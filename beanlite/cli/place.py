"""The place where a server is about to make a database: whether it is the right one."""

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Final

from beanlite.cli.paths import check_new
from beanlite.errors import ConfigError, JournalRefused
from beanlite.host import log
from beanlite.journal.sqlite.file.fileformat import size_of, wal_of

# How to name a place for the database.
_NAME_ONE: Final = (
    "name a directory or a file for it with -b (in a unit of systemd StateDirectory=beanlite is enough), or keep jobs"
    " in memory only, as beanstalkd does without -b, with --no-journal"
)


def check_place(db: Path, *, is_default: bool) -> None:
    """Check the place of a database before the start. BeanliteError: it can't be what is meant.

    ``is_default``: nobody has named it.
    """
    path = Path(os.path.realpath(db))
    with suppress(OSError):  # which the journal meets as well, and reports
        if size_of(path):
            _warn_of_later_binlog(path)
            return
        if is_default and path.parent == Path("/"):
            raise ConfigError(f"no database named, and {path} can't be it: {_NAME_ONE}")
        if not path.parent.is_dir():
            raise JournalRefused(f"there is no directory {path.parent} for the database: make it, or mount its disk")
        if not path.suffix and not path.exists():
            raise JournalRefused(
                f"there is no {path}: if a directory was meant, make it, or mount its disk; the name of a new database"
                " file has an ending, such as .db"
            )
        check_new(path)
        _refuse_to_pass_over_binlog(path)


def with_advice(error: JournalRefused, db: Path) -> JournalRefused:
    """Return the error of a start, with what to do if nobody has named this place and it can't have a database."""
    if db.exists() or os.access(db.parent, os.W_OK | os.X_OK, effective_ids=True):
        return error
    return JournalRefused(f"{error}; no database named: {_NAME_ONE}")


def _binlog_in(directory: Path) -> list[Path]:
    """Return the files of beanstalkd's binlog in a directory."""
    if not any(path.name.startswith("binlog.") for path in directory.iterdir()):
        return []
    from beanlite.binlog.survey import find_files

    return [file for _, file in find_files(directory)]


def _refuse_to_pass_over_binlog(path: Path) -> None:
    """Raise JournalRefused if beanstalkd has left jobs where a new database is about to be made."""
    directory = path.parent
    files = _binlog_in(directory)
    if not files:
        return
    from beanlite.binlog.survey import Survey
    from beanlite.console import units

    survey = Survey(salvage=True)
    for number, file in enumerate(files, 1):
        survey.read(number, file)
    if survey.jobs:
        raise JournalRefused(
            f"{directory} has beanstalkd's binlog, and {units.jobs(len(survey.jobs))} in it would be passed over; to"
            f" bring them over: beanlite import-binlog {shlex.quote(str(directory))} --db {shlex.quote(str(path))}; to"
            " begin without them, move the files binlog.* elsewhere"
        )


def _warn_of_later_binlog(path: Path) -> None:
    """Warn if beanstalkd has written its binlog beside a database after that was last written."""
    written_at = max(file.stat().st_mtime for file in (path, wal_of(path)) if file.exists())
    if any(file.stat().st_mtime > written_at for file in _binlog_in(path.parent)):
        log.warning(
            "beanstalkd has written its binlog here since this database was last written; jobs in it are not served",
            db=path,
            see="beanlite import-binlog",
        )
