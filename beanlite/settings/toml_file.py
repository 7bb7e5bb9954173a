"""The files of TOML that the server reads at its start and at SIGHUP."""

import stat
import tomllib
from pathlib import Path
from typing import Any

from beanlite.errors import ConfigError


def read_toml(file: Path, subject: str) -> dict[str, Any]:
    """Return what is in the file of this subject. ConfigError: it can't be read, or is not TOML."""
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe would keep all clients waiting
            raise ConfigError(f"{file}: the file of {subject} is no regular file")
        return parse_toml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: the file of {subject} can't be read: {error.strerror}") from error
    except ValueError as error:  # malformed TOML, or not UTF-8
        raise ConfigError(f"{file}: the file of {subject} is not TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return what is in the text of a file. ValueError: it is not TOML, or nested too deeply to be read."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
