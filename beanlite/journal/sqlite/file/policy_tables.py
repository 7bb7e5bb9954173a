"""The policies and the schedules in the file."""

import sqlite3
from pathlib import Path
from typing import Final

from beanlite.core.policies import PolicyRow
from beanlite.core.schedules import Schedule
from beanlite.journal import policy_rows, schedule_rows
from beanlite.journal.policy_rows import policy_of
from beanlite.journal.schedule_rows import schedule_of
from beanlite.journal.sqlite.file.fileformat import damaged, refused
from beanlite.journal.sqlite.file.migrations import read_version

SET_POLICY: Final = f"REPLACE INTO policies ({policy_rows.COLUMNS}) VALUES (?, ?, ?, ?, ?)"
UNSET_POLICY: Final = "DELETE FROM policies WHERE pattern = ? AND key = ?"
SET_SCHEDULE: Final = (
    f"REPLACE INTO schedules ({schedule_rows.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
UNSET_SCHEDULE: Final = "DELETE FROM schedules WHERE name = ?"

# The first version with these tables.
_HAS_POLICIES: Final = 5
# The last column tells whether ``said`` is what the migration makes of the others.
_POLICIES: Final = f"""
    SELECT {policy_rows.COLUMNS},
        said IS pattern || ' ' || key || ' ' || value || ' ' || CAST(changed_at * 4194304 AS INTEGER)
            || ' ' || changed_by
    FROM policies ORDER BY pattern, key
"""
_SCHEDULES: Final = f"SELECT {schedule_rows.COLUMNS} FROM schedules ORDER BY name"


def read_policies(connection: sqlite3.Connection, path: Path) -> list[PolicyRow]:
    """Read all policies. JournalRefused: the file is damaged."""
    with refused(path):
        if read_version(connection) < _HAS_POLICIES:
            return []
        rows = connection.execute(_POLICIES).fetchall()
    read = []
    for *values, alike in rows:
        try:
            policy = policy_of(values)
        except ValueError as error:
            raise damaged(path, f"row of policies has impossible values ({error!s:.200})") from error
        if not alike:
            raise damaged(path, f"the policy {policy.key} of {policy.pattern.decode()} has changed")
        read.append(policy)
    return read


def read_schedules(connection: sqlite3.Connection, path: Path) -> list[Schedule]:
    """Read all schedules. JournalRefused: the file is damaged."""
    with refused(path):
        if read_version(connection) < _HAS_POLICIES:
            return []
        rows = connection.execute(_SCHEDULES).fetchall()
    try:
        return [schedule_of(row) for row in rows]
    except ValueError as error:
        raise damaged(path, str(error)) from error
