"""What the values of settings may be."""

import os
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated

from pydantic import StringConstraints

# The name of the database file, and of the one in a directory that is given instead.
DB_NAME = "beanlite.db"
# In bytes. SQLite takes up to a billion for a row, of which the body is not quite all; beanstalkd allows 1 << 30.
MAX_JOB_SIZE_LIMIT = 999_999_000

# A number and its unit.
Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,5}[smhd]$")]
_SECONDS_IN = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Less history than this would be pruned as it is written.
HISTORY_LEAST = 1 << 20
# Less memory than this is no help: a single batch of bodies takes a quarter of it.
MEMORY_LEAST = 16 << 20


def file_in(path: Path) -> Path:
    """A directory stands for the file in it: beanstalkd's ``-b`` takes a directory."""
    # Not Path.is_dir: it raises an error where the disk does not answer, and the journal describes that better.
    return path / DB_NAME if os.path.isdir(path) else path  # noqa: PTH112


def operator_networks(text: str) -> tuple[bool, list[IPv4Network | IPv6Network]]:
    """Whether the setting ``operators`` has the Unix socket, and its networks. ValueError: that is no such list."""
    items = [item.strip() for item in text.split(",")]
    if items == ["none"]:
        return False, []
    return "unix" in items, [ip_network(item) for item in items if item != "unix"]


def of_operators(text: str) -> str:
    """The same, if it is such a list. ValueError: it is none."""
    operator_networks(text)
    return text


def of_address(text: str) -> str:
    """The same, if it is an address and a port. ValueError: it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(text)
    return text


def host_and_port(place: str) -> tuple[str, int]:
    """The two that an address such as ``[::1]:11300`` is made of."""
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)


def is_place(text: str) -> bool:
    """Whether it is a host and a port that one can connect to."""
    host, _, port = text.rpartition(":")
    return bool(host) and host != "unix" and port.isdecimal() and 0 < int(port) <= 65535


def of_place(text: str) -> str:
    """The same, if it is that. ValueError: it is not."""
    if not is_place(text):
        raise ValueError(text)
    return text


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def of_loopback(text: str) -> str:
    """The same, if only this machine can reach that address and port. ValueError: others can."""
    if not is_loopback(text.rpartition(":")[0].strip("[]")):
        raise ValueError(text)
    return of_address(text)


def seconds(given: str | None) -> int | None:
    """How long a Duration is; None: there is none."""
    return None if given is None else int(given[:-1]) * _SECONDS_IN[given[-1]]
