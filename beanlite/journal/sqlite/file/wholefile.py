"""Files that appear complete or not at all: written under another name, synced, and renamed."""

import errno
import fcntl
import os
import re
import sqlite3
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from beanlite.errors import BeanliteError
from beanlite.journal.sqlite.file.fileformat import journal_of, open_regular, wal_size

# The byte by which a process claims its partial file, beyond all that files have and that SQLite locks.
_CLAIM_AT: Final = 1 << 62
# struct flock of the system, as for fcntl(2): type, whence, start, length, pid.
_LOCK_FORMAT: Final = "hhqqi4x"
# A file that was written to so recently may not be claimed yet.
_YOUNG_S: Final = 1.0
# What ends the names of the files beside a database, in which changes may be that are not in the database itself yet.
_BESIDE: Final = re.compile("-(wal|shm|journal|reserve)$")


def not_linked(dest: Path) -> Path:
    """Return the path of a file to be written, with all links among its folders resolved.

    BeanliteError: it is a symbolic link, so that another file would be written than the one that was named.
    """
    if os.path.islink(dest):  # noqa: PTH114 - Path.is_symlink raises an error without permission
        raise BeanliteError(f"{dest} is a symbolic link; name the file to write itself")
    return Path(os.path.realpath(dest.parent)) / dest.name


@contextmanager
def partial_of(dest: Path) -> Iterator[Path]:
    """Yield the path of an empty file of mode 0600 beside `dest`, to be filled, synced and renamed by the caller.

    If it has not been renamed at the end of the block, it is removed. Those that killed processes have left for the
    same `dest` are removed at the beginning. OSError: it can't be written there.
    """
    remove_left(dest.parent, re.compile(rf"\.{re.escape(dest.name)}\.\w+\.partial"))
    descriptor, name = tempfile.mkstemp(dir=dest.parent, prefix=f".{dest.name}.", suffix=".partial")
    with os.fdopen(descriptor):
        lock_byte(descriptor, _CLAIM_AT, fcntl.F_WRLCK)
        partial = Path(name)
        try:
            yield partial
        finally:
            partial.unlink(missing_ok=True)


def remove_left(folder: Path, names: re.Pattern[str]) -> None:
    """Remove partial files with such names of which the process was killed, each with SQLite's journal of it.

    OSError: the folder can't be read, or a file can't be removed.
    """
    for name in os.listdir(folder):  # noqa: PTH208 - names are all that is needed
        if names.fullmatch(name):
            partial = folder / name
            with suppress(FileNotFoundError):  # it has got its name, or another process has removed it
                if _is_left(partial):
                    partial.unlink()
                    partial.with_name(f"{name}-journal").unlink(missing_ok=True)


def lock_byte(descriptor: int, at: int, kind: int) -> bool:
    """Lock a byte of an open file for as long as it is open; returns False if another process has, or nobody can.

    ``kind`` is F_RDLCK or F_WRLCK. Locks of this kind are not lost when SQLite closes the file, and they count against
    SQLite's own, in this process as in others.
    """
    lock = struct.pack(_LOCK_FORMAT, kind, os.SEEK_SET, at, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
    except OSError:
        return False
    return True


def _is_left(partial: Path) -> bool:
    """Whether the process that has made this file has ended without removing it. FileNotFoundError: it is gone."""
    try:
        descriptor = open_regular(partial, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError:  # another user's, for example
        return False
    with os.fdopen(descriptor):
        is_old = os.fstat(descriptor).st_mtime < time.time() - _YOUNG_S
        return is_old and lock_byte(descriptor, _CLAIM_AT, fcntl.F_WRLCK)


@contextmanager
def written_whole(dest: Path, *, replace: os.stat_result | None = None) -> Iterator[Path]:
    """Yield the path of an empty file of mode 0600 beside `dest`; at the end of the block it is renamed to `dest`.

    ``replace`` is the status of the file that may be there. If the block raises, the new file is removed. OSError:
    another file is there, or the new one can't be written, synced or renamed.
    """
    if replace is None:
        _check_missing(dest)
    with partial_of(dest) as partial:
        ours = partial.stat()
        try:
            yield partial
            sync(partial)
            if replace is None:
                _check_missing(dest)  # a server may have been started on it meanwhile
            else:
                _check_same(dest, replace)
            partial.rename(dest)
            sync(dest.parent)
        except BaseException:
            with suppress(FileNotFoundError):
                if replace is None and os.path.samestat(dest.stat(), ours):  # it had already been renamed
                    dest.unlink()
            raise


def _check_missing(dest: Path) -> None:
    if os.path.lexists(dest):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(dest))


def _check_same(dest: Path, before: os.stat_result) -> None:
    """Raise OSError if there is another file at `dest` than before: nobody has locked servers out of that one."""
    with suppress(FileNotFoundError):
        if not os.path.samestat(dest.lstat(), before):
            raise OSError(errno.EBUSY, "another command has replaced it meanwhile", str(dest))


@contextmanager
def unserved(dest: Path, source: Path | None) -> Iterator[os.stat_result | None]:
    """Lock servers out of `dest` while it is replaced by a file made from `source`, if that is a file.

    Yields the status of `dest`, None if it is missing. BeanliteError: it is `source` itself, a live database, or a file
    that SQLite or a server keeps beside one; or another command replaces it. OSError: it can't be opened, or is no
    regular file.
    """
    database = Path(_BESIDE.sub("", str(dest)))
    if database != dest and database.exists():
        raise BeanliteError(f"{dest} was not replaced: it belongs to the database {database}")
    try:
        descriptor = open_regular(dest)
    except FileNotFoundError:
        yield None
        return
    with os.fdopen(descriptor):
        if source is not None and _is_open(source, descriptor):
            raise BeanliteError(f"{dest} was not replaced: it is the database itself")
        try:
            lock_servers_out(descriptor, alone=True)
        except BlockingIOError as error:
            raise BeanliteError(f"{dest} was not replaced: a server or another command holds it") from error
        if wal_size(dest):
            raise BeanliteError(f"{dest} was not replaced: it is a database with a -wal")
        if os.path.lexists(journal_of(dest)):
            raise BeanliteError(f"{dest} was not replaced: {journal_of(dest)} would be taken for a part of it")
        yield os.fstat(descriptor)


def lock_servers_out(descriptor: int, *, alone: bool = False) -> None:
    """Lock servers out of an open file for as long as it is open, and, if ``alone``, other commands where possible.

    BlockingIOError: one holds it.
    """
    for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH) if alone else (fcntl.LOCK_SH,):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            continue  # NFS has exclusive locks only of files to write to; where there are none at all, no server runs
        return


def _is_open(path: Path, descriptor: int) -> bool:
    """Whether a descriptor is of the file at a path; not if there is none, of which its reader will tell."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def vacuum_into(connection: sqlite3.Connection, dest: Path) -> None:
    """Write the contents of a database to an empty file. Raises sqlite3.Error."""
    try:
        # As bytes, because a name need not be UTF-8, and Python passes only valid text to SQLite.
        connection.execute("VACUUM INTO CAST(? AS TEXT)", (os.fsencode(dest),))
    finally:
        journal_of(dest).unlink(missing_ok=True)  # left behind when the disk was full


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk. OSError: the sync failed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
