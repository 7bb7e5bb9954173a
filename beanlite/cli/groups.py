"""Options that several commands share: where to look, and how to print. What selects jobs is in ``which``."""

import dataclasses
import inspect
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from beanlite.beanstalk.client import Server, parse_server
from beanlite.cli.epilogs import PLACE
from beanlite.cli.options import path_of_db, url_of_database
from beanlite.cli.paths import as_path
from beanlite.console import units
from beanlite.console.live import Live
from beanlite.core.job import U32_MAX
from beanlite.errors import ConfigError
from beanlite.host.places import reached_at
from beanlite.settings.defaults import HOST, PORT, are_in_environment

if TYPE_CHECKING:
    from beanlite.console.file import File
    from beanlite.console.listing import Source
    from beanlite.console.stored import OpenDatabase

Result = TypeVar("Result")

# The largest number that a database takes: no id of a job or number of a connection is larger.
NUMBER_MAX: Final = (1 << 63) - 1

Json = Annotated[bool, typer.Option("--json", help="Print JSON, with plain numbers; a list as one object per line.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="The jobs.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, metavar="N", help="Show at most N; 0 shows all.")]


# An option that tells where to look.
_place_option: Final = partial(typer.Option, rich_help_panel=PLACE)


def _age(text: object) -> float:
    try:
        return units.parse_age(str(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def age_option(*names: str, text: str) -> Any:  # noqa: ANN401 - as typer.Option itself
    """Make an option or, without names, an argument whose value is a length of time; `text` names the default."""
    if names:
        return typer.Option(*names, metavar="TIME", parser=_age, help=text, show_default=False)  # it has no unit
    return typer.Argument(metavar="TIME", parser=_age, help=text)


def _moment(text: object) -> float:
    try:
        return units.parse_moment(str(text), time.time())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def moment_option(*names: str, text: str) -> Any:  # noqa: ANN401 - likewise
    """Make an option whose value is a moment, in the reader's time zone."""
    return typer.Option(*names, metavar="WHEN", parser=_moment, help=text, show_default=False)


def seconds_of(option: str, length_s: float) -> int:
    """Return the value of such an option as the protocol takes it, in whole seconds. ConfigError: it is too long."""
    if length_s > U32_MAX:
        raise ConfigError(f"{option}: {U32_MAX} seconds at most, which are {units.age(U32_MAX)}")
    return units.whole_seconds(length_s)


class OptionGroup:
    """Options that a command takes as one parameter."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOption(OptionGroup):
    """Which server to ask."""

    connect: Annotated[
        str | None,
        _place_option(
            metavar="HOST:PORT", help="The server; also tls://HOST:PORT or unix:PATH. Default: as in the settings."
        ),
    ] = None
    tls_ca: Annotated[
        Path | None,
        _place_option(
            metavar="FILE", parser=as_path, help="Trust a server at tls:// that this authority vouches for, no other."
        ),
    ] = None
    tls_cert: Annotated[
        Path | None, _place_option(metavar="FILE", parser=as_path, help="Show this certificate to a server at tls://.")
    ] = None
    tls_key: Annotated[
        Path | None, _place_option(metavar="FILE", parser=as_path, help="Its key, unless that is in the same file.")
    ] = None
    config_file: Annotated[
        Path | None,
        _place_option("--config", metavar="FILE", parser=as_path, help="TOML file with the server's settings."),
    ] = None

    @property
    def address(self) -> Server:
        """The address of the server. ConfigError: it is none."""
        files = [None if path is None else str(path) for path in (self.tls_ca, self.tls_cert, self.tls_key)]
        if self.connect is not None or any(files):
            return parse_server(self.connect or "", *files)
        if self.config_file is None and not are_in_environment():
            return (HOST, PORT)
        from beanlite.settings import sources  # noqa: PLC0415 - pydantic is slow to import

        settings = sources.load(self.config_file, {})
        if settings.socket is not None:
            return (str(settings.socket),)
        return (reached_at(settings.host), settings.port)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOrFile(ServerOption):
    """Which server to ask, or which file to read."""

    db: Annotated[
        str | None,
        _place_option("--db", metavar="PATH", help="Read this database file instead, in use by a server or not."),
    ] = None

    def open(self) -> "Source":
        """Connect to the server, or open the file. BeanliteError, ConfigError: that fails."""
        if self.db is None:
            return Live(self.address)
        if self.connect is not None or self.tls_ca or self.tls_cert or self.tls_key:
            raise ConfigError("--connect and --db exclude each other")
        from beanlite.console.file import File  # noqa: PLC0415 - SQLite and its tools are slow to import

        return File(path_of_db(self.db, None))


def open_stored(db: str | None, database: str | None, config_file: Path | None) -> "File | OpenDatabase":
    """Open the database that is named, or that of the server's settings. BeanliteError, ConfigError: that fails."""
    url = url_of_database(db, database, config_file)
    if url is not None:
        from beanlite.console.stored import OpenDatabase  # noqa: PLC0415 - as above

        return OpenDatabase(url)
    from beanlite.console.file import File  # noqa: PLC0415 - as above

    return File(path_of_db(db, config_file))


def grouped(command: Callable[..., Result]) -> Callable[..., Result]:
    """Expand each parameter of a command that is one of the groups above into the group's options."""
    signature = inspect.signature(command)
    groups = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if inspect.isclass(parameter.annotation) and issubclass(parameter.annotation, OptionGroup)
    }
    parameters = [parameter for name, parameter in signature.parameters.items() if name not in groups]
    for group in groups.values():
        parameters += inspect.signature(group).parameters.values()

    @wraps(command)
    def with_groups(*args: Any, **options: Any) -> Result:  # noqa: ANN401 - whatever the command takes
        for name, group in groups.items():
            options[name] = group(**{option: options.pop(option) for option in inspect.signature(group).parameters})
        return command(*args, **options)

    with_groups.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_groups
