"""Writes a move of a tube into the file of servers, which otherwise stays as it was written by hand."""

import os
import re
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
    text = path.read_text(encoding="utf-8")
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
    partial = path.with_name(f"{path.name}.partial")
    was = path.stat()
    partial.write_text(text, encoding="utf-8")
    new = partial.stat()
    if (new.st_uid, new.st_gid) != (was.st_uid, was.st_gid):
        os.chown(partial, was.st_uid, was.st_gid)
    partial.chmod(was.st_mode)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def _with_move(text: str, tube: str, source: str, target: str) -> str:
    line = f'"{tube}" = {{ from = "{source}", to = "{target}" }}\n'
    old = re.compile(rf'^(?:"{re.escape(tube)}"|{re.escape(tube)})[ \t]*=[ \t]*\{{[^}}\n]*\}}[^\n]*\n?', re.MULTILINE)
    text = old.sub("", text)
    heading = _MOVED.search(text)
    if heading is None:
        return f"{text.rstrip()}\n\n[moved]\n{line}"
    return f"{text[: heading.end()]}{line}{text[heading.end() :]}"


def _with_version(text: str, version: int) -> str:
    line = f"version = {version}"
    return _VERSION.sub(line, text, count=1) if _VERSION.search(text) else f"{line}\n{text}"
