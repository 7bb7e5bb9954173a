"""Checks thoroughly whether a database file, live or not, is what a server would have written."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from beanlite.errors import BeanliteError, JournalRefused, JournalUnreadable, NotOurs
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.fileformat import (
    damaged,
    open_regular,
    refused,
    rule_out_disk,
    shm_of,
    text_of,
    wal_size,
)
from beanlite.journal.sqlite.file.mark import Mark
from beanlite.journal.sqlite.file.migrations import (
    check_foreign,
    check_schema,
    check_texts,
    names_of_ours,
    read_version,
)
from beanlite.journal.sqlite.file.note_table import check_notes
from beanlite.journal.sqlite.file.page_map import check_page_map
from beanlite.journal.sqlite.file.replay import changed_bodies, changed_rows, check_count, read_state
from beanlite.journal.sqlite.file.wal import commit_frames, has_its_own_index, is_header_damaged, read_open_index
from beanlite.journal.sqlite.tools.chain import count_commits
from beanlite.journal.sqlite.tools.reading import check_readable, reading
from beanlite.journal.validity import FAULTS_MAX, CheckResult

# Bodies that belong to no job, or to a job that has its body in its own row.
_ORPHANS: Final = """
    SELECT bodies.id FROM bodies LEFT JOIN jobs ON jobs.id = bodies.id
    WHERE jobs.id IS NULL OR jobs.body IS NOT NULL
"""
# What integrity_check says of a value or of an index: "NULL value in jobs.pri", "row 2 missing from index by_tube".
_ABOUT: Final = re.compile(r"(?:value in|constraint failed in|from index|in index) ([^.]+)(?:\.[^.]+)?$")
_Check = Callable[[sqlite3.Connection], Iterator[str]]
_STATES: Final = "SELECT state, count(*) FROM jobs GROUP BY state ORDER BY state"


def verify(path: Path) -> Iterator[CheckResult]:
    """Check the file in a single read transaction, yielding each result as it is made.

    BeanliteError: there is no such file, or it can't be opened. JournalUnreadable: nor read, or not to its end.
    """
    path = Path(os.path.realpath(path))
    try:
        descriptor = open_regular(path)
    except OSError as error:
        raise BeanliteError(f"{path} can't be opened: {error.strerror}") from error
    try:
        with _opened(descriptor, path) as (connection, index):
            yield CheckResult("file", sound=True, said=f"{path.stat().st_size} bytes, and {wal_size(path)} in a -wal")
            yield _look("pages", partial(_pages, connection, path, descriptor, index))
            with refused(path):
                connection.execute("BEGIN")
                connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
            yield _look("log", partial(_log, path, descriptor, index))
            yield from check_results(connection, path)
    except JournalUnreadable:
        raise
    except JournalRefused as error:
        yield CheckResult("file", sound=False, said=str(error), ours=not isinstance(error, NotOurs))


@contextmanager
def reading_whole(path: Path) -> Iterator[sqlite3.Connection]:
    """Read as ``reading`` does. JournalRefused also if SQLite would pass over commits, or over pages."""
    check_readable(path)
    with refused(path):
        descriptor = open_regular(path)
    with _opened(descriptor, path) as (connection, index):
        check_page_map(connection, path, descriptor, index)
        _log(path, descriptor, index)
        yield connection


@contextmanager
def _opened(descriptor: int, path: Path) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Read the file, and open the -shm; yields the connection, and the descriptor or -1.

    The descriptors are closed only after SQLite has closed its own, whose locks would be lost otherwise.
    """
    with os.fdopen(descriptor, "rb"), ExitStack() as after_sqlite, reading(path) as connection:
        index = -1
        with refused(path), suppress(FileNotFoundError):  # SQLite has made or found one, as it has read the file
            index = os.open(shm_of(path), os.O_RDONLY | os.O_CLOEXEC)
            after_sqlite.callback(os.close, index)
        yield connection, index


def check_results(connection: sqlite3.Connection, path: Path) -> Iterator[CheckResult]:
    """Check the database and yield the findings, which refer to it as `path`."""
    # Damage may have made a text invalid.
    connection.text_factory = lambda stored: stored.decode(errors="surrogateescape")
    for name, check in _CHECKS:
        yield _look(name, partial(check, connection, path))
    for name, each in (("jobs", _jobs), ("bodies", _bodies)):
        yield from _look_at_each(name, each, connection, path)


def _look_at_each(name: str, check: _Check, connection: sqlite3.Connection, path: Path) -> Iterator[CheckResult]:
    """Yield a finding for each fault, up to FAULTS_MAX, and one for the rest; or a summary if there are no faults."""
    wrong = 0
    try:
        with refused(path):
            for what in check(connection):
                wrong += 1
                if wrong <= FAULTS_MAX:
                    yield CheckResult(name, sound=False, said=str(damaged(path, what)))
            if not wrong:
                yield CheckResult(name, sound=True, said=_summary(connection, path, name))
    except JournalUnreadable:
        raise
    except JournalRefused as error:
        yield CheckResult(name, sound=False, said=str(error))
    if wrong > FAULTS_MAX:
        yield CheckResult(
            name, sound=False, said=str(damaged(path, f"{wrong - FAULTS_MAX} more of {name} have changed"))
        )


def _look(name: str, check: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, sound=True, said=check())
    except JournalUnreadable:
        raise
    except JournalRefused as error:
        return CheckResult(name, sound=False, said=str(error))


def _log(path: Path, descriptor: int, index: int) -> str:
    """Check whether SQLite has read the -wal to its end; at a damaged frame it stops silently."""
    if index < 0:
        return "no -wal"
    with refused(path):
        mark = Mark.read(descriptor)
        commits, losses = count_commits(path) if has_its_own_index(path) else _count_commits(path, index)
    if losses > 1 and mark is not None and mark.has_unsynced:
        return f"{commits - losses} commits in the -wal; {losses} were not synced when the power failed"
    if losses > 1:  # a single commit may be under way
        raise damaged(path, f"{losses} commits follow a damaged frame of its -wal")
    return f"{commits} commits in the -wal"


def _count_commits(path: Path, index: int) -> tuple[int, int]:
    """Return how many commits are in the -wal, and of how many SQLite does not know, according to the open -shm."""
    before = read_open_index(index)
    commits: list[int] = []
    if before is not None:
        # With a damaged header, SQLite has passed over all frames, and the index has nothing of theirs.
        commits = commit_frames(path, None if not before.frames and is_header_damaged(path) else before.salts)
    after = read_open_index(index)
    if before is None or after is None or before.salts != after.salts:  # the -wal was restarted meanwhile
        return len(commits), 0
    return len(commits), sum(number > after.frames for number in commits)


def _pages(connection: sqlite3.Connection, path: Path, descriptor: int, index: int) -> str:
    if not check_page_map(connection, path, descriptor, index):
        return "not seen, since the -wal changes too fast, or nobody may write beside the file"
    with refused(path):
        (count,) = connection.execute("PRAGMA page_count").fetchone()
    return f"{count} in their place"


def _sqlite(connection: sqlite3.Connection, path: Path) -> str:
    with refused(path):
        try:
            lines = [line for (line,) in connection.execute("PRAGMA integrity_check")]
        except sqlite3.OperationalError as error:
            if "no such collation" not in str(error):
                raise
            return f"integrity_check can't be run: {error}, which is another program's"
    if lines == ["ok"]:
        return "integrity_check finds nothing"
    more = f", and {len(lines) - 1} more" if lines[1:] else ""
    what = f"SQLite says {text_of(lines[0])}{more}"
    matches = [_ABOUT.search(line) for line in lines]
    if not {match[1] if match else None for match in matches} & {None, *names_of_ours(find_migrations())}:
        return f"{what}, which is not about beanlite's own tables"
    rule_out_disk(path)
    raise damaged(path, what)


def _schema(connection: sqlite3.Connection, path: Path) -> str:
    with refused(path):
        version = read_version(connection)
        check_schema(connection, path, find_migrations()[:version])
        check_foreign(connection, path, find_migrations()[:version])
        views = check_texts(connection, path, find_migrations()[:version])
    return f"version {version}" + (f"; views that are not as beanlite makes them: {', '.join(views)}" if views else "")


def _state(connection: sqlite3.Connection, path: Path) -> str:
    state = read_state(connection, path)
    notes = check_notes(connection, path)
    counts = (
        f"{len(state.pauses)} pauses, {len(state.policies)} policies, {len(state.schedules)} schedules, {notes} notes"
    )
    return f"last id {state.last_id}, {counts}"


def _jobs(connection: sqlite3.Connection) -> Iterator[str]:
    for job_id, what in changed_rows(connection):
        yield f"the row of job {job_id} has changed ({what})"


def _bodies(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield each body that is missing, does not match the checksum from its put, or belongs to no row."""
    for job_id, what in changed_bodies(connection):
        yield f"the body of job {job_id} {what}"
    for (job_id,) in connection.execute(_ORPHANS):
        yield f"a body that stands apart, of job {job_id}, belongs to no row"


def _summary(connection: sqlite3.Connection, path: Path, name: str) -> str:
    counts = connection.execute(_STATES).fetchall()
    check_count(connection, path, sum(count for _, count in counts))
    if name == "bodies":
        return f"{sum(count for _, count in counts)} checksums are right"
    return ", ".join(f"{count} {state}" for state, count in counts) or "none"


_CHECKS: Final = (
    ("sqlite", _sqlite),
    ("schema", _schema),
    ("state", _state),
)
