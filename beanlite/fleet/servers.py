"""The file of servers: their names and addresses, and which of them has a tube.

A tube belongs to the server that names it, or that has the most specific pattern that matches it. Every other tube
belongs to a server by a hash of its family, the part of its name before the first dot. Another server that shares in
the hash takes families from each of the others, and moves none between these.
"""

import re
from collections.abc import Iterator, Mapping
from fnmatch import translate
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from beanlite.beanstalk.client import parse_server
from beanlite.core.policies import is_glob, is_pattern, specificity
from beanlite.errors import ConfigError
from beanlite.host.places import is_place
from beanlite.settings.toml_file import read_toml
from beanlite.settings.wording import in_our_words

NUMBERS: Final = 64
"""How many servers there can be; an id through a router has the number of its server in its low bits."""
# So many tubes are remembered with their server.
_REMEMBERED: Final = 1 << 16


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _ServerTable(_Strict):
    """What the file has of a server."""

    number: int = Field(ge=0, le=NUMBERS - 1)
    connect: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
    tubes: Annotated[list[str], BeforeValidator(_as_list)] = []
    hashed: bool = True
    metrics: Annotated[list[str], BeforeValidator(_as_list)] = []

    @field_validator("connect")
    @classmethod
    def _are_addresses(cls, connect: list[str]) -> list[str]:
        for address in connect:
            try:
                parse_server(address)
            except ConfigError:  # which tells of an option
                raise ValueError(f"{address!r} is not HOST:PORT, tls://HOST:PORT or unix:PATH") from None
        return connect

    @field_validator("tubes")
    @classmethod
    def _are_patterns(cls, tubes: list[str]) -> list[str]:
        for tube in tubes:
            if not is_pattern(tube.encode()):
                raise ValueError(f"{tube!r} is neither the name of a tube nor a pattern")
        return tubes

    @field_validator("metrics")
    @classmethod
    def _are_places(cls, metrics: list[str]) -> list[str]:
        for place in metrics:
            if not is_place(place):
                raise ValueError(f"{place!r} is not HOST:PORT")
        return metrics


class _MoveTable(_Strict):
    """What the file has of a tube that has moved."""

    from_: str = Field(alias="from")
    to: str


class _ServersFile(_Strict):
    version: int = Field(default=1, ge=1)
    servers: dict[str, _ServerTable] = Field(min_length=1)
    moved: dict[str, _MoveTable] = {}


class Member(NamedTuple):
    """One of the servers."""

    name: str
    number: int
    """What ids through a router carry of it."""
    connect: tuple[str, ...]
    """Its addresses, as ``--connect`` takes them: of its active server and of its standbys."""
    metrics: tuple[str, ...] = ()
    """Where Prometheus asks these, as HOST:PORT."""


class Move(NamedTuple):
    """A tube that was moved: jobs are put into the new server, and reserved from both, as the old one may have some."""

    source: Member
    """The old server."""
    target: Member
    """The new one."""


class Fleet:
    """All servers of a file."""

    def __init__(self, file: _ServersFile) -> None:
        self.version = file.version
        """Each change of where tubes belong raises it."""
        self.members = tuple(
            Member(name, row.number, tuple(row.connect), tuple(row.metrics)) for name, row in file.servers.items()
        )
        self.by_name: Mapping[str, Member] = {member.name: member for member in self.members}
        self.by_number: Mapping[int, Member] = {member.number: member for member in self.members}
        self.moved: Mapping[bytes, Move] = {
            tube.encode(): Move(self.by_name[move.from_], self.by_name[move.to]) for tube, move in file.moved.items()
        }
        patterns = [(glob.encode(), self.by_name[name]) for name, row in file.servers.items() for glob in row.tubes]
        self._by_tube = {tube: member for tube, member in patterns if not is_glob(tube)}
        globs = [(glob, member) for glob, member in patterns if is_glob(glob)]
        globs.sort(key=lambda each: (-specificity(each[0]), each[0]))
        self._globs = [(re.compile(translate(glob.decode()).encode()), member) for glob, member in globs]
        self._hashed = [self.by_name[name] for name, row in file.servers.items() if row.hashed]
        self.home = lru_cache(_REMEMBERED)(self._home)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file of servers. ConfigError: it can't be read, or something in it is wrong."""
        return cls(_parse(path, read_toml(path, "servers")))

    def _home(self, tube: bytes) -> Member:
        """Return the server into which jobs of a tube are put."""
        move = self.moved.get(tube)
        return self.given(tube) if move is None else move.target

    def given(self, tube: bytes) -> Member:
        """Return the server to which a tube belongs, but for its move."""
        if tube in self._by_tube:
            return self._by_tube[tube]
        for glob, member in self._globs:
            if glob.match(tube) is not None:
                return member
        family = tube.partition(b".")[0]
        return max(self._hashed, key=lambda member: sha256(b"%d:%b" % (member.number, family)).digest())

    def names(self, tube: bytes) -> bool:
        """Whether the file has the name of a tube, and not only a pattern that matches it."""
        return tube in self._by_tube or tube in self.moved

    def targets(self) -> list[dict[str, object]]:
        """Return what Prometheus asks, in the JSON of its service discovery."""
        return [
            {"targets": list(member.metrics), "labels": {"server": member.name}}
            for member in self.members
            if member.metrics
        ]

    def homes(self, tube: bytes) -> tuple[Member, ...]:
        """Return the servers from which jobs of a tube are reserved: of a tube that was moved the old one first."""
        move = self.moved.get(tube)
        return (self.home(tube),) if move is None else (move.source, move.target)


def _parse(path: Path, contents: dict[str, Any]) -> _ServersFile:
    try:
        file = _ServersFile.model_validate(contents)
    except ValidationError as error:
        mistake = error.errors(include_context=True)[0]
        place = ".".join(str(part) for part in mistake["loc"])
        raise ConfigError(f"{path}: {place}: {in_our_words(mistake)}") from None
    for fault in (*_faults_of_servers(file), *_faults_of_moves(file)):
        raise ConfigError(f"{path}: {fault}")
    return file


def _faults_of_servers(file: _ServersFile) -> Iterator[str]:
    numbers: dict[int, str] = {}
    patterns: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for name, server in file.servers.items():
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]{0,31}", name):
            yield f"servers.{name}: a name has letters, digits, - and _, 32 at most"
        other = numbers.setdefault(server.number, name)
        if other != name:
            yield f"servers.{name}: number {server.number} is that of {other}"
        for address in server.connect:
            other = addresses.setdefault(address, name)
            if other != name:
                yield f"servers.{name}: {address} is an address of {other}"
        for pattern in server.tubes:
            other = patterns.setdefault(pattern, name)
            if other != name:
                yield f"servers.{name}: tubes {pattern} are those of {other}"
    if not any(server.hashed for server in file.servers.values()) and "*" not in patterns:
        yield 'some tubes belong to no server: give one tubes = "*", or hashed = true'


def _faults_of_moves(file: _ServersFile) -> Iterator[str]:
    for tube, move in file.moved.items():
        for name in (move.from_, move.to):
            if name not in file.servers:
                yield f"moved.{tube}: there is no server {name}"
        if move.from_ == move.to:
            yield f"moved.{tube}: both servers are {move.to}"
