"""Restores a database from a backup, and undoes that with the database that was set aside."""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal.sqlite.dated import dated_files, stamp
from beanlite.journal.sqlite.fileformat import (
    APPLICATION_ID,
    HEADER_BYTES,
    journal_of,
    read_at,
    refused,
    shm_of,
    wal_of,
    wal_size,
)
from beanlite.journal.sqlite.migrations import allow_writing
from beanlite.journal.sqlite.reading import check_readable, read_only, tidy
from beanlite.journal.sqlite.replace import copy_checked, replacing
from beanlite.journal.sqlite.replay import COUNTER_MAX
from beanlite.journal.sqlite.wholefile import written_whole


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The database that is in place after a restore, and where the previous one is."""

    restored: str
    """The file that was copied."""
    jobs: int
    kept: str | None
    """The path at which the previous database is kept; None if there was none."""


def restore(source: Path, target: Path, progress: Callable[[int], None] | None = None) -> RestoreResult:
    """Replace the target by a copy of the source; the previous file is kept beside it under a dated name.

    Ids that the target has given out since the backup are not given out again. `progress` is called as for a backup.
    JournalRefused: the source is damaged or not ours, or the target is held by a server or not a queue. BeanliteError:
    the restore failed, for want of room for example; the target is unchanged.
    """
    source, target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if source == target:
        raise BeanliteError(f"{source} can't be restored to itself")
    with replacing(target) as (partial, held):
        _check_target(target, held)
        jobs = copy_checked(source, partial, progress)
        _leave_out_ids(partial, _last_id(target))
        kept = _set_aside(target) if os.fstat(held).st_size or wal_size(target) else None
    return RestoreResult(str(source), jobs, None if kept is None else str(kept))


def undo_restore(target: Path, progress: Callable[[int], None] | None = None) -> RestoreResult:
    """Bring back the database that the last restore set aside; the present one is set aside in turn.

    Raises what ``restore`` raises, and BeanliteError if nothing was set aside.
    """
    target = Path(os.path.realpath(target))
    try:
        set_aside = dated_files(target.parent, _prefix(target))
    except (FileNotFoundError, NotADirectoryError):
        set_aside = []
    except OSError as error:
        raise BeanliteError(f"{target.parent} can't be read: {error.strerror}") from error
    if not set_aside:
        raise BeanliteError(f"there is no {target.parent / _prefix(target)}… to bring back")
    newest, _ = set_aside[-1]
    result = restore(newest, target, progress)
    for file in (newest, wal_of(newest), shm_of(newest)):
        file.unlink(missing_ok=True)
    return result


def _prefix(target: Path) -> str:
    """The beginning of the names that restores give to files that they set aside."""
    return f"{target.name}.replaced-"


def _check_target(target: Path, held: int) -> None:
    """Raise JournalRefused if the target exists and never was a queue; a damaged queue may be replaced."""
    header = read_at(held, HEADER_BYTES, 0)
    if header and int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise JournalRefused(f"{target} is no database of beanlite's; move it away, or name another file")


def _last_id(target: Path) -> int:
    """The last id that the target has given out; 0 if that is unknown."""
    last_id = None
    # Not ``reading``, which refuses a file of a newer version: after a downgrade, a backup takes the place of one.
    with suppress(JournalRefused, sqlite3.Error, UnicodeDecodeError, TypeError):
        check_readable(target, any_version=True)
        with closing(sqlite3.connect(read_only(target), uri=True)) as connection:
            (last_id,) = connection.execute("SELECT last_id FROM meta").fetchone()
        tidy(target)
    return last_id if isinstance(last_id, int) and 0 < last_id < COUNTER_MAX else 0


def _leave_out_ids(partial: Path, last_id: int) -> None:
    """Make the server continue with ids above this one."""
    with refused(partial), closing(sqlite3.connect(partial, isolation_level=None)) as connection:
        allow_writing(connection)
        connection.execute("UPDATE meta SET last_id = ? WHERE last_id < ?", (last_id, last_id))


def _set_aside(target: Path) -> Path:
    """Copy the file, sound or not, with its -wal and rollback journal; returns the path of the copy."""
    kept = target.with_name(f"{_prefix(target)}{stamp(time.time())}")
    copies = {target: kept, wal_of(target): wal_of(kept), journal_of(target): journal_of(kept)}
    try:
        for old, new in copies.items():
            if old.exists():
                _copy(old, new)
    except BaseException:
        for new in copies.values():
            new.unlink(missing_ok=True)
        raise
    return kept


def _copy(old: Path, new: Path) -> None:
    with written_whole(new) as partial:
        shutil.copyfile(old, partial)
        shutil.copymode(old, partial)
        status = old.stat()
        os.chown(partial, status.st_uid, status.st_gid)
