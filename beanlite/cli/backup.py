"""``beanlite backup``."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from beanlite import config
from beanlite.cli.terminable import terminable

EXIT_CODES = (
    "Exit codes: 0 the backup is in its place; 1 it could not be made; 2 a wrong setting or flag; 3 the database was"
    " refused, or is damaged; 130 it was told to end. After all of these but 0 there is no file DEST of ours."
)


def backup(
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="The file to write; it must not exist yet.")],
    *,
    db: Annotated[
        str | None,
        typer.Option("--db", "-b", metavar="PATH", help="The database. Default: the db of the server's settings."),
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="TOML file of the server's settings.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as a JSON object, for scripts.")] = False,
) -> None:
    """Copy a database, live or not, into one new file.

    The copy is the state of one moment. It is read back and synced before it gets its name.
    """
    settings = config.load(config_file, {} if db is None else {"db": db})

    from beanlite.journal.sqlite.backup import backup as copy  # noqa: PLC0415 - `serve` starts faster without it

    on_terminal = sys.stderr.isatty()
    began_s = time.monotonic()
    try:
        with terminable():
            result = copy(settings.db, dest, _progress if on_terminal else None)
    finally:
        if on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - began_s, 3)
    if as_json:
        print(json.dumps({"file": str(dest), **asdict(result), "seconds": seconds}))
    else:
        print(f"{dest}: {result.jobs} jobs, {result.size} bytes, {seconds} s")


def _progress(size: int) -> None:
    print(f"\r{size >> 20} MiB", end="", file=sys.stderr, flush=True)
