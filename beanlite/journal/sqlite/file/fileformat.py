"""Recognises our files by their first bytes, before SQLite touches them, and words the errors about them."""

import errno
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from beanlite.errors import JournalFailed, JournalLocked, JournalRefused, JournalUnreadable, NoRoom, NotOurs
from beanlite.journal.sqlite.file.filesystem import lack_of

# SQLite's application id, which identifies the program that a file belongs to: "bean", at byte 68.
APPLICATION_ID = 0x6265616E
# The size of a page in bytes, the same as that of most file systems' blocks.
PAGE_SIZE = 4096
# The size in bytes of the header at the beginning of a database file.
HEADER_BYTES = 100
# Bytes 18 and 19 of a file that has, or may have, a -wal.
WAL_MODE = b"\x02\x02"

# The errors with which SQLite reports damage. TOOBIG: a row claims to be larger than any row can be. CONSTRAINT: a row
# could never have been inserted with its present values.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT)
# Those with which SQLite also reports that the disk could not read a page.
_UNREAD = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# How many bytes are read at a time to check whether the disk can read a file at all.
_READ_BYTES = 1 << 20
# How many characters of SQLite's messages are repeated: SQLite quotes all of a damaged schema.
_SAID_MAX = 200
# What an operator can do about a damaged file.
WHAT_TO_DO = "restore a backup, or save what is sound with beanlite salvage"
# The same while the file is served, when there is no time to find out whether only the disk could not read it.
ADVICE = f"if beanlite verify finds damage, {WHAT_TO_DO}"
# The size of the test allocation after a failed write of SQLite's: more than the page that SQLite writes at a time.
_QUOTA_PROBE_BYTES = 1 << 16
# SQLite takes paths of 512 bytes, of which it leaves 8 for what it adds, such as "-journal".
_PATH_BYTES_MAX = 504
# How SQLite's rollback journal begins (https://sqlite.org/fileformat.html).
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


def wal_of(path: Path) -> Path:
    """Return the name of the write-ahead log that SQLite keeps beside the database file."""
    return path.with_name(path.name + "-wal")


def shm_of(path: Path) -> Path:
    """Return the name of the index that SQLite keeps of the write-ahead log."""
    return path.with_name(path.name + "-shm")


def wal_size(path: Path) -> int:
    """Return the bytes in the write-ahead log of the database file; 0 if there is none."""
    return size_of(wal_of(path))


def size_of(file: Path) -> int:
    """Return the bytes in a file; 0 if there is none."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file. OSError: it can't be opened, or is not a regular file.

    The type is checked before opening: opening a pipe would block, opening a device may have effects, and the error for
    a socket is unclear.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.open(path, flags | os.O_CLOEXEC)


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Read ``size`` bytes at an offset, fewer only at the end of the file: the system may return them in parts."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def journal_of(path: Path) -> Path:
    """Return the name of SQLite's rollback journal, which exists while a file is created or its mode is changed."""
    return path.with_name(path.name + "-journal")


def is_full(error: sqlite3.Error | OSError, path: Path) -> bool:
    """Whether the error means that there is no room on the disk of the file, or that a quota is used up."""
    if isinstance(error, OSError):
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    code = getattr(error, "sqlite_errorcode", 0)  # an error of Python's own layer has none
    if code == sqlite3.SQLITE_IOERR_WRITE:
        return has_used_up_quota(path, _QUOTA_PROBE_BYTES)
    return code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE


def has_used_up_quota(path: Path, size: int) -> bool:
    """Whether a quota forbids ``size`` more bytes on the disk of the file.

    Only an attempt can tell: SQLite reports an exceeded quota like a failing disk, and statvfs may not show quotas.
    """
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            os.posix_fallocate(probe.fileno(), 0, size)
    except OSError as error:
        return error.errno == errno.EDQUOT
    return False


def text_of(what: Exception | str) -> str:
    """Return the message of SQLite or the system as one short line, since it may quote the contents of the file."""
    text = " ".join(str(what).split())[:_SAID_MAX]
    return "".join(character if character.isprintable() else "?" for character in text)


def text_with_advice(error: Exception) -> str:
    """Return the message of an error that was met while serving, and what to do if it is about damage."""
    may_be_damage = getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNREAD
    return f"{text_of(error)}; {ADVICE}" if may_be_damage else text_of(error)


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether the error means that SQLite, or Python's layer above it, can make no sense of the file.

    An error without a code comes from Python's layer: some text in the file is not valid text. A UnicodeDecodeError
    does too, when SQLite quotes a damaged schema.
    """
    if isinstance(error, UnicodeDecodeError):
        return True
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGE


def damaged(path: Path, how: str) -> JournalRefused:
    """Return the error with which a damaged file is refused."""
    return JournalRefused(f"{path} is damaged: {how}; {WHAT_TO_DO}")


def stray_wal(path: Path) -> JournalRefused:
    """Return the error with which a file is refused that was put in the place of the one to which its -wal belongs."""
    return JournalRefused(
        f"{wal_of(path)} belongs to another file than {path}, as after a copy over the file of a killed server: to go"
        " on with the copy, move the -wal and the -shm away; what was acknowledged since then is in them, and beanlite"
        " salvage saves what it can from both"
    )


def check_file(descriptor: int, path: Path, newest: int, *, to_read: bool = False) -> None:
    """Raise JournalRefused unless the open file is empty, or ours and of a version up to `newest`.

    The offsets are those of SQLite's database header. Changes that are only in the -wal are not considered here.
    ``to_read``: the file is only read.
    """
    check_names(descriptor, path, to_read=to_read)
    status = os.fstat(descriptor)
    header = read_at(descriptor, HEADER_BYTES, 0)
    if not header and wal_size(path):
        raise JournalRefused(f"{path} is missing or empty, but {wal_of(path)} is not; put back what belongs to that")
    pages_before = _pages_before(path)
    if not header or (pages_before == 0 and not any(header[68:72])):
        return  # this is the first start, or the first one was interrupted, and SQLite will empty the file again
    if len(header) < HEADER_BYTES or not header.startswith(b"SQLite format 3\0"):
        raise NotOurs(f"{path} is not an SQLite file; name another one")
    if not _is_bare(header, status.st_size):
        _check_ours(header, path, newest)
        if pages_before is None:
            _check_whole(header, path, status.st_size)
        elif pages_before == 0:
            _check_new(path)


def check_names(descriptor: int, path: Path, *, to_read: bool = False) -> None:
    """Raise JournalRefused if the open file has other names than this one, or what belongs beside it is no file.

    A backup that is only read may have other names, as in snapshots of its folder.
    """
    names = os.fstat(descriptor).st_nlink
    if names > 1 and not (to_read and _is_whole(descriptor, path)):
        advice = "remove the others, or copy it, with its -wal if it has one"
        why = f"its -wal would be found under one of them only; {advice}"
        raise JournalRefused(f"{path} has {names} names (hard links), and {why}")
    for beside in (wal_of(path), shm_of(path), journal_of(path)):
        with suppress(OSError):
            mode = beside.stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # SQLite would wait for the other end of a pipe
                raise JournalRefused(f"{beside} is no regular file; move it away")


def _is_whole(descriptor: int, path: Path) -> bool:
    """Whether nothing can be beside an open file under any of its names, as with a backup that was never served."""
    return read_at(descriptor, HEADER_BYTES, 0)[18:20] != WAL_MODE and not journal_of(path).exists()


def _check_ours(header: bytes, path: Path, newest: int) -> None:
    if int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise NotOurs(f"{path} is an SQLite database, but not one of beanlite's; name another one")
    check_version(path, int.from_bytes(header[60:64]), newest)
    page_size = int.from_bytes(header[16:18])
    if page_size != PAGE_SIZE:
        raise JournalRefused(f"{path} was given pages of another size than {PAGE_SIZE}; undo that, by VACUUM")


def _check_whole(header: bytes, path: Path, size: int) -> None:
    if not wal_size(path):
        # With a -wal, the file may legitimately be short: an interrupted checkpoint is repeated from the -wal.
        whole = claimed_size(header)
        if size < whole:
            raise JournalRefused(f"{path} is damaged: {size} bytes are left of {whole}; {WHAT_TO_DO}")
    elif header[18:20] != WAL_MODE:
        # SQLite would still overwrite pages with those of the -wal. Backups are not in WAL mode until first served.
        raise stray_wal(path)


def _check_new(path: Path) -> None:
    """Raise JournalRefused if a file that has had jobs is beside the journal of a first start, which would empty it."""
    with (
        suppress(sqlite3.Error, UnicodeDecodeError),
        closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection,
    ):
        if connection.execute("SELECT 1 FROM meta WHERE last_id > 0").fetchone():
            raise JournalRefused(
                f"{journal_of(path)} belongs to another file than {path}, as after a restore; remove it"
            )


def claimed_size(header: bytes) -> int:
    """Return the size in bytes of a database file according to its header."""
    return int.from_bytes(header[16:18]) * int.from_bytes(header[28:32])


def _pages_before(path: Path) -> int | None:
    """Return the number of pages before an interrupted change, which SQLite will roll back; None: there is none."""
    try:
        with journal_of(path).open("rb", buffering=0) as journal:
            header = read_at(journal.fileno(), 28, 0)
    except FileNotFoundError:
        return None
    return int.from_bytes(header[16:20]) if header.startswith(_JOURNAL_MAGIC) else None


def _is_bare(header: bytes, size: int) -> bool:
    """Whether the file is a single empty page, as version 0.1 left it when its first start was interrupted."""
    empty = not (any(header[40:44]) or any(header[60:64]) or any(header[68:72]))  # schema, version, owner
    return size == PAGE_SIZE and empty and int.from_bytes(header[64:68]) == 1  # auto_vacuum = INCREMENTAL


def check_version(path: Path, version: int, newest: int) -> None:
    """Raise NotOurs if a file of this version belongs to a newer beanlite."""
    if version > newest:
        raise NotOurs(f"{path} has version {version}, this beanlite knows {newest}; use a newer beanlite")


def rule_out_disk(path: Path) -> None:
    """Raise JournalUnreadable if the disk can't read the file or its -wal, or briefly could not and there is no damage.

    SQLite reports such errors as damage. Closing the file here drops SQLite's locks on it, so nothing may be written
    afterwards.
    """
    for each in (path, wal_of(path)):
        try:
            with each.open("rb", buffering=0) as file:
                while file.read(_READ_BYTES):
                    pass
        except FileNotFoundError:
            continue
        except OSError as error:
            raise JournalUnreadable(f"{each} can't be read: {error.strerror}; check the disk") from error
    if not path.exists() or _is_sound(path):  # a missing file was new, and was removed when its creation failed
        raise JournalUnreadable(f"{path} could not be read a moment ago; check the disk, and try again")


def _is_sound(path: Path) -> bool:
    how = "mode=ro" if wal_of(path).exists() else "immutable=1"  # immutable leaves no files beside it
    uri = f"{path.absolute().as_uri()}?{how}"
    with suppress(sqlite3.Error, UnicodeDecodeError), closing(sqlite3.connect(uri, uri=True, timeout=0)) as connection:
        rows: list[tuple[str]] = connection.execute("PRAGMA integrity_check(1)").fetchall()
        return rows == [("ok",)]
    return False


@contextmanager
def failing(path: Path | str) -> Iterator[None]:
    """Convert errors of SQLite or the system about the file while it is served into JournalFailed."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise failed(error, path) from error


def failed(error: OSError | sqlite3.Error, path: Path | str) -> JournalFailed:
    """Return the error to raise for an error of SQLite or the system about the file while it is served."""
    if isinstance(error, sqlite3.Error):
        return JournalFailed(f"{path} can't be read: {text_with_advice(error)}")
    return JournalFailed(f"{path} can't be looked at: {error.strerror or text_of(error)}")


def is_locked(error: sqlite3.Error) -> bool:
    """Whether the error means that another program holds a lock on the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _unusable(error: sqlite3.Error, path: Path) -> JournalUnreadable:
    what = f"{path} can't be used: {text_of(error)}"
    lack = lack_of(path.parent)
    if lack is not None:  # SQLite reports it as a lock that is held, or as a failed read or write
        return JournalUnreadable(f"{what}; {lack}")
    if is_locked(error):
        return JournalLocked(f"{what}; another program holds a lock on it: end what that does there, and try again")
    advice = "check the disk, and the owner and the mode of the folder, the file, its -wal and its -shm"
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        advice = f"its path is longer than the {_PATH_BYTES_MAX} bytes that SQLite takes"
    return JournalUnreadable(f"{what}; {advice}")


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Convert errors of SQLite or the system about the file into JournalRefused, or JournalUnreadable."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise JournalRefused(f"{path} is damaged (its schema is no text); {WHAT_TO_DO}") from error
    except (sqlite3.Error, OSError) as error:
        if is_full(error, path):
            raise NoRoom(f"no space left on the disk of {path}") from error
        if isinstance(error, OSError):
            is_denied = isinstance(error, PermissionError)
            check = "check the owner and the mode of the folder and the file" if is_denied else "check the disk"
            advice = lack_of(path.parent) or check
            raise JournalUnreadable(f"{path} can't be used: {error.strerror or text_of(error)}; {advice}") from error
        if is_damage(error):
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNREAD:
                rule_out_disk(path)
            raise JournalRefused(f"{path} is damaged ({text_of(error)}); {WHAT_TO_DO}") from error
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:
            raise damaged(path, text_of(error)) from error  # our statements are valid, so the schema must be wrong
        raise _unusable(error, path) from error
    except JournalFailed as error:  # the disk failed before anything was served
        raise JournalUnreadable(str(error)) from error
    except MemoryError as error:
        raise JournalUnreadable(f"there is not enough memory for what {path} holds") from error
