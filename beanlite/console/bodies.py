"""Shows the body of a job."""

import json
from typing import Final

from beanlite.console import units
from beanlite.errors import ConfigError

FORMS: Final = ("auto", "text", "json", "hex", "raw")
_HEX_LINE: Final = 16
_INDENTED: Final = json.JSONEncoder(indent=2, ensure_ascii=False)
# How much longer than the body its indented form may be: each bracket deep inside of others takes a line of blanks.
_INDENTED_TIMES: Final = 8
_INDENTED_MIN: Final = 10_000


def body_lines(body: bytes, form: str) -> str:
    """Return a body in one of the FORMS; "auto" is JSON if possible, else text, else hex. ConfigError: not JSON."""
    if form == "hex":
        return _as_hex(body)
    if form == "text":
        return units.on_lines(body.decode(errors="replace"))
    if form == "json":
        text = _as_json(body)
        if text is None:
            raise ConfigError("--body json: the body is not JSON, or is nested too deeply")
        return text
    return _as_json(body) or _as_text(body) or _as_hex(body)


def _as_json(body: bytes) -> str | None:
    parts = []
    room = _INDENTED_MIN + _INDENTED_TIMES * len(body)
    try:
        for part in _INDENTED.iterencode(json.loads(body)):
            parts.append(part)
            room -= len(part)
            if room < 0:
                return None
    except (ValueError, RecursionError):  # it is not JSON, or is nested too deeply to be parsed
        return None
    return units.on_lines("".join(parts))


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
