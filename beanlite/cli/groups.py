"""Options that several commands share: where to look, and how to print. What selects jobs is in ``which``."""

import dataclasses
import inspect
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from beanlite.beanstalk.client import Server, parse_server
from beanlite.cli.epilogs import PLACE
from beanlite.cli.options import existing_db, path_of_db, url_of_database
from beanlite.cli.paths import as_path
from beanlite.console import units
from beanlite.console.filters import JobId
from beanlite.console.several import AWAY_S, Place, Places, Servers, Several, connect, only
from beanlite.core.job import U32_MAX
from beanlite.errors import BeanliteError, ConfigError
from beanlite.host.places import reached_at
from beanlite.settings.defaults import HOST, PORT, SERVERS, are_in_environment

if TYPE_CHECKING:
    from beanlite.console.listing import Source
    from beanlite.console.stored import Stored
    from beanlite.fleet.servers import Fleet

Result = TypeVar("Result")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, with plain numbers; a list as one object per line.")]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=0, max=U32_MAX, metavar="N", help="Show at most N; 0 shows all.")
]


NAMED: Final = re.compile(r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,31})=)?(?P<address>.*)", re.DOTALL)
"""A server, or its file, with a name of its own."""
# The exit code of a command that has done what it could without a server.
_NOT_WHOLE: Final = BeanliteError.exit_code
_TLS: Final = "tls://"


# An option that tells where to look.
_place_option: Final = partial(typer.Option, rich_help_panel=PLACE)


def as_id(text: object) -> JobId:
    """Parse the id of a job. BadParameter: it is none."""
    try:
        return JobId.parse(str(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Ids = Annotated[
    list[JobId] | None,
    typer.Argument(metavar="ID", parser=as_id, help="The jobs; of several servers, two:17.", show_default=False),
]


def _texts_of(connect: str) -> list[str]:
    """Return the addresses of servers that take over from each other: HOST:PORT,HOST:PORT."""
    if connect.startswith("unix:"):
        return [connect]
    scheme, separator, places = connect.rpartition("://")
    return [f"{scheme}{separator}{place}" for place in places.split(",")]


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


def _moment(text: object, *, is_end: bool, hint: str) -> float:
    try:
        return units.parse_moment(str(text), time.time(), is_end=is_end)
    except units.StillToCome as error:
        raise typer.BadParameter(f"{error}{hint}") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def moment_option(*names: str, text: str, is_end: bool = False, hint: str = "") -> Any:  # noqa: ANN401 - likewise
    """Make an option whose value is a moment, in the reader's time zone.

    ``is_end``: one up to which something counts. ``hint``: what else to say of a time of day that is still to come.
    """
    parser = partial(_moment, is_end=is_end, hint=hint)
    return typer.Option(*names, metavar="WHEN", parser=parser, help=text, show_default=False)


def seconds_of(option: str, length_s: float) -> int:
    """Return the value of such an option as the protocol takes it, in whole seconds. ConfigError: it is too long."""
    if length_s > U32_MAX:
        raise ConfigError(f"{option}: {U32_MAX} seconds at most, which are {units.age(U32_MAX)}")
    return units.whole_seconds(length_s)


def _words(options: Mapping[str, object]) -> str:
    """Return options as a part of a command, without those that have no value."""
    return "".join(f" {option} {shlex.quote(str(word))}" for option, word in options.items() if word is not None)


class OptionGroup:
    """Options that a command takes as one parameter."""

    def report(self) -> bool:
        """Say at the end of the command what it had to leave out; return whether that was nothing."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOption(OptionGroup):
    """Which servers to ask."""

    connect: Annotated[
        list[str] | None,
        _place_option(
            metavar="HOST:PORT",
            help="The server; also tls://HOST:PORT or unix:PATH. Repeatable, and with a name: one=HOST:PORT. Default:"
            " as in the settings.",
        ),
    ] = None
    servers: Annotated[
        Path | None,
        _place_option(metavar="FILE", parser=as_path, help=f"TOML file of several servers. Default: {SERVERS}."),
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

    opened: list[Several] = dataclasses.field(default_factory=list, init=False, repr=False)
    """What was opened of several servers."""
    told: list[str] = dataclasses.field(default_factory=list, init=False, repr=False)
    """The servers of which it was said that they are left out."""

    def open(self, within_s: float = AWAY_S) -> Servers:
        """Connect to the server, or to all; looks have to be answered within a time. BeanliteError, ConfigError."""
        servers = connect(self.places, within_s=within_s)
        if isinstance(servers, Several):
            self.opened.append(servers)
        return servers

    def report(self) -> bool:
        """Say which servers were left out, and why, each once; return whether none was."""
        away = {name: why for each in self.opened for name, why in each.away.items()}
        for name in [name for name in away if name not in self.told]:
            self.told.append(name)
            print(f"beanlite: {name} is left out: {away[name]}", file=sys.stderr)
        return not away

    def options(self, server: str | None) -> str:
        """Return the options that name a server, as a command on the command line has them."""
        if server is not None or self.connect:
            address = self.opened[-1].addresses[server] if server is not None else (self.connect or [""])[0]
            return _words({"--connect": address}) + self.files_for(address)
        if self.servers is not None:
            return _words({"--servers": self.servers}) + self.files_for(_TLS)
        return _words({"--config": self.config_file})

    def files_for(self, address: str) -> str:
        """Return the options that name files for TLS, if an address needs them."""
        files = {"--tls-ca": self.tls_ca, "--tls-cert": self.tls_cert, "--tls-key": self.tls_key}
        return _words(files) if _TLS in address else ""

    @property
    def addresses(self) -> tuple[Server, ...]:
        """The addresses of a worker's server, and of its standbys. ConfigError: there are several servers."""
        places = self.places.places
        if len(places) > 1:
            where = "--connect" if self.connect else SERVERS if self.servers is None else "--servers"
            raise ConfigError(f"{where} names several servers; a worker takes one, or a router: name it by --connect")
        return places[0].addresses

    @property
    def servers_file(self) -> Path | None:
        """The file of servers, if they are in one."""
        if self.servers is not None or self.config_file is not None or self.connect:
            return self.servers
        file = os.environ.get(SERVERS)
        return Path(file) if file else None

    @property
    def places(self) -> Places:
        """The servers. ConfigError: an address is none, or something in the file of servers is wrong."""
        if self.connect is not None and self.servers is not None:
            raise ConfigError("--connect and --servers exclude each other")
        file = self.servers_file
        if file is not None:
            from beanlite.fleet.servers import Fleet

            fleet = Fleet.load(file)
            addresses = self._addresses([text for member in fleet.members for text in member.connect])
            places = [
                Place(member.name, member.number, tuple(addresses[text] for text in member.connect))
                for member in fleet.members
            ]
            return Places(tuple(places), fleet)
        if not self.connect:
            return only(self._own_address())
        texts = [NAMED.fullmatch(text) for text in self.connect]
        pairs = [(each["name"] or each["address"], each["address"]) for each in texts if each is not None]
        for name, _ in pairs:
            if "=" in re.split("[:/]", name)[0]:
                raise ConfigError(f"--connect {name}: a name has letters, digits, - and _, 32 at most")
        by_name = {name: _texts_of(text) for name, text in pairs}
        addresses = self._addresses([text for several in by_name.values() for text in several])
        if len(by_name) < len(pairs) or len(addresses) < sum(map(len, by_name.values())):
            raise ConfigError("--connect: two servers have the same name, or the same address")
        return Places(
            tuple(
                Place(name, number, tuple(addresses[text] for text in several))
                for number, (name, several) in enumerate(by_name.items())
            )
        )

    def _addresses(self, texts: list[str]) -> dict[str, Server]:
        """Return the addresses that texts stand for; the files for TLS are for those at tls:// alone."""
        files = [None if path is None else str(path) for path in (self.tls_ca, self.tls_cert, self.tls_key)]
        is_tls = [text.startswith(_TLS) for text in texts]
        if not any(is_tls):
            return {text: parse_server(text, *files) for text in texts}
        return {text: parse_server(text, *(files if tls else ())) for text, tls in zip(texts, is_tls, strict=True)}

    def _own_address(self) -> Server:
        """Return the address in the settings."""
        if self.tls_ca or self.tls_cert or self.tls_key:
            self._addresses([""])
        if self.config_file is None and not are_in_environment():
            return (HOST, PORT)
        from beanlite.settings import sources

        settings = sources.load(self.config_file, {})
        if settings.socket is not None:
            return (str(settings.socket),)
        return (reached_at(settings.host), settings.port)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetOption(ServerOption):
    """Which servers to ask, by the file that says what belongs to which of them."""

    connect: None = dataclasses.field(default=None, init=False)
    config_file: None = dataclasses.field(default=None, init=False)

    def fleet(self) -> "tuple[Path, Places, Fleet]":
        """Return the file, and its servers. ConfigError: none is named, or something in it is wrong."""
        file, places = self.servers_file, self.places
        if file is None or places.fleet is None:
            raise ConfigError("which server has a tube is said by a file of servers: name it by --servers")
        return file, places, places.fleet


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOrFile(ServerOption):
    """Which server to ask, or which file to read."""

    db: Annotated[
        str | None,
        _place_option("--db", metavar="PATH", help="Read this database file instead, in use by a server or not."),
    ] = None

    def source(self) -> "Source":
        """Connect to the server, or to all, or open the file. BeanliteError, ConfigError: that fails."""
        if self.db is None:
            return self.open()
        if self.connect or self.servers or self.tls_ca or self.tls_cert or self.tls_key:
            raise ConfigError(f"--{'servers' if self.servers else 'connect'} and --db exclude each other")
        from beanlite.console.file import File

        return File(path_of_db(self.db, None))


def open_stored(db: str | None, database: str | None, config_file: Path | None) -> "Stored":
    """Open the database that is named, or that of the server's settings. BeanliteError, ConfigError: that fails."""
    url = url_of_database(db, database, config_file)
    if url is not None:
        from beanlite.console.stored import OpenDatabase

        return OpenDatabase(url)
    from beanlite.console.file import File

    return File(existing_db(db, config_file))


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
        try:
            result = command(*args, **options)
        finally:
            reports = [options[name].report() for name in groups]
        return result if all(reports) else result or _NOT_WHOLE  # type: ignore[return-value]

    with_groups.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_groups
