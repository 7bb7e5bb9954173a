"""Paths on the command line."""

import os
from pathlib import Path
from typing import Final

import typer

from beanlite.errors import BeanliteError, ConfigError

# What ends the names of the files that SQLite and a server keep beside a database.
_BESIDE: Final = ("-wal", "-shm", "-journal", "-reserve")
# What PostgreSQL has instead of a command for database files.
_INSTEAD: Final = {
    "backup": "back it up with pg_dump or pg_basebackup, or write its jobs to a file with beanlite export",
    "compact": "autovacuum makes room usable again, and VACUUM FULL gives it back to the disk while no server runs",
    "restore": "restore it with pg_restore or your provider's tools, or load what was exported with beanlite import",
    "salvage": "promote a standby, or restore a backup",
    "verify": "name it with --database; pg_amcheck and pg_checksums check what is PostgreSQL's own",
}


def instead_of(command: str) -> str:
    """Return what PostgreSQL has instead of a command for database files."""
    return f"beanlite {command} is for database files; for a database in PostgreSQL: {_INSTEAD[command]}"


def expect_file(path: object, command: str) -> None:
    """Raise ConfigError if a command for database files is given the URL of a PostgreSQL database."""
    from beanlite.settings.values import is_postgresql

    if is_postgresql(str(path)):
        raise ConfigError(instead_of(command))


def path_given(text: object) -> str:
    """Return a path as it was given, unless it is empty, as from a script whose variable is not set. BadParameter."""
    from beanlite.settings.values import of_path

    try:
        return str(of_path(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def as_path(text: object) -> Path:
    """Parse a path. BadParameter: it is empty."""
    return Path(path_given(text))


def as_new_file(text: object) -> Path:
    """Parse the path of a file to be made. BadParameter: it is empty, or can only be that of a folder."""
    path = path_given(text)
    if path == "-":
        raise typer.BadParameter("it can't be written to a pipe; ./- names a file")
    if path.endswith(("/", "/.")):
        raise typer.BadParameter(f"{path} can only be a folder, and a file is to be named")
    return Path(path)


def as_new_file_or_stdout(text: object) -> Path:
    """Likewise, or - for standard output."""
    return Path("-") if text == "-" else as_new_file(text)


def check_new(path: Path) -> None:
    """Raise BeanliteError if a file by this name, which is to be made, would be taken for a part of a database."""
    name = os.path.realpath(path)
    for end in _BESIDE:
        database = name.removesuffix(end)
        if database != name and not os.path.lexists(name) and os.path.isfile(database):  # noqa: PTH113 - never an error
            raise BeanliteError(f"{name} can't be made: it would be taken for a part of the database {database}")
