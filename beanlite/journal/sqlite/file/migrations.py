"""Applies the numbered SQL files that create the schema and bring a file of an older version up to date.

The version of a file (SQLite's user_version) is the number of the last migration that has been applied to it.
"""

import json
import os
import re
import shlex
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from beanlite.errors import JournalRefused
from beanlite.host import log
from beanlite.journal.columns import DEFAULTS
from beanlite.journal.sqlite.file.fileformat import APPLICATION_ID, damaged, is_locked, journal_of, text_of
from beanlite.journal.sqlite.file.wholefile import sync, vacuum_into

# The objects of these names, with their columns if they have any. Views are passed over: no job depends on ours, an
# operator may have made better ones, and SQLite can't tell the columns of one that is broken.
_SHAPE = """
    SELECT objects.type, objects.name, columns.name
    FROM sqlite_schema AS objects LEFT JOIN pragma_table_info(objects.name) AS columns
    WHERE objects.type <> 'view' AND objects.name IN (SELECT value FROM json_each(?))
"""
# What can change or refuse what the server writes to some tables. SQLite keeps the table of a trigger as it was typed.
# An expression may fail for a job that is yet to come: that of an index, of its condition, or of a generated column.
# A collation of another program is unknown here, so that nothing can be put.
_MEDDLING = """
    SELECT 'TRIGGER', name, tbl_name FROM sqlite_schema
    WHERE type = 'trigger' AND lower(tbl_name) IN (SELECT lower(value) FROM json_each(?1))
    UNION ALL
    SELECT DISTINCT 'INDEX', list.name, tables.value
    FROM json_each(?1) AS tables, pragma_index_list(tables.value) AS list, pragma_index_xinfo(list.name) AS keys
    WHERE list.origin = 'c' AND keys.key AND (
        list."unique" OR list.partial OR keys.cid = -2 OR upper(keys.coll) NOT IN ('BINARY', 'NOCASE', 'RTRIM')
    )
    UNION ALL
    SELECT 'COLUMN', columns.name, tables.value
    FROM json_each(?1) AS tables JOIN sqlite_schema AS ours ON ours.type = 'table' AND ours.name = tables.value,
    pragma_table_xinfo(ours.name) AS columns
    WHERE columns.hidden IN (2, 3)
"""
# The objects whose text SQLite keeps verbatim. It changes the text of tables when columns are added. Damage may
# have left what is no text.
_TEXTS = "SELECT type, name, CAST(sql AS BLOB) FROM sqlite_schema WHERE type IN ('view', 'trigger')"


class _Schema(NamedTuple):
    """What migrations create: the type and name of each object, and what the statements above find."""

    objects: frozenset[tuple[str, str]]
    names: str
    """All names, as JSON."""
    tables: tuple[str, ...]
    shape: frozenset[tuple[str, str, str | None]]
    meddling: frozenset[tuple[str, str, str]]
    texts: frozenset[tuple[str, str, bytes]]


@lru_cache(maxsize=8)
def _schema_of(migrations: tuple[Path, ...]) -> _Schema:
    with closing(_model(list(migrations))) as model:
        objects = frozenset(model.execute("SELECT type, name FROM sqlite_schema"))
        names = json.dumps(sorted(name for _, name in objects))
        tables = tuple(sorted(name for kind, name in objects if kind == "table"))
        shape = frozenset(model.execute(_SHAPE, (names,)))
        return _Schema(
            objects, names, tables, shape, frozenset(meddling(model, tables)), frozenset(model.execute(_TEXTS))
        )


def read_version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration that has been applied to the database; 0 if it is new."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def allow_writing(connection: sqlite3.Connection) -> None:
    """Give the connection the function that the guard triggers name, although they never actually call it."""
    connection.create_function("only_the_beanlite_server_may_write", 0, lambda: 1)


def check_schema(connection: sqlite3.Connection, path: Path, migrations: list[Path]) -> frozenset[str]:
    """Raise JournalRefused unless the database has all tables and triggers that these migrations create, or more.

    Returns the names of the tables and views that they create. Names are compared rather than statements, whose text
    differs between versions of SQLite.
    """
    schema = _schema_of(tuple(migrations))
    missing = schema.shape - set(connection.execute(_SHAPE, (schema.names,)))
    if missing:
        kind, name, _ = min(missing, key=str)
        raise damaged(path, f"the {kind} {name} is missing or was changed")
    return frozenset(name for kind, name in schema.objects if kind in {"table", "view"})


def names_of_ours(migrations: list[Path]) -> frozenset[str]:
    """Return the names of everything that these migrations create."""
    return frozenset(name for _, name in _schema_of(tuple(migrations)).objects)


def check_foreign(connection: sqlite3.Connection, path: Path, migrations: list[Path]) -> None:
    """Raise JournalRefused if our tables have something ``meddling`` that these migrations do not create.

    SQLite carries out such a trigger within the server's own changes, so that no guard stops it: jobs that have been
    acknowledged could be gone. With such an index or column puts would fail. The triggers of our views change nothing
    of ours.
    """
    schema = _schema_of(tuple(migrations))
    foreign = sorted(meddling(connection, schema.tables) - schema.meddling)
    if foreign:
        raise JournalRefused(f"{path} {describe_foreign(path, foreign[0])}")


def meddling(connection: sqlite3.Connection, tables: Iterable[str]) -> set[tuple[str, str, str]]:
    """Return the triggers of these tables, and the indexes and columns that may refuse a row.

    Of each this is what it is, its name, and its table.
    """
    return set(connection.execute(_MEDDLING, (json.dumps(sorted(tables)),)))


def describe_foreign(path: Path, foreign: tuple[str, str, str]) -> str:
    """Tell which trigger, index or column of another program a file has, and how to remove it."""
    kind, name, table = foreign
    quoted = name.replace('"', '""')
    of_table = f"ALTER TABLE {table} " if kind == "COLUMN" else ""
    drop = shlex.join(["sqlite3", str(path), f'{of_table}DROP {kind} "{quoted}"'])
    what = {"TRIGGER": "a trigger", "INDEX": "an index", "COLUMN": "a generated column"}[kind]
    harm = "could change or remove jobs unnoticed" if kind == "TRIGGER" else "could keep jobs from being stored"
    return f"has {what} of another program on its table {table.lower()}, {name}, which {harm}; remove it: {drop}"


def check_texts(connection: sqlite3.Connection, path: Path, migrations: list[Path]) -> list[str]:
    """Raise JournalRefused unless the text of each trigger is exactly as these migrations create it.

    Returns the names of the views that have another text, or are missing: an operator may have installed a better one,
    and no job depends on it.
    """
    differences = _schema_of(tuple(migrations)).texts - set(connection.execute(_TEXTS))
    views = sorted(name for kind, name, _ in differences if kind == "view")
    if len(views) < len(differences):
        name = min(name for kind, name, _ in differences if kind == "trigger")
        raise damaged(path, f"the trigger {name} has changed")
    return views


def stand_in(connection: sqlite3.Connection, migrations: list[Path]) -> None:
    """Show a read-only connection the jobs of an older file with all current columns, the missing ones by default.

    This way the same statements can read an older file, such as a backup from before an update.
    """
    version = read_version(connection)
    if version < len(migrations):
        missing = columns_of_jobs(migrations)[len(columns_of_jobs(migrations[:version])) :]
        values = "".join(f", {json.dumps(DEFAULTS.get(name))} AS {name}" for name in missing)
        connection.execute(f"CREATE TEMP VIEW jobs AS SELECT *{values} FROM main.jobs")


def columns_of_jobs(migrations: list[Path]) -> list[str]:
    """Return the columns of the table of jobs that these migrations make, in order; each version appends some."""
    with closing(_model(migrations)) as model:
        return [name for (name,) in model.execute("SELECT name FROM pragma_table_info('jobs') ORDER BY cid")]


def _model(migrations: list[Path]) -> sqlite3.Connection:
    """Return an empty in-memory database created by these migrations."""
    model = sqlite3.connect(":memory:", isolation_level=None)
    allow_writing(model)
    model.executescript(_script(migrations, 0))
    return model


def migrate(connection: sqlite3.Connection, path: Path, migrations: list[Path]) -> None:
    """Bring the database at `path` up to date in one transaction; an older one is first copied to FILE.before-vN.

    If this is interrupted at any point, the next start finishes it or starts over: once the copy is whole it is a
    partial file, and gets its name only when the migration is in the file. JournalRefused: the copy can't be made, or a
    migration failed.
    """
    version = read_version(connection)
    _tidy_copies(path, version)
    if version == len(migrations):
        return
    copy = path.with_name(f"{path.name}.before-v{len(migrations)}")
    partial = copy.with_name(f"{copy.name}.partial")
    if version:
        _keep_copy(connection, path, copy, partial)
    try:
        connection.executescript(_script(migrations, version))
    except sqlite3.Error as error:
        which = ""
        if connection.in_transaction:
            migration = [*migrations, migrations[-1]][read_version(connection)]  # the last one if COMMIT itself failed
            which = f" {migration.name}"
            connection.rollback()
        # Otherwise SQLite has rolled back already, and nothing may be read: if the sync of the emptied file has failed,
        # SQLite would delete the journal, without which the file could have some of its pages after a power failure.
        partial.unlink(missing_ok=True)
        if is_locked(error):
            raise
        raise JournalRefused(f"the migration{which} of {path} failed: {text_of(error)}") from error
    # An older server must find the new version in the file itself, so that it refuses before SQLite touches anything.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    _tidy_copies(path, len(migrations))
    if version:
        log.info("migrated", file=path, from_version=version, to_version=len(migrations), copy=copy)


def _tidy_copies(path: Path, version: int) -> None:
    """Give each copy its name if the file, which has this version, has had the migration for which it was made.

    Otherwise that migration was interrupted, and the copy is removed; as is one that is not whole.
    """
    for partial in _copies(path, ".partial.begun"):  # as the file is locked, no other process is making one
        journal_of(partial).unlink(missing_ok=True)
        partial.unlink(missing_ok=True)
    for partial in _copies(path, ".partial"):
        copy = partial.with_suffix("")
        if os.path.lexists(copy):
            continue  # not one of ours
        if version >= int(copy.name.removeprefix(f"{path.name}.before-v")):
            partial.rename(copy)
            sync(path.parent)
        else:
            partial.unlink()
            journal_of(partial).unlink(missing_ok=True)


def _copies(path: Path, end: str) -> list[Path]:
    """Return the files with this end whose names are those of copies of this database, and not of FILE.before-vN."""
    name = re.compile(rf"{re.escape(path.name)}\.before-v[0-9]+{re.escape(end)}")
    return [each for each in path.parent.iterdir() if name.fullmatch(each.name)]


def _keep_copy(connection: sqlite3.Connection, path: Path, copy: Path, partial: Path) -> None:
    if os.path.lexists(copy):
        raise JournalRefused(f"{copy} is in the way of a copy of {path} before its migration; move it away")
    try:
        begun = partial.with_name(f"{partial.name}.begun")
        os.close(os.open(begun, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            vacuum_into(connection, begun)
            sync(begun)
            begun.rename(partial)
            sync(partial.parent)
        except BaseException:
            begun.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)
            raise
    except (OSError, sqlite3.Error) as error:
        raise JournalRefused(f"{path} can't be copied to {copy} before its migration: {text_of(error)}") from error


def _script(migrations: list[Path], version: int) -> str:
    """Return the statements that bring a file from this version to the newest one, in one transaction."""
    # A table that is renamed would otherwise be looked for in all views, and an operator's own may be broken.
    parts = ["PRAGMA legacy_alter_table = ON;", "BEGIN;"]
    if version == 0:
        # Inside the transaction, so that no half-made file is left that could not be recognised as ours.
        parts += ["PRAGMA auto_vacuum = INCREMENTAL;", f"PRAGMA application_id = {APPLICATION_ID};"]
    for number, migration in enumerate(migrations[version:], version + 1):
        parts.append(f"{migration.read_text(encoding='utf-8')}\n;PRAGMA user_version = {number};")
    return "\n".join([*parts, "COMMIT;", "PRAGMA legacy_alter_table = OFF;"])
