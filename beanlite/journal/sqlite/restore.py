"""Bringing back a database from a backup, and what was there before it from where it was set aside."""

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
from beanlite.journal.sqlite.reading import reading
from beanlite.journal.sqlite.replace import copy_checked, replacing
from beanlite.journal.sqlite.replay import COUNTER_MAX
from beanlite.journal.sqlite.wholefile import written_whole


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What is in place now, and where that is what was there."""

    restored: str
    """The file that was copied."""
    jobs: int
    kept: str | None
    """The database that was there, under the name that it has now; None if there was none."""


def restore(source: Path, target: Path, progress: Callable[[int], None] | None = None) -> RestoreResult:
    """Put a copy of the source in the place of the target; what was there is kept beside it under a dated name.

    Ids that the target has given out since the backup are not given out again. `progress` is called as for a backup.
    JournalRefused: the source is damaged or not ours, a server holds the target, or that is no queue. BeanliteError:
    there is no room, or the like; the target is as it was.
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
    """Bring back what the last restore has set aside; what is there now is set aside in its turn.

    It raises what ``restore`` does, and BeanliteError if nothing was set aside.
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
    """How the names begin that restores give to what was there."""
    return f"{target.name}.replaced-"


def _check_target(target: Path, held: int) -> None:
    """Raise JournalRefused if there is something that never was a queue; a damaged one may well be replaced."""
    header = read_at(held, HEADER_BYTES, 0)
    if header and int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise JournalRefused(f"{target} is no database of beanlite's; move it away, or name another file")


def _last_id(target: Path) -> int:
    """The last id that the target has given out; 0 if it can't tell."""
    with suppress(JournalRefused, sqlite3.Error), reading(target) as connection:
        last_id = connection.execute("SELECT last_id FROM meta").fetchone()[0]
        if isinstance(last_id, int) and 0 < last_id < COUNTER_MAX:
            return last_id
    return 0


def _leave_out_ids(partial: Path, last_id: int) -> None:
    """Have the server go on with the ids behind this one."""
    with refused(partial), closing(sqlite3.connect(partial, isolation_level=None)) as connection:
        allow_writing(connection)
        connection.execute("UPDATE meta SET last_id = ? WHERE last_id < ?", (last_id, last_id))


def _set_aside(target: Path) -> Path:
    """Copy the file as it is, sound or not, with what SQLite keeps beside it; returns the name of the copy."""
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
