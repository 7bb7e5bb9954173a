"""Numbered SQL files that make the schema, and bring the file of an older version up to date.

The version of a file (SQLite's user_version) is the number of the last migration that it has had.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from beanlite.errors import JournalRefused
from beanlite.journal.aside import written_aside

_PACKAGE = Path(__file__).parents[1]
# Inside the package when installed from a wheel, beside it in a checkout.
FOLDER = next(folder for folder in (_PACKAGE / "migrations", _PACKAGE.parent / "migrations") if folder.is_dir())

_SHAPE = """
    SELECT objects.type, objects.name, columns.name
    FROM sqlite_schema AS objects LEFT JOIN pragma_table_info(objects.name) AS columns
"""


def find_migrations(folder: Path = FOLDER) -> list[Path]:
    """The migrations of a folder in order, the first one being number 1; none is left out."""
    found = sorted(folder.glob("*.sql"))
    if [path.name[:5] for path in found] != [f"{number:04}_" for number in range(1, len(found) + 1)]:
        raise RuntimeError(f"the migrations in {folder} are not numbered 0001_ and so on")
    return found


def read_version(connection: sqlite3.Connection) -> int:
    """The number of the last migration that the database has had; 0 if it is new."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def allow_writing(connection: sqlite3.Connection) -> None:
    """Give the connection the function that the guard triggers name; they never get as far as calling it."""
    connection.create_function("only_the_beanlite_server_may_write", 0, lambda: 1)


def check_schema(connection: sqlite3.Connection, path: Path, migrations: list[Path]) -> None:
    """Raise JournalRefused if anything is missing that these migrations have made; additions do no harm.

    Names are compared and not the text, which SQLite words differently from version to version.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        allow_writing(model)
        for number, migration in enumerate(migrations, 1):
            _apply(model, migration, number)
        missing = set(model.execute(_SHAPE)) - set(connection.execute(_SHAPE))
    if missing:
        kind, name, _ = min(missing, key=str)
        raise JournalRefused(f"{path} is damaged: the {kind} {name} is missing or was changed; restore a backup")


def migrate(connection: sqlite3.Connection, path: Path, migrations: list[Path]) -> None:
    """Bring the database at `path` up to date; an older one is first copied to FILE.before-vN.

    JournalRefused: the copy can't be made, or a migration failed.
    """
    version = read_version(connection)
    copy = path.with_name(f"{path.name}.before-v{len(migrations)}")
    if 0 < version < len(migrations):
        _set_aside(connection, path, copy)
    for number, migration in enumerate(migrations[version:], version + 1):
        try:
            _apply(connection, migration, number)
        except sqlite3.Error as error:
            if version and number == version + 1:
                copy.unlink()  # nothing has changed, and it would be in the way of the next try
            raise JournalRefused(f"the migration {migration.name} of {path} failed: {error}") from error
    # An older server must see the new version in the file itself, to refuse it before SQLite has touched anything.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def _set_aside(connection: sqlite3.Connection, path: Path, copy: Path) -> None:
    try:
        with written_aside(copy) as aside:
            connection.execute("VACUUM INTO ?", (str(aside),))
    except FileExistsError as error:
        raise JournalRefused(f"{copy} is in the way of a copy of {path} before its migration; move it away") from error
    except (OSError, sqlite3.Error) as error:
        raise JournalRefused(f"{path} can't be copied to {copy} before its migration: {error}") from error


def _apply(connection: sqlite3.Connection, migration: Path, number: int) -> None:
    """Run a migration and record it, in one transaction."""
    sql = migration.read_text(encoding="utf-8")
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{sql}\n;PRAGMA user_version = {number};\nCOMMIT;")
    except BaseException:
        connection.rollback()
        raise
