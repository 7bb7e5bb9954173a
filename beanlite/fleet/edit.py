"""Writes a move of a tube into the file of servers, which otherwise stays as it was written by hand."""

import os
import re
import tempfile
from pathlib import Path
from typing import Final

from beanlite.errors import ConfigError
from beanlite.fleet.servers import Fleet
from beanlite.settings.toml_file import parse_toml

_VERSION: Final = re.compile(r"^version[ \t]*=[ \t]*[0-9]+", re.MULTILINE)
_MOVED: Final = re.compile(r"^\[moved\][^\n]*\n", re.MULTILINE)


def write_move(path: Path, tube: str, source: str, target: str) -> Fleet:
    """Note in the file that a tube has moved, and raise the version; return the new fleet.

    ConfigError: the file can't be read or written, or is written such that a person has to do it.
    """
    fleet = Fleet.load(path)
    text = path.read_bytes().decode()  # each line keeps the end that it has
    new_text = _with_version(_with_move(text, tube, source, target), fleet.version + 1)
    move = {"from": source, "to": target}
    try:
        contents = parse_toml(new_text)
    except ValueError:
        contents = {}
    before = parse_toml(text)
    if contents != {**before, "version": fleet.version + 1, "moved": {**before.get("moved", {}), tube: move}}:
        raise ConfigError(
            f"{path} is written in a way that is only changed by hand: set version = {fleet.version + 1}, and in"
            f' [moved] "{tube}" = {{ from = "{source}", to = "{target}" }}'
        )
    try:
        _replace(Path(os.path.realpath(path)), new_text)  # where a link leads, which stays
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}") from error
    return Fleet.load(path)


def _replace(path: Path, text: str) -> None:
    """Replace a file whole or not at all; it stays as readable as it is, to a router of another user as well."""
    was = path.stat()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            new = os.fstat(descriptor)
            if (new.st_uid, new.st_gid) != (was.st_uid, was.st_gid):
                os.fchown(descriptor, was.st_uid, was.st_gid)
            os.fchmod(descriptor, was.st_mode)
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _with_move(text: str, tube: str, source: str, target: str) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    line = f'"{tube}" = {{ from = "{source}", to = "{target}" }}{end}'
    old = re.compile(rf'^(?:"{re.escape(tube)}"|{re.escape(tube)})[ \t]*=[ \t]*\{{[^}}\n]*\}}[^\n]*\n?', re.MULTILINE)
    text = old.sub("", text)
    heading = _MOVED.search(text)
    if heading is None:
        return f"{text.rstrip()}{end}{end}[moved]{end}{line}"
    return f"{text[: heading.end()]}{line}{text[heading.end() :]}"


def _with_version(text: str, version: int) -> str:
    line = f"version = {version}"
    end = "\r\n" if "\r\n" in text else "\n"
    return _VERSION.sub(line, text, count=1) if _VERSION.search(text) else f"{line}{end}{text}"
