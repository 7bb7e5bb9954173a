"""What can go wrong, classified by whose fault it is.

::

    BeanliteError            reported to the operator: one line on stderr, then exit_code
    ├── ConfigError          a setting is unknown, malformed or contradicts another
    ├── BinlogRefused        beanstalkd's binlog can't be imported; nothing was written
    ├── ListenError          the server can't listen on an address
    ├── JournalRefused       the file is not one that this server may use; nothing was written
    │   ├── NotOurs          it is no database of beanlite's, or one of a newer version
    │   └── JournalUnreadable    it can't be read or written now, whether it is sound or not
    │       ├── JournalLocked    another program has locked it; a start waits for that, and then fails as JournalBusy
    │       └── NoRoom           the disk is full; a start fails as JournalFull
    └── JournalFailed        the disk failed while serving; nothing more is acknowledged
        ├── LeaseLost        another server has taken over
        ├── JournalFull      the disk is full: the batch was rolled back and can be retried
        └── JournalBusy      another program holds the file's write lock: likewise

A client's mistake is not an exception: it is answered with the protocol's word. Any other exception is a bug of ours.
It ends the server, unless only one client can have been affected; that client then gets an error, and is closed.
"""

import os
import sys
from typing import ClassVar


def is_ours(error: Exception) -> bool:
    """Whether code of this package is in the traceback of an error, unlike one that the loop reports of a socket."""
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith("beanlite."):
            return True
        trace = trace.tb_next
    return False


def missing(package: str) -> str:
    """Return what to say of a package of an extra that is missing: how to install it where this program is installed.

    The extra itself can't be named: it may be one of a checkout or one of PyPI.
    """
    return f"{package} is missing: {sys.executable} -m pip install {package}"


def place_of(bug: BaseException) -> str:
    """Return the file and line in which a bug was raised."""
    trace = bug.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "?"


def in_system_words(error: OSError) -> str:
    """Return the system's words for an error of a socket: those of Python's libraries repeat the address."""
    # The numbers of errors in looking up a name are negative.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)


class BeanliteError(Exception):
    """An error that an operator can act on; its text is one line."""

    exit_code: ClassVar[int] = 1


class ConfigError(BeanliteError):
    """A setting is unknown, malformed, or contradicts another."""

    exit_code = 2


class JournalRefused(BeanliteError):
    """The database file can't be used as it is; nothing was written to it."""

    exit_code = 3


class NotOurs(JournalRefused):
    """The file is no database of beanlite's, or one of a newer version; whether it is sound is another question."""


class JournalUnreadable(JournalRefused):
    """The system can't read or write the file now, or has no room for it; whether it is sound is another question."""


class JournalLocked(JournalUnreadable):
    """Another program holds a lock on the file, which may be gone the next time."""


class NoRoom(JournalUnreadable):
    """The disk has no room for what it takes to read or write the file, but may have the next time."""


class JournalFailed(BeanliteError):
    """Writing or syncing the journal failed; changes that were not acknowledged may or may not be in the file."""

    exit_code = 4


class LeaseLost(JournalFailed):
    """Another server has taken over, and this one may not write any more; unacknowledged changes are not stored."""

    exit_code = 6


class JournalFull(JournalFailed):
    """There is no room on the disk for a batch, which was rolled back completely."""


class JournalBusy(JournalFailed):
    """Another program holds the write lock of the file; nothing was written."""


class BinlogRefused(BeanliteError):
    """beanstalkd's binlog can't be imported as it is; nothing was written."""

    exit_code = 3


class ListenError(BeanliteError):
    """The server can't listen on the address that it was given."""

    exit_code = 5
