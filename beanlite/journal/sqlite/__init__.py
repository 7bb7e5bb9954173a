"""The room of the database file, and the only place that knows SQL.

A file is opened, locked and checked by `open_database`, its content read back by the three functions of `replay`, and
what changes is written by `writer`; `backup` makes a copy, in a process of its own. Below them: `fileformat` (which
files are ours), `migrations`, `wal` (a look at SQLite's own log before it is recovered) and `aside` (files that appear
whole or not at all).
"""

from beanlite.journal.sqlite.database import Database, check_body_size, open_database
from beanlite.journal.sqlite.replay import State, check_jobs, check_names, count_jobs, read_jobs, read_state

__all__ = [
    "Database",
    "State",
    "check_body_size",
    "check_jobs",
    "check_names",
    "count_jobs",
    "open_database",
    "read_jobs",
    "read_state",
]
