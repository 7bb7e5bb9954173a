"""Switches the guard triggers off for the server's own connection. They stay in the file, for all other programs."""

import contextlib
import ctypes
import sqlite3
import sys

# sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, which Python has since 3.12; see https://sqlite.org/c3ref/c_dbconfig_defensive.html.
_ENABLE_TRIGGER = 1003


def switch_off_triggers(connection: sqlite3.Connection) -> None:
    """Have no trigger fire on this connection: for each row a guard would ask whether the server itself may write.

    Where that is impossible, as on a Python 3.11 with an SQLite of its own, they fire, which is only slower.
    """
    if sys.version_info >= (3, 12):
        connection.setconfig(_ENABLE_TRIGGER, False)  # noqa: FBT003 - it takes no names
    else:
        import _sqlite3  # noqa: PLC0415 - only here

        # A connection of 3.11 begins with the pointer to that of SQLite, and has no method for this.
        handle = ctypes.c_void_p.from_address(id(connection) + object.__basicsize__)
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(_sqlite3.__file__).sqlite3_db_config(handle, _ENABLE_TRIGGER, 0, None)
