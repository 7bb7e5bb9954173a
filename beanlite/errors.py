"""What can go wrong, told apart by whose fault it is.

::

    BeanliteError            an operator reads it: one line on stderr, then exit_code
    ├── ConfigError          a setting is unknown, malformed or contradicts another
    ├── BinlogRefused        beanstalkd's binlog is not one that can be imported; nothing was written
    ├── BenchFailed          a server could not be reached under load, or answered what it should not
    ├── ListenError          an address can't be listened on
    ├── JournalRefused       the file is not one this server may use; nothing was written
    └── JournalFailed        the disk failed while serving; nothing more is acknowledged
        ├── LeaseLost        another server has taken over
        ├── JournalFull      the disk is full: the batch was rolled back and can be tried again
        └── JournalBusy      another program holds the file's write lock: likewise

A client's mistake is no exception: it gets the protocol's word. Whatever else is raised is our own bug: it ends the
server, unless only one client can have been affected, which then is told and closed.
"""

from typing import ClassVar, Final

# Where the code is of what all clients share: an error raised there, or below, may have left it half changed.
SHARED: Final = ("beanlite/core/", "beanlite/commit/", "beanlite/net/turns.py", "beanlite/server.py")
# What only reads all that, for the statistics and for operators: a function of the server, and files.
_READER: Final = "_facts"
READS: Final = ("beanlite/core/snapshot.py", "beanlite/core/operator_find.py")


def spares_others(bug: Exception) -> bool:
    """Whether a bug that one client has met can't have harmed what all of them share, by its traceback."""
    if bug.__context__ is not None:  # when there was no memory for the traceback, this has some of it
        return False
    trace = bug.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == _READER or any(place in code.co_filename for place in READS):
            return True
        if any(place in code.co_filename for place in SHARED):
            return False
        trace = trace.tb_next
    return True


def is_ours(error: Exception) -> bool:
    """Whether code of this package had a part in it, by its traceback: in what the loop says of a socket it has not."""
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith("beanlite."):
            return True
        trace = trace.tb_next
    return False


def place_of(bug: Exception) -> str:
    """The file and line in which it was raised."""
    trace = bug.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "?"


class BeanliteError(Exception):
    """An error that an operator can act upon; its text is one line."""

    exit_code: ClassVar[int] = 1


class ConfigError(BeanliteError):
    """A setting is unknown, malformed, or contradicts another."""

    exit_code = 2


class JournalRefused(BeanliteError):
    """The database file can't be used as it is; nothing was written to it."""

    exit_code = 3


class JournalFailed(BeanliteError):
    """Writing or syncing the journal failed; what was not acknowledged may or may not be in the file."""

    exit_code = 4


class LeaseLost(JournalFailed):
    """Another server has taken over, and this one may not write any more; what was not acknowledged is not stored."""

    exit_code = 6


class JournalFull(JournalFailed):
    """No room on the disk for a batch; it was rolled back whole."""


class JournalBusy(JournalFailed):
    """Another program holds the write lock of the file; nothing was written."""


class BinlogRefused(BeanliteError):
    """beanstalkd's binlog can't be imported as it is; nothing was written."""

    exit_code = 3


class BenchFailed(BeanliteError):
    """A server that is driven by the bench can't be reached, or answers something else than it should."""

    exit_code = 1


class ListenError(BeanliteError):
    """The server can't listen on the address it was given."""

    exit_code = 5
