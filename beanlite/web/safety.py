"""Who may see the pages, who may change anything, and what browsers may do with the pages."""

import base64
import binascii
import contextlib
import hashlib
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from beanlite.errors import ConfigError
from beanlite.host.users import USER_ROLES, read_users

# A page loads nothing from other sites, and inline scripts are not run.
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
    " 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# Browsers send the letters of other alphabets as xn--….
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
# How many correct passwords are remembered, since checking one is slow on purpose.
_REMEMBERED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class User:
    """The user who makes a request."""

    name: str
    """Empty if users are not asked to log in."""
    may_change: bool


class Passwords:
    """The users in a file, and which of their passwords have been found correct."""

    def __init__(self, path: Path) -> None:
        """Read the file. ConfigError: it can't be read, or is malformed."""
        self._hasher = PasswordHasher()
        self._users = read_users(path)
        self._digests: set[bytes] = set()
        self._secret = secrets.token_bytes(32)
        # Checked for names that don't exist, so that checking them takes as long.
        self._nobody = self._hasher.hash(secrets.token_hex())

    def recall(self, authorization: str) -> User | None:
        """Return the user in this header if its password has been found correct before; None if it must be checked."""
        if self._digest(authorization) not in self._digests:
            return None
        name, _ = login_in(authorization)
        return User(name, self._users[name][0] == "operator")

    def check(self, authorization: str) -> User | None:
        """Return the user in this header if the password is correct; to be called in a thread, because it is slow."""
        name, password = login_in(authorization)
        # An older version took an empty password from a script without input; it must not open anything.
        if not password:
            return None
        role, hash_text = self._users.get(name, ("", self._nobody))
        try:
            self._hasher.verify(hash_text, password)
        except (VerificationError, InvalidHashError):
            return None
        if not role:
            return None
        if len(self._digests) >= _REMEMBERED_MAX:
            self._digests.clear()
        self._digests.add(self._digest(authorization))
        return User(name, role == "operator")

    def _digest(self, authorization: str) -> bytes:
        return hashlib.blake2b(authorization.encode(errors="surrogateescape"), key=self._secret).digest()


def login_in(authorization: str) -> tuple[str, str]:
    """Return the name and the password in a header; both are empty if there are none."""
    scheme, _, value = authorization.partition(" ")
    try:
        name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return (name, password) if scheme.lower() == "basic" and colon else ("", "")


def password_line(name: str, role: str, password: str) -> str:
    """Return the file's line for a user. ConfigError: the name or the role is invalid, or the password is empty."""
    # A line that begins with # is a comment.
    if not name or ":" in name or name.startswith("#") or not name.isprintable() or role not in USER_ROLES:
        why = "the name has no colon in it, and no # in front"
        raise ConfigError(f"a user is given as NAME:{USER_ROLES[0]} or NAME:{USER_ROLES[1]}; {why}")
    if not password:
        raise ConfigError("a user needs a password, and this one is empty")
    return f"{name}:{role}:{PasswordHasher().hash(password)}"


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request that changes something comes from one of our own pages."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    try:
        return origin is not None and urlsplit(origin).netloc == headers.get("host")
    except ValueError:
        return False


def own_host(name: str) -> str:
    """Return a name given by --host as a browser's host name is compared to it. ConfigError: it is none."""
    bare = name.removeprefix("[").removesuffix("]").lower()
    with contextlib.suppress(ValueError):
        return str(ipaddress.IPv6Address(bare))
    if _HOST_NAME.fullmatch(name) is None:
        raise ConfigError(f"--host takes a host name without a port, not {name!r}")
    return bare


def is_own_host(host: str, names: frozenset[str]) -> bool:
    """Whether a browser uses one of our own host names. Any other may be a sign of DNS rebinding."""
    try:
        return (urlsplit(f"//{host}").hostname or "") in names
    except ValueError:
        return False
