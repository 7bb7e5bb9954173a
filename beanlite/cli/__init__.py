"""The command line: it parses, wires and prints. A file for each group of commands."""

import os
import sys
import traceback
from typing import NoReturn

import typer

from beanlite.cli import backup, bench, compact, export, import_, import_binlog, restore, serve, verify
from beanlite.errors import BeanliteError, ConfigError, JournalFailed
from beanlite.stderr import last_words

# No rich and no completion: they cost more time than all the rest of the start.
app = typer.Typer(
    name="beanlite",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=serve.EXIT_CODES)(serve.serve)
app.command(epilog=backup.EPILOG)(backup.backup)
app.command(epilog=restore.EPILOG)(restore.restore)
app.command(epilog=verify.EPILOG)(verify.verify)
app.command(epilog=compact.EPILOG)(compact.compact)
app.command(epilog=export.EPILOG)(export.export)
app.command("import", epilog=import_.EPILOG)(import_.import_)
app.command(epilog=import_binlog.EPILOG)(import_binlog.import_binlog)
app.command(epilog=bench.EXIT_CODES)(bench.bench)


@app.callback()
def _top() -> None:
    """A durable work queue that speaks the beanstalk protocol.

    Without a command, or with flags alone, beanlite serves: "beanlite -p 11300" means "beanlite serve -p 11300".
    """


def main(args: list[str] | None = None) -> int:
    """Carry out the command line `args` (sys.argv's by default); returns the exit code."""
    args = sys.argv[1:] if args is None else args
    if not args or (args[0].startswith("-") and args[0] not in {"-h", "--help"}):  # as an init script of beanstalkd
        args = ["serve", *args]
    try:
        return int(app(args, prog_name="beanlite", standalone_mode=False) or 0)
    except typer.TyperException as error:
        message, exit_code = " ".join(error.format_message().split()), ConfigError.exit_code
    except JournalFailed as error:
        _fall(f"beanlite: {error}", error.exit_code)
    except BeanliteError as error:
        message, exit_code = str(error), error.exit_code
    except KeyboardInterrupt:  # in a backup or a bench; a server handles it itself
        return 130
    except MemoryError:
        _fall(
            "beanlite: out of memory, and so it ended at once; what is in the database is safe", BeanliteError.exit_code
        )
    except Exception:  # noqa: BLE001 - our own bug: it is shown whole
        _fall(traceback.format_exc(), BeanliteError.exit_code)
    last_words(f"beanlite: {message}")
    return exit_code


def _fall(message: str, exit_code: int) -> NoReturn:
    """End at once: on an orderly exit SQLite would still write to a file whose state is unknown."""
    last_words(message)
    os._exit(exit_code)
