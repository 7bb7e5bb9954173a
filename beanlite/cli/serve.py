"""``beanlite serve``, with the flags that init scripts of beanstalkd use."""

import inspect
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from beanlite import __version__, is_compiled
from beanlite.cli.paths import as_path
from beanlite.errors import ConfigError, JournalRefused
from beanlite.host import log
from beanlite.settings import config, sources
from beanlite.settings.config import Flag, Settings
from beanlite.settings.values import MAX_JOB_SIZE_LIMIT, default_db

EXIT_CODES: Final = {
    0: "orderly stop",
    1: "a bug, or out of memory",
    2: "a wrong setting or flag, or the limit on open files is too low",
    3: "the database can't be used as it is: damaged, not beanlite's, or too large for the memory; nothing was written",
    4: "the disk failed while serving, it was full at the start, no thread could be started, or another program kept"
    " the database locked for 10 s of the start",
    5: "can't listen on the address",
    6: "another server has taken over",
}
EPILOG: Final = f"Exit codes: {'; '.join(f'{code} {what}' for code, what in EXIT_CODES.items())}."


# The flags that are not settings of their own: by the setting below whose flag --help lists them, and the last ones.
_BELOW: Final[dict[str, dict[str, Any]]] = {
    "fsync": {
        "fsync_ms": Annotated[
            str | None, typer.Option("-f", metavar="MS", help="Same as --fsync MSms; 0 means always.")
        ],
        "fsync_never": Annotated[bool, typer.Option("-F", help="Same as --fsync never.")],
        "no_journal": Annotated[
            bool, typer.Option("--no-journal", help="Keep jobs in memory only, like beanstalkd without -b.")
        ],
    },
    "user": {
        "config_file": Annotated[
            Path | None,
            typer.Option(
                "--config",
                metavar="FILE",
                parser=as_path,
                help="TOML file with settings; the environment and flags override it.",
            ),
        ]
    },
}
_LAST: Final[dict[str, Any]] = {
    "verbose": Annotated[bool, typer.Option("-V", help="Same as --log-level debug.")],
    "segment_bytes": Annotated[
        str | None, typer.Option("-s", metavar="BYTES", help="Ignored; accepted for compatibility with beanstalkd.")
    ],
    # Older versions of beanstalkd took these, and newer ones ignore them; init scripts may still have them.
    "compaction": Annotated[bool, typer.Option("-n", "-c", hidden=True)],
    "version": Annotated[bool, typer.Option("-v", "--version", help="Print the version and exit.")],
}


# The longest interval that the setting fsync takes, in milliseconds.
_INTERVAL_MAX_MS: Final = 999_999_999


def _option(key: str, flag: Flag) -> Any:  # noqa: ANN401 - an annotated type
    """Make the option for a setting, as typer takes it."""
    field = Settings.model_fields[key]
    names = [config.flag(key), flag.short] if flag.short else [config.flag(key)]
    text = f"{field.description}{flag.more}."
    default = f" Default: {field.default}." if field.default is not None else ""
    option = typer.Option(*names, metavar=flag.metavar, help=text[0].upper() + text[1:] + default)
    return Annotated[str | None if flag.metavar else bool, option]


def options_of_serve() -> dict[str, Any]:
    """Return the options of ``serve`` by their names, in the order of --help."""
    options: dict[str, Any] = {}
    for key, field in Settings.model_fields.items():
        for each in field.metadata:
            if isinstance(each, Flag):
                options[key] = _option(key, each)
        options |= _BELOW.get(key, {})
    return options | _LAST


def signature_with(annotations: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature of a command that has these options."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=None, annotation=each) for name, each in annotations.items()]
    )


def _address(host: str | None, port: str | None, socket: str | None) -> dict[str, object]:
    """Return the settings host and socket as given by -l, -p or --socket, each of which overrides the file's socket."""
    for flag, value in (("--host", host), ("--port", port)):
        if value is not None and socket is not None:
            raise ConfigError(f"{flag} and --socket exclude each other")
    if socket is not None:
        return {"socket": socket}
    if host is None:
        return {} if port is None else {"socket": None}
    if host.startswith("unix:"):  # perhaps with -p, which beanstalkd then ignores: Debian's script for it has both
        return {"socket": host.removeprefix("unix:")}
    return {"host": host, "socket": None}


def _fsync(when: str | None, interval_ms: str | None, *, never: bool) -> str | None:
    """Return the fsync setting given by --fsync, -f or -F, of which the first may not be beside the others."""
    flags = [when, None if interval_ms is None else f"{interval_ms}ms", "never" if never else None]
    values = [value for value in flags if value is not None]
    if len(values) > 1:
        raise ConfigError("--fsync and -f or -F exclude each other")
    return values[0] if values else None


# -- values that beanstalkd takes for its flags and settings do not: a unit made for it starts this server, too


def as_settings_take_them(options: Mapping[str, Any], warn: Callable[[str], None]) -> dict[str, Any]:
    """Return the options of ``serve`` with beanstalkd's values in the range of the settings.

    ``warn`` is called with a line for each value that is not what was asked for.
    """
    values = dict(options)
    values["max_job_size"] = _within("-z", options["max_job_size"], 1, MAX_JOB_SIZE_LIMIT, MAX_JOB_SIZE_LIMIT, warn)
    values["fsync_ms"] = _within("-f", options["fsync_ms"], 0, _INTERVAL_MAX_MS, 0, warn)
    if options["fsync_ms"] is not None and options["fsync_never"]:
        warn("-F is without effect beside -f")  # of the two, what is safe
        values["fsync_never"] = False
    if options["port"] is not None and not options["port"].isdecimal():
        with suppress(OSError):  # it is no service, and reported as any other wrong port
            values["port"] = str(socket.getservbyname(options["port"], "tcp"))
    return values


def _within(
    flag: str, text: str | None, least: int, most: int, if_negative: int, warn: Callable[[str], None]
) -> str | None:
    """Return a whole number as near to what is given as the setting takes; all else as it is."""
    if text is None or not text.removeprefix("-").isdecimal():
        return text
    number = int(text) if len(text) < 30 else most + 1
    nearest = if_negative if text.startswith("-") else min(max(number, least), most)
    if nearest == number:
        return text
    warn(f"{flag} {text[:30]} is not possible; it is {nearest}")
    return str(nearest)


def flags_of(options: Mapping[str, Any], warn: Callable[[str], None]) -> dict[str, object]:
    """Return the options of ``serve`` by the names of their settings, which are mostly the same.

    ``warn`` is called with a line for each value that is not taken as it is.
    """
    options = as_settings_take_them(options, warn)
    if options["db"] is not None and options["database"] is not None:
        raise ConfigError("--db and --database exclude each other")
    values: dict[str, object] = {key: options[key] for key in Settings.model_fields if key in options}
    values["fsync"] = _fsync(options["fsync"], options["fsync_ms"], never=options["fsync_never"])
    values["journal"] = False if options["no_journal"] else None
    if options["verbose"]:
        values["log_level"] = "debug"
    del values["host"], values["socket"]
    address = _address(options["host"], options["port"], options["socket"])
    return {key: value for key, value in values.items() if value is not None} | address


def serve(*, config_file: Path | None, version: bool, **options: Any) -> int:  # noqa: ANN401 - as options_of_serve() has them
    """Serve a queue.

    SIGTERM or SIGINT stops the server, SIGHUP makes it read the settings again, and SIGUSR1 starts drain mode.

    beanstalkd's flags keep their meaning. By default, jobs are kept in the file beanlite.db in the current directory
    and synced before each reply; beanstalkd without -b keeps them in memory only, which is --no-journal here.

    Each setting can also come from the environment (BEANLITE_PORT for --port) or from a TOML file (--config).
    """
    if version:
        print(f"beanlite {__version__}{' (compiled)' if is_compiled() else ''}")
        return 0
    warnings: list[str] = []
    flags = flags_of(options, warnings.append)

    load = partial(sources.load, config_file, flags)
    settings = load()
    log.setup(settings.log_level, settings.log_format)
    for warning in warnings:
        log.warning(warning)
    is_default = "db" not in settings.model_fields_set and default_db()[1] == "default"
    if settings.file is not None:
        from beanlite.cli.place import check_place  # --no-journal starts faster without it

        check_place(settings.file, is_default=is_default)

    from beanlite.server.start import run  # only here, after the flags are checked

    try:
        return run(settings, partial(load, again=True))
    except JournalRefused as error:
        if is_default and settings.file is not None:
            from beanlite.cli.place import with_advice

            raise with_advice(error, settings.file) from error.__cause__
        raise


serve.__signature__ = signature_with(options_of_serve())  # type: ignore[attr-defined]
