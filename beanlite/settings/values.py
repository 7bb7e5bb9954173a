"""The allowed values of settings, and their conversion."""

import os
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, StringConstraints

from beanlite.host.places import is_place, is_port

# The name of the database file by default, and in a directory that is given in its place.
DB_NAME = "beanlite.db"
# The variable in which systemd names the StateDirectory= of a service.
STATE_DIRECTORY = "STATE_DIRECTORY"
# In bytes. SQLite allows up to a billion for a row, of which the body is not quite all; beanstalkd allows 1 << 30.
MAX_JOB_SIZE_LIMIT = 999_999_000

# A number and its unit.
Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,5}[smhd]$")]
_SECONDS_IN = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# A smaller history would be pruned as fast as it is written.
HISTORY_LEAST = 1 << 20
# Less memory than this is of no use: a single batch of bodies takes a quarter of it.
MEMORY_LEAST = 16 << 20


def _of_whole(value: object) -> object:
    """Return what is given unless it is true or false, which Python takes for 1 and 0; else raise ValueError."""
    if isinstance(value, bool):
        raise ValueError(value)  # noqa: TRY004 - the one that pydantic expects
    return value


# A whole number.
Whole = Annotated[int, BeforeValidator(_of_whole)]


def of_path(value: object) -> object:
    """Return what is given unless it can be no path: an empty one would mean the current folder. Else ValueError."""
    if value == "":
        raise ValueError("the path is empty")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("no path has a NUL character")
    return value


# The path of a file or a folder.
GivenPath = Annotated[Path, BeforeValidator(of_path)]


def of_db(value: object) -> object:
    """Return the path of a database as it is given; one that ends in a slash can only be a directory's."""
    of_path(value)
    return Path(value, DB_NAME) if isinstance(value, str) and value.endswith(("/", "/.")) else value


def file_in(path: Path) -> Path:
    """Return the path, or the file DB_NAME in it if it is a directory: beanstalkd's ``-b`` takes a directory."""
    # Not Path.is_dir: it raises an error if the disk fails, and the journal describes that better.
    return path / DB_NAME if os.path.isdir(path) else path  # noqa: PTH112


# The path of the database.
DbPath = Annotated[Path, BeforeValidator(of_db), AfterValidator(file_in)]


def default_db() -> tuple[Path, str]:
    """Return the database if none is named, and what says so.

    It is in the current folder or, if there is none yet, in systemd's StateDirectory=.
    """
    folder = os.environ.get(STATE_DIRECTORY, "").partition(":")[0]  # the first of several
    if not folder or (os.path.exists(DB_NAME) and not _is_here(folder)):  # noqa: PTH110 - as for isdir
        return Path(DB_NAME), "default"
    return Path(folder, DB_NAME), STATE_DIRECTORY


def _is_here(folder: str) -> bool:
    """Whether this is the current folder. That may have been removed, and has no path then."""
    try:
        return os.path.samefile(folder, ".")  # noqa: PTH121 - as for isdir
    except OSError:
        return False


def is_postgresql(text: str) -> bool:
    """Whether the text begins as the URL of a PostgreSQL database does, even if it has been taken for a path."""
    return text.lower().startswith(("postgresql:/", "postgres:/"))  # a Path turns two slashes into one


def of_fsync(text: str) -> str:
    """Return the setting ``fsync``: an interval of 0 is ``always``, as beanstalkd's ``-f0`` is."""
    return "always" if text.strip("0") == "ms" else text


def operator_networks(text: str) -> tuple[bool, list[IPv4Network | IPv6Network]]:
    """Parse the setting ``operators``: whether the Unix socket is in it, and its networks. Raises ValueError."""
    items = [item.strip() for item in text.split(",")]
    if items == ["none"]:
        return False, []
    return "unix" in items, [ip_network(item) for item in items if item != "unix"]


def of_operators(text: str) -> str:
    """Return the text if it is a valid setting ``operators``, else raise ValueError."""
    operator_networks(text)
    return text


def _where(is_valid: Callable[[str], bool]) -> AfterValidator:
    """Make a check that raises ValueError unless the text is valid."""

    def check(text: str) -> str:
        if not is_valid(text):
            raise ValueError(text)
        return text

    return AfterValidator(check)


def _is_address(text: str) -> bool:
    """Whether the text is an address and a port."""
    host, _, port = text.rpartition(":")
    return bool(host) and is_port(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host, also where a socket for IPv6 reports an address of IPv4."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address.is_loopback if mapped is None else mapped.is_loopback


# The address and port of another machine, and those to listen on.
Place = Annotated[str, _where(is_place)]
ListenAt = Annotated[str, _where(_is_address)]


def seconds(text: str | None) -> int | None:
    """Return the seconds of a Duration; None for None."""
    return None if text is None else int(text[:-1]) * _SECONDS_IN[text[-1]]
