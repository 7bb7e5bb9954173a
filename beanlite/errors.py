"""What can go wrong, told apart by whose fault it is.

::

    BeanliteError            an operator reads it: one line on stderr, then exit_code
    ├── ConfigError          a setting is unknown, malformed or contradicts another
    ├── BenchFailed          a server could not be reached under load, or answered what it should not
    ├── ListenError          an address can't be listened on
    ├── JournalRefused       the file is not one this server may use; nothing was written
    └── JournalFailed        the disk failed while serving; nothing more is acknowledged
        ├── JournalFull      the disk is full: the batch was rolled back and can be tried again
        └── JournalBusy      another program holds the file's write lock: likewise

A client's mistake is no exception: it gets the protocol's word. Whatever else is raised is our own bug.
"""

from typing import ClassVar


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


class JournalFull(JournalFailed):
    """No room on the disk for a batch; it was rolled back whole."""


class JournalBusy(JournalFailed):
    """Another program holds the write lock of the file; nothing was written."""


class BenchFailed(BeanliteError):
    """A server that is driven by the bench can't be reached, or answers something else than it should."""

    exit_code = 1


class ListenError(BeanliteError):
    """The server can't listen on the address it was given."""

    exit_code = 5
