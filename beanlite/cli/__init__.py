"""The command line: parses, wires and prints. There is a file for each group of commands."""

import errno
import io
import os
import sys
import traceback
from collections.abc import Collection
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Final, NoReturn

import typer

from beanlite.cli.epilogs import Commands, SectionedCommand, epilog
from beanlite.cli.printing import print_no_more
from beanlite.errors import BeanliteError, ConfigError, JournalFailed
from beanlite.host.stderr import last_words
from beanlite.settings.defaults import COMPLETES

# Each command's file in this folder. It has a function named after the command, an EPILOG, which is one for all of its
# commands or one for each, and perhaps EXAMPLES, a paragraph for each. Only the file of the command that was typed is
# imported: a server starts faster without the others.
COMMANDS: Final = {
    "serve": "serve",
    "config": "config",
    **dict.fromkeys(("backup", "restore", "verify", "salvage", "compact"), "files"),
    **dict.fromkeys(("export", "import", "import-binlog"), "exchange"),
    "why": "why",
    "where": "where",
    "tubes": "see",
    "jobs": "jobs",
    **dict.fromkeys(("job", "clients", "stats", "tail"), "see"),
    "history": "history",
    "top": "top",
    "web": "web",
    "cluster": "cluster",
    "targets": "targets",
    "put": "put",
    "work": "work",
    "route": "route",
    **dict.fromkeys(("kick", "bury", "delete"), "change"),
    "undelete": "history",
    **dict.fromkeys(("release", "move", "copy", "reprioritise", "delay", "flush", "note", "pause"), "change"),
    "policy": "policy",
    "schedule": "schedule",
    "shard": "shard",
    **dict.fromkeys(("access", "token"), "access"),
}
# The errors of a print to a file on a full or failing disk, or to one that is open only for reading. Other writes raise
# errors of our own.
_PRINT_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
# Options that may take the place of a command.
_GENERAL: Final = {"-h", "--help", "--install-completion", "--show-completion"}


def build_app(names: Collection[str] = COMMANDS.keys(), *, completes: bool = False) -> typer.Typer:
    """Build the command line with these commands."""
    # No rich, and completion only on request: they take longer than the whole rest of the start.
    app = typer.Typer(
        name="beanlite",
        cls=Commands,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=completes,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    for name in names:
        module = import_module(f"beanlite.cli.{COMMANDS[name]}")
        function = getattr(module, name.replace("-", "_") + "_" * iskeyword(name))  # import_ for import
        if isinstance(function, typer.Typer):  # it has commands of its own, with examples of their own
            for command in function.registered_commands:
                command.cls = SectionedCommand
            app.add_typer(function, name=name, epilog=module.EPILOG)
        else:
            exit_codes = module.EPILOG if isinstance(module.EPILOG, str) else module.EPILOG[name]
            app.command(name, cls=SectionedCommand, epilog=epilog(name, getattr(module, "EXAMPLES", ""), exit_codes))(
                function
            )
    return app


def _top() -> None:
    """A durable work queue that speaks the beanstalk protocol.

    Without a command, or with flags alone, beanlite runs "serve": "beanlite -p 11300" means "beanlite serve -p 11300".

    "beanlite --version" prints the version; "beanlite --install-completion" has the shell complete commands and flags.
    """  # noqa: D401 - --help begins with it


def main(args: list[str]) -> int:
    """Carry out a command line, given without the program's name; return the exit code."""
    completes = bool(os.environ.get(COMPLETES)) or args[:1] in (["--install-completion"], ["--show-completion"])
    if not completes and (not args or (args[0].startswith("-") and args[0] not in _GENERAL)):
        args = ["serve", *args]  # like an init script of beanstalkd
    _print_anything()
    app = build_app(_needed(args, completes=completes), completes=completes)
    try:
        exit_code = int(app(args, prog_name="beanlite", standalone_mode=False) or 0)
        _flush()
        return exit_code  # noqa: TRY300 - only errors follow
    except typer.TyperException as error:
        message, exit_code = _mistake(error), ConfigError.exit_code
    except BeanliteError as error:
        message, exit_code = str(error), error.exit_code
        if isinstance(error, JournalFailed) or isinstance(error.__context__, MemoryError):
            _fall(f"beanlite: {message}", exit_code)
    except KeyboardInterrupt:  # in a backup; a server handles it itself
        return 130
    except BrokenPipeError:  # the reader of stdout is gone, which typer treats likewise
        print_no_more()
        return BeanliteError.exit_code
    except MemoryError:
        _fall("beanlite: out of memory; the database is safe", BeanliteError.exit_code)
    except Exception as error:  # noqa: BLE001 - a bug of our own is shown in full
        message, exit_code = _from_outside(error, args), BeanliteError.exit_code
        if not message:
            _fall(traceback.format_exc(), exit_code)
    last_words(f"beanlite: {message}")
    return exit_code


def _from_outside(error: Exception, args: list[str]) -> str:
    """Return what to say of an error that is no bug of ours: of a print, or of any relative path; empty: it is one."""
    if args[:1] == ["--install-completion"]:  # typer writes into the home, which may not be writable
        return f"completion can't be installed: {error}"
    if not isinstance(error, OSError) or error.filename is not None:
        return ""
    if error.errno in _PRINT_ERRORS:
        print_no_more()
        return f"output can't be written: {error.strerror}"
    try:
        Path.cwd()
    except FileNotFoundError:
        return f"the working directory is gone: {error.strerror}"
    return ""


def _needed(args: list[str], *, completes: bool) -> Collection[str]:
    """Return the commands to import: the one that was typed, or all."""
    if completes:
        from beanlite.cli.completion import command_to_complete

        command = command_to_complete(COMMANDS)
        return COMMANDS if command is None else [command]
    return args[:1] if args[0] in COMMANDS else COMMANDS


def _print_anything() -> None:
    """Have stdout accept what it can't encode, as stderr does: the name of a file need not be text."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # it may be closed
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Flush stdout, because otherwise the loss of its reader would be noticed too late."""
    try:
        print(end="", flush=True)
    except OSError as error:
        if error.errno != errno.EIO:  # the terminal was closed, which is an orderly stop for a server
            raise


def _mistake(error: typer.TyperException) -> str:
    """Return what is wrong with a command line, and which help to look at."""
    cause = error.__cause__
    if isinstance(error, typer.BadParameter) and cause is not None:
        from pydantic import ValidationError

        from beanlite.settings.wording import in_our_words

        if isinstance(cause, ValidationError):
            error.message = in_our_words(cause.errors()[0])
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    return f"{message}{'' if message.endswith('?') else ';'} {context.command_path} --help tells how"


def _fall(message: str, exit_code: int) -> NoReturn:
    """End the process at once.

    In an orderly exit SQLite would still write to a file whose state is unknown; and if memory is exhausted, each
    finalizer would report an error.
    """
    last_words(message)
    os._exit(exit_code)
