"""Restores a database from a backup, and undoes that with the database that was set aside."""

import glob
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from beanlite.errors import BeanliteError, JournalRefused
from beanlite.host import signals
from beanlite.journal.sqlite.file.dated import STAMP, dated_files, moment_after, stamp, unheld
from beanlite.journal.sqlite.file.fileformat import (
    APPLICATION_ID,
    HEADER_BYTES,
    check_names,
    journal_of,
    read_at,
    refused,
    shm_of,
    size_of,
    wal_of,
    wal_size,
)
from beanlite.journal.sqlite.file.migrations import allow_writing
from beanlite.journal.sqlite.file.stray import has_stray_wal, moved_away, promised_id_on
from beanlite.journal.sqlite.file.wal import commit_frames, read_index
from beanlite.journal.sqlite.file.wholefile import partial_of, remove_left, sync, written_whole
from beanlite.journal.sqlite.tools.promise import last_id_in
from beanlite.journal.sqlite.tools.replace import (
    copy_checked,
    give_to_owner,
    raise_unless_damage,
    replacing,
    take_place,
    without_stray_wal,
    written_at,
)
from beanlite.journal.validity import COUNTER_MAX


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
    JournalRefused: the source is damaged or not ours; or the target is held by a server or not a queue, or another
    program has it open or writes to it meanwhile. BeanliteError: the restore failed, for want of room for example. The
    target is unchanged then, unless the text says that it is replaced.
    """
    source, target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if source == target:
        raise BeanliteError(f"{source} can't be restored to itself")
    return _replace(target, lambda: source, progress)


def undo_restore(target: Path, progress: Callable[[int], None] | None = None) -> RestoreResult:
    """Bring back the database that the last restore set aside; the present one is set aside in turn.

    Raises what ``restore`` raises, and BeanliteError if nothing was set aside.
    """
    target = Path(os.path.realpath(target))
    _last_replaced(target)  # if there is none, or it can't be told, that is what is wrong
    with ExitStack() as held:
        result = _replace(target, lambda: _hold(_last_replaced(target), held), progress)
        source = Path(result.restored)
        try:
            for file in (source, wal_of(source), shm_of(source)):
                file.unlink(missing_ok=True)
        except OSError as error:
            why = f"{source} can't be removed: {error.strerror}"
            raise BeanliteError(f"{target} is as it was before the restore, but {why}") from error
    return result


def _hold(aside: Path, held: ExitStack) -> Path:
    """Lock servers out of what was set aside until it is removed: what they add after it is copied would be lost.

    Returns its path. JournalRefused: a server holds it.
    """
    try:
        held.enter_context(unheld(aside))
    except BlockingIOError as error:
        raise JournalRefused(f"a server or another command holds {aside}; stop it") from error
    return aside


def _replace(target: Path, choose: Callable[[], Path], progress: Callable[[int], None] | None) -> RestoreResult:
    """Replace the target by a copy of the file that is chosen while no other restore can be under way."""
    with replacing(target) as lock:
        _check_target(target, lock.descriptor)
        moved_wal = moved_away(target)
        if moved_wal is not None and wal_size(target):  # only one of them can be set aside with the file
            raise JournalRefused(
                f"{target} has been used since a restore was interrupted: move {moved_wal.name} to another folder, keep"
                " it, and restore again"
            )
        source, earlier = choose(), _set_aside_earlier(target)
        aside = _name(target, earlier)
        with partial_of(_copy_path(aside)) as partial:
            jobs = copy_checked(source, partial, progress)
            sync(target.parent)  # not even after a power failure may the copy be there without the partial file
            times = written_at(target)
            has_content = os.fstat(lock.descriptor).st_size > 0 or wal_size(target) > 0
            stray = moved_wal or (wal_of(target) if has_stray_wal(lock.descriptor, target) else None)
            wal = stray or wal_of(target)
            if stray == wal_of(target):
                del times[1:]
            try:
                if has_content or earlier:  # an empty file tells an undo that this restore has replaced nothing
                    _set_aside(target, aside, wal)
                last_id, is_cut = _look_aside(aside)
                if stray is not None or is_cut:  # by what can be read of both, the file and its -wal or another's
                    _leave_out_ids(partial, max(last_id, promised_id_on(wal), last_id_in(wal)))
                if stray is not None:
                    wal_of(aside).unlink(missing_ok=True)
                moved_to = aside.with_name(f"{aside.name}.stray-wal")
                with without_stray_wal(partial, target, lock, stray, moved_to) if stray else nullcontext():
                    stays_unread = is_cut and stray is None
                    adopt = None if stays_unread else lambda old: _leave_out_ids(partial, _last_id(old, target))
                    is_sound = take_place(partial, target, lock, times, adopt)
            except BaseException as error:
                if partial.exists():  # the target is still in place
                    with signals.unheard():
                        _remove(aside)
                elif isinstance(error, BeanliteError) and aside.exists():
                    raise BeanliteError(f"{error}; what was there is {aside}") from error
                raise
            with suppress(OSError):  # what can't be removed, the next restore finds again
                if has_content and is_sound:
                    _remove_unfinished(target, earlier)
                _remove_begun(target)
    return RestoreResult(str(source), jobs, str(aside) if has_content else None)


def _remove_unfinished(target: Path, earlier: list[tuple[Path, float]]) -> None:
    """Remove what restores that were killed have left: the target was still in place then, and has been set aside now.

    What they had set aside goes first, since the partial file tells an undo to pass over that. OSError: something can't
    be removed.
    """
    for aside, _ in earlier:
        for partial in target.parent.glob(f".{glob.escape(_copy_path(aside).name)}.*.partial"):
            try:
                with unheld(aside):
                    _remove(aside)
            except FileNotFoundError:
                _remove(aside)  # what is left beside it
            except BlockingIOError:
                continue  # the next restore finds it again
            sync(target.parent)
            partial.unlink(missing_ok=True)
            Path(f"{partial}-journal").unlink(missing_ok=True)


def _remove_begun(target: Path) -> None:
    """Remove the copies that restores had begun when they were killed, with nothing set aside yet, or only a part.

    OSError: something can't be removed.
    """
    needed = "|".join(re.escape(_copy_path(aside).name) for aside, _ in _set_aside_earlier(target)) or "(?!)"
    begun = rf"{re.escape(target.name)}\.(?:restored|replaced)-{STAMP}(?:-wal|-journal)?"
    remove_left(target.parent, re.compile(rf"\.(?!(?:{needed})\.\w+\.partial){begun}\.\w+\.partial"))


def _last_replaced(target: Path) -> Path:
    """Return the database that the last completed restore has replaced. BeanliteError: there is none.

    A restore that was killed before the new file took its place has left that as a partial file.
    """
    try:
        names = os.listdir(target.parent)  # noqa: PTH208 - names are all that is needed
        earlier = _set_aside_earlier(target)
    except (FileNotFoundError, NotADirectoryError):
        earlier = []
    except OSError as error:
        raise BeanliteError(f"{target.parent} can't be read: {error.strerror}") from error
    for aside, _ in reversed(earlier):
        begin = f".{_copy_path(aside).name}."
        if not any(name.startswith(begin) for name in names):
            try:
                if aside.stat().st_size or wal_size(aside):
                    return aside
            except OSError as error:
                raise BeanliteError(f"{aside} can't be read: {error.strerror}") from error
            raise BeanliteError(f"there is nothing to bring back: the last restore of {target} replaced no database")
    raise BeanliteError(f"there is no {target.parent / _prefix(target)}… to bring back")


def _set_aside_earlier(target: Path) -> list[tuple[Path, float]]:
    """Return what restores have set aside, in their order, completed or not. OSError: the folder can't be read."""
    return dated_files(target.parent, _prefix(target))


def _name(target: Path, earlier: list[tuple[Path, float]]) -> Path:
    """Return the name under which the target is set aside."""
    return target.with_name(f"{_prefix(target)}{stamp(moment_after(earlier, time.time()))}")


def _prefix(target: Path) -> str:
    """Return the beginning of the names that restores give to files that they set aside."""
    return f"{target.name}.replaced-"


def _copy_path(aside: Path) -> Path:
    """Return the path after which the partial file of a restore is named that has set this aside."""
    name, _, time_text = aside.name.rpartition(".replaced-")
    return aside.with_name(f"{name}.restored-{time_text}")


def _check_target(target: Path, descriptor: int) -> None:
    """Raise JournalRefused if the target never was a queue, or has two names; a damaged queue may be replaced."""
    check_names(descriptor, target)
    header = read_at(descriptor, HEADER_BYTES, 0)
    if header and int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise JournalRefused(f"{target} is not a beanlite database; move it away, or name another file")


def _last_id(connection: sqlite3.Connection, path: Path) -> int:
    """Return the last id that a database has given out, of whatever version it is; 0 if it is too damaged to tell.

    JournalRefused: it can't be read for another reason, such as a full disk.
    """
    last_id = None
    try:
        (last_id,) = connection.execute("SELECT last_id FROM meta").fetchone()
    except TypeError:  # there is no row
        pass
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise_unless_damage(error, path)
    return last_id if isinstance(last_id, int) and 0 < last_id < COUNTER_MAX else 0


def _look_aside(aside: Path) -> tuple[int, bool]:
    """Return the last id in what was set aside with a -wal, and whether SQLite recovers only a part of that -wal.

    The id is 0 if there is no -wal, or if they are too damaged to tell, or differ too much.
    """
    commits = commit_frames(aside)
    if not commits or not size_of(aside):  # SQLite removes what it finds beside an empty file
        return 0, bool(commits)
    if journal_of(aside).exists():  # a connection that only reads can't roll back
        return 0, False
    try:
        with refused(aside), closing(sqlite3.connect(f"{aside.as_uri()}?mode=ro", uri=True)) as connection:
            last_id, index = _last_id(connection, aside), read_index(aside)
    finally:
        shm_of(aside).unlink(missing_ok=True)
    return last_id, index is None or index.frames < commits[-1]


def _leave_out_ids(partial: Path, last_id: int) -> None:
    """Make the server continue with ids above this one."""
    with refused(partial), closing(sqlite3.connect(partial, isolation_level=None)) as connection:
        allow_writing(connection)
        connection.execute("UPDATE meta SET last_id = ? WHERE last_id < ?", (last_id, last_id))


def _set_aside(target: Path, aside: Path, wal: Path) -> None:
    """Copy the file, sound or not, with its rollback journal and this -wal."""
    _copy(target, aside)
    for old, new in ((wal, wal_of(aside)), (journal_of(target), journal_of(aside))):
        if size_of(old):  # a reader leaves an empty -wal
            _copy(old, new)


def _remove(aside: Path) -> None:
    for file in (wal_of(aside), shm_of(aside), journal_of(aside), aside):  # if this is killed, the last one is found
        file.unlink(missing_ok=True)


def _copy(old: Path, new: Path) -> None:
    with written_whole(new) as partial:
        shutil.copyfile(old, partial)
        shutil.copymode(old, partial)
        give_to_owner(partial, old.stat())
