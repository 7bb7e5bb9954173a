"""What several commands for databases share: their options, the progress on a terminal, and parts of messages."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from beanlite.cli.paths import as_path, expect_file, instead_of
from beanlite.console.filters import JobId
from beanlite.core.phrases import jobs_text
from beanlite.errors import ConfigError, JournalRefused
from beanlite.host.signals import finish, terminable

Db = Annotated[
    str | None,
    typer.Option("--db", "-b", metavar="PATH", help="The database file. Default: db in the server's settings."),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="A PostgreSQL database instead. Default: database in the server's settings.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", parser=as_path, help="TOML file with the server's settings.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace DEST if it is a file that no server holds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as a JSON object, for scripts.")]

# What shows the progress of a command; None if nothing does.
Progress = Callable[[int], None] | None
Result = TypeVar("Result")

# How many ids of jobs are listed in a message.
IDS_SHOWN: Final = 20


def path_of_db(db: str | None, config_file: Path | None, command: str | None = None) -> Path:
    """Return the database file to use. ConfigError: the settings are wrong, or have no file.

    ``command`` is one for which PostgreSQL has something else.
    """
    from beanlite.settings import sources

    # A file that is named is there, even if the server's settings say by now that jobs are kept elsewhere.
    if command is not None:
        expect_file(db, command)
    settings = sources.load(config_file, {} if db is None else {"db": db, "journal": True, "database": None})
    if db is None and settings.database is not None:
        advice = "--db names a file" if command is None else instead_of(command)
        raise ConfigError(f"settings keep jobs in PostgreSQL; {advice}")
    if not settings.journal:
        raise ConfigError("settings keep jobs in memory only; --db names a file")
    return settings.db


def existing_db(db: str | None, config_file: Path | None, command: str | None = None) -> Path:
    """Return the database file to read, as ``path_of_db``. JournalRefused: it is not there, and not named by --db."""
    from beanlite.settings.values import DB_NAME

    path = path_of_db(db, config_file, command)
    try:
        os.lstat(path)
    except FileNotFoundError:
        if db is None:
            is_named = path != Path(DB_NAME)
            advice = ": name the server's database by --db, or its settings by --config"
            why = ", which the settings name" if is_named else advice
            raise JournalRefused(f"there is no {path.absolute()}{why}") from None
    except OSError:  # which the attempt to open it meets as well
        pass
    return path


def url_of_database(db: str | None, database: str | None, config_file: Path | None) -> str | None:
    """Return the PostgreSQL database to use, or None if it is a file. ConfigError: the settings are wrong."""
    if db is not None and database is not None:
        raise ConfigError("--db and --database exclude each other")
    if db is not None:
        return None
    from beanlite.settings import sources

    url = sources.load(config_file, {} if database is None else {"database": database}).database
    return None if url is None else url.get_secret_value()


@contextlib.contextmanager
def counting(unit: str, per_unit: int = 1) -> Iterator[Progress]:
    """Yield what shows the progress on a terminal, None elsewhere; SIGTERM ends the command as Ctrl-C does.

    After the block neither of them does.
    """
    on_terminal = sys.stderr.isatty()

    def show(count: int) -> None:
        print(f"\r{count // per_unit} {unit}", end="", file=sys.stderr, flush=True)

    try:
        with terminable():
            yield show if on_terminal else None
            finish()  # the exit code of an interrupted command would have a script do it again
    finally:
        if on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def measure(work: Callable[[Progress], Result], unit: str, per_unit: int = 1) -> tuple[Result, float]:
    """Do work with ``counting``; return its result, and the seconds that it took."""
    began_s = time.monotonic()
    with counting(unit, per_unit) as progress:
        result = work(progress)
    return result, round(time.monotonic() - began_s, 3)


def tell_those_there(ids: list[JobId]) -> None:
    """Say on stderr that instead of these jobs, which were there, none were put."""
    if ids:
        jobs, were = jobs_text(len(ids)), "was" if len(ids) == 1 else "were"
        those = ids_text(list(dict.fromkeys(ids)))
        print(f"beanlite: {jobs} {were} not put: the body is there already (unique), in {those}", file=sys.stderr)


def beside_text(left: str | None) -> str:
    """Return the line that follows on what was filled if something is left beside it."""
    return "" if left is None else f"\nbeside the database there is still {left}; it belongs to it"


def ids_text(ids: Sequence[int]) -> str:
    """List ids of jobs, the first ones if there are many."""
    return ", ".join(map(str, ids[:IDS_SHOWN])) + (", …" if len(ids) > IDS_SHOWN else "")
