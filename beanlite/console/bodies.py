"""Shows the body of a job."""

import json
import re
from typing import Any, Final, NoReturn

from beanlite.console import units
from beanlite.errors import ConfigError

FORMS: Final = ("auto", "text", "json", "hex", "raw")
_HEX_LINE: Final = 16
_INDENTED: Final = json.JSONEncoder(indent=2, ensure_ascii=False)
NOT_SHOWN: Final = "can't be shown so: it is nested too deeply, or has a key twice"
"""Why JSON may not be shown indented."""
# What is in front of a number that is kept as text, which no body has there; and such a text as JSON.
_MARK: Final = "\ue000"
_MARKED: Final = re.compile(f'"{_MARK}([-+.0-9eE]+)"')
# How much longer than the body its indented form may be: each bracket deep inside of others takes a line of blanks.
_INDENTED_TIMES: Final = 8
_INDENTED_MIN: Final = 10_000


def body_lines(body: bytes, form: str) -> str:
    """Return a body in one of the FORMS; "auto" is JSON if possible, else text, else hex. ConfigError: not JSON.

    What JSON has indented is all that the body has: one from which anything would be left out is shown as text.
    """
    if form == "hex":
        return _as_hex(body)
    if form == "text":
        return units.on_lines(body.decode(errors="replace"))
    if form == "json":
        text = _as_json(body)
        if text is None:
            raise ConfigError(f"--body json: the body is not JSON, or {NOT_SHOWN}")
        return text
    return _as_json(body) or _as_text(body) or _as_hex(body)


def beginning(body: bytes, most: int) -> bytes:
    """Return the beginning of a body, and no part of a character of UTF-8 at its end, or it would be no text."""
    if len(body) <= most:
        return body
    end = most
    while end > most - 4 and body[end] & 0xC0 == 0x80:
        end -= 1
    return body[:end]


def _whole(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. ValueError: it has a key twice, of which one would be left out."""
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("a key is there twice")
    return names


def _as_written(number: str) -> str:
    """Return a fraction as a text that stands for it: a float would have other digits."""
    return _MARK + number


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _as_json(body: bytes) -> str | None:
    if _MARK.encode() in body or b"\\ue000" in body.lower():
        return None
    parts = []
    room = _INDENTED_MIN + _INDENTED_TIMES * len(body)
    try:
        value = json.loads(body, object_pairs_hook=_whole, parse_float=_as_written, parse_constant=_refuse)
        for part in _INDENTED.iterencode(value):
            parts.append(part)
            room -= len(part)
            if room < 0:
                return None
    except (ValueError, RecursionError):  # it is not JSON, not all of it would be shown, or it is nested too deeply
        return None
    return units.on_lines(_MARKED.sub(r"\1", "".join(parts)))


def _as_text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else units.on_lines(text)


def _as_hex(body: bytes) -> str:
    """Return sixteen bytes a line: their offset, their values, and as ASCII."""
    lines = []
    for at in range(0, len(body), _HEX_LINE):
        part = body[at : at + _HEX_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _HEX_LINE - 1}}  {text}")
    return "\n".join(lines)
