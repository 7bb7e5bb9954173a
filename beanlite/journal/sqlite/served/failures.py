"""Tells what a transaction failed of: a full disk, another program, the disk itself, or a bug of ours."""

import resource
import sqlite3
from pathlib import Path

from beanlite.errors import JournalBusy, JournalFailed, JournalFull
from beanlite.journal.sqlite.file.database import Database
from beanlite.journal.sqlite.file.fileformat import WHAT_TO_DO, is_full, is_locked, text_of, text_with_advice
from beanlite.journal.sqlite.served.watch import Outsiders


def failure_of(error: sqlite3.Error | OSError | MemoryError, path: Path) -> JournalFailed:
    """Return the failure to raise for an error in a transaction."""
    if isinstance(error, MemoryError):
        return JournalBusy(f"there is not enough memory to write to {path}")
    if isinstance(error, sqlite3.Error) and is_locked(error):
        return JournalBusy(f"another program holds the write lock of {path}")
    if is_full(error, path):
        return JournalFull(f"no room on the disk of {path}")
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit_text = "" if limit == resource.RLIM_INFINITY else f"; no file may have more than {limit} bytes (ulimit -f)"
    return JournalFailed(f"writing to {path} failed: {text_with_advice(error)}{limit_text}")


def disagreement(database: Database, outsiders: Outsiders, statement: str, jobs: int, rows: int) -> Exception:
    """Return the error to raise when memory and file disagree: a bug of ours if nothing has happened to the file."""
    (verdict,) = database.connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        return JournalFailed(f"{database.path} is damaged ({text_of(verdict)}); {WHAT_TO_DO}")
    what = f"{jobs} jobs to change, {rows} found: {statement}"
    if outsiders.came:
        return JournalFailed(f"{database.path} no longer is what was served; another program has been at it ({what})")
    return RuntimeError(what)
