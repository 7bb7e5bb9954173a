"""Files named after the time at which they were made: backups in a folder, and files that a restore has set aside.

The names sort by time, which is UTC with milliseconds: queue-20261122T213456.789Z.db.
"""

import errno
import os
import re
import time
from calendar import timegm
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from beanlite.errors import JournalRefused
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.fileformat import (
    APPLICATION_ID,
    HEADER_BYTES,
    check_file,
    claimed_size,
    open_regular,
    read_at,
    wal_size,
)
from beanlite.journal.sqlite.file.wholefile import lock_servers_out, remove_left

STAMP: Final = r"(\d{8}T\d{6})\.(\d{3})Z"
_SUFFIX: Final = ".db"
# A partial file, or SQLite's journal of one, that has not been written to for this long was left by a killed backup,
# even on a file system where nobody can claim one.
_STALE_S: Final = 86400.0


def stamp(at_s: float) -> str:
    """Return a time, in UTC seconds, in the form used in names."""
    at_ms = int(at_s * 1000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(at_ms // 1000))}.{at_ms % 1000:03}Z"


def moment_after(earlier: list[tuple[Path, float]], at_s: float) -> float:
    """Return the moment for a name that sorts behind earlier ones even if the clock has been set back since then."""
    return max(at_s, earlier[-1][1] + 0.0015) if earlier else at_s  # a millisecond later, however it is rounded


def dated_path(folder: Path, source: Path, at_s: float) -> Path:
    """Return the path in the folder of a backup of the source that is made at ``at_s``, in UTC seconds."""
    earlier: list[tuple[Path, float]] = []
    with suppress(OSError):  # the backup itself reports what is wrong with the folder
        earlier = dated_files(folder, f"{source.stem}-", _SUFFIX)
    return folder / f"{source.stem}-{stamp(moment_after(earlier, at_s))}{_SUFFIX}"


def dated_files(folder: Path, before: str, after: str = "") -> list[tuple[Path, float]]:
    """Return the files in the folder named `before`, a time and `after`, oldest first, each with its time.

    Times are in UTC seconds. OSError: the folder can't be read.
    """
    pattern = re.compile(re.escape(before) + STAMP + re.escape(after))
    files = []
    for name in os.listdir(folder):  # noqa: PTH208 - names are all that is needed
        match = pattern.fullmatch(name)
        if match:
            with suppress(ValueError):  # there is no such time: it is not a file of ours
                moment_s = timegm(time.strptime(match[1], "%Y%m%dT%H%M%S")) + int(match[2]) / 1000
                files.append((folder / name, moment_s))
    return sorted(files)


def dated_backups(folder: Path, source: Path) -> list[tuple[Path, float]]:
    """Return the backups of the source in the folder, oldest first, each with the time at which it was made.

    Files with such a name that are not databases of ours are left out. OSError: the folder can't be read.
    """
    files = dated_files(folder, f"{source.stem}-", _SUFFIX)
    return [(file, moment_s) for file, moment_s in files if _is_ours(file)]


def delete_oldest(folder: Path, source: Path, keep: int, newest: Path) -> tuple[list[Path], list[OSError]]:
    """Delete the oldest backups of the source in the folder until `keep` are left, sparing `newest`.

    Returns those deleted, and for each that can't be, why. Partial files left by backups that were killed are deleted
    too. OSError: the folder can't be read.
    """
    failures = delete_left(folder, source)
    others = [file for file, _ in dated_backups(folder, source) if file != newest]
    surplus = others[: max(0, len(others) + 1 - keep)]
    deleted = []
    for file in surplus:
        try:
            _delete(file)
            deleted.append(file)
        except FileNotFoundError:
            continue  # another backup has deleted it meanwhile
        except OSError as error:  # it is another user's, for example; the others take up room as well
            failures.append(error)
    return deleted, failures


def _delete(backup: Path) -> None:
    """Delete a backup unless jobs were added to it. OSError: it can't be deleted."""
    with unheld(backup):
        if wal_size(backup):
            raise OSError(errno.EBUSY, "a server that held it was killed, and its -wal has changes", str(backup))
        backup.unlink(missing_ok=True)


@contextmanager
def unheld(file: Path) -> Iterator[None]:
    """Lock servers out of a file in this block. BlockingIOError: one holds it. OSError: it can't be opened."""
    with os.fdopen(open_regular(file), "rb", buffering=0) as opened:
        try:
            lock_servers_out(opened.fileno())
        except BlockingIOError:
            raise BlockingIOError(errno.EAGAIN, "a server or another command holds it", str(file)) from None
        yield


def _is_ours(file: Path) -> bool:
    try:
        descriptor = open_regular(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if status.st_nlink > 1:  # a snapshot of the folder shares it: it can't be served, but it is a backup
            return _has_our_header(read_at(descriptor, HEADER_BYTES, 0), status.st_size)
        check_file(descriptor, file, len(find_migrations()))
        return os.fstat(descriptor).st_size > 0
    except (JournalRefused, OSError):
        return False
    finally:
        os.close(descriptor)


def _has_our_header(header: bytes, size: int) -> bool:
    """Whether a file of this size, in bytes, is by its header a whole database of ours, and not of a newer version."""
    is_ours = header.startswith(b"SQLite format 3\0") and int.from_bytes(header[68:72]) == APPLICATION_ID
    return is_ours and int.from_bytes(header[60:64]) <= len(find_migrations()) and 0 < claimed_size(header) <= size


def delete_left(folder: Path, source: Path) -> list[OSError]:
    """Delete the partial files of backups of the source that were killed. Returns for each that can't be, why.

    OSError: the folder can't be read.
    """
    failures: list[OSError] = []
    name = rf"\.{re.escape(source.stem)}-{STAMP}{re.escape(_SUFFIX)}\.\w+\.partial"
    try:
        remove_left(folder, re.compile(name))
    except OSError as error:
        failures.append(error)
    pattern = re.compile(rf"{name}(-journal)?")
    for each in os.listdir(folder):  # noqa: PTH208 - as above
        if pattern.fullmatch(each):
            try:
                if (folder / each).stat().st_mtime < time.time() - _STALE_S:
                    (folder / each).unlink()
            except FileNotFoundError:
                pass  # meanwhile another backup has been made, or has deleted it
            except OSError as error:
                failures.append(error)
    return failures
