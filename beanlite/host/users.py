"""The users of the page in the browser, as a file has them: one line ``NAME:ROLE:HASH`` each."""

import re
import stat
from pathlib import Path
from typing import Final

from beanlite.errors import ConfigError

USER_ROLES: Final = ("operator", "reader")
# A hash with its salt; of one that was cut off, most can be told.
_HASH: Final = re.compile(r"\$argon2(?:id|i|d)(?:\$v=[0-9]+)?\$[a-z0-9=,]+\$[A-Za-z0-9+/]{11,}\$[A-Za-z0-9+/]{16,}")


def read_users(path: Path) -> dict[str, tuple[str, str]]:
    """Return the role and the hash of each user. ConfigError: the file can't be read, or is malformed."""
    users: dict[str, tuple[str, str]] = {}
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe would keep all clients waiting
            raise ConfigError(f"{path} is no regular file")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8, and so not a file of users") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        role, _, hash_text = rest.partition(":")
        if not name or role not in USER_ROLES or _HASH.fullmatch(hash_text) is None:
            raise ConfigError(f"{path}, line {number}: a line is NAME:operator:HASH or NAME:reader:HASH")
        users[name] = role, hash_text
    if not users:
        raise ConfigError(f"{path} has no user in it")
    return users
