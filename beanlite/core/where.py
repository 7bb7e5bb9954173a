"""A value at a path in bodies that are JSON, such as ``customer=4711`` or ``items[0].state="new"``."""

import json
import re
from typing import Any, Final, NoReturn

# A larger body is not parsed by a server: that takes long, and other clients wait.
PARSED_MAX: Final = 1 << 16

# A key as it is, or in quotes as JSON has it; the place in an array; and a path of these.
_KEY: Final = r'[^\s.\[\]="]+|"(?:[^"\\]|\\.)*"'
_PLACE: Final = r"\[[0-9]{1,9}\]"
_PATH: Final = re.compile(rf"((?:{_KEY}|{_PLACE})(?:\.(?:{_KEY})|{_PLACE})*)=")
_STEP: Final = re.compile(rf"({_KEY})|{_PLACE}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decode: Final = json.JSONDecoder(parse_constant=_refuse).decode


class Where:
    """A path, and the value that has to be there."""

    __slots__ = ("_needle", "_steps", "_wanted")

    def __init__(self, text: str) -> None:
        """Parse the path and the value, with an = between. ValueError: they are not so."""
        path = _PATH.match(text)
        if path is None:
            raise ValueError(f"{text[:100]!r} is not a path and a value, such as customer=4711 or items[0].state=new")
        self._steps: list[str | int] = []
        for step in _STEP.finditer(path[1]):
            key = step[1]
            self._steps.append(int(step[0].strip("[]")) if key is None else str(_value(key)) if '"' in key else key)
        value = text[path.end() :]
        parsed = _value(value)
        self._wanted: list[Any] = [parsed]
        if not isinstance(parsed, str):
            self._wanted.append(value)  # what looks like a number may be text
        # What the body has in it, unless it is written otherwise: a fraction, or text with an escape.
        self._needle = (
            b"" if isinstance(parsed, float) else str(self._wanted[-1]).strip().encode(errors="surrogatepass")
        )

    def may_fit(self, body: bytes) -> bool:
        """Whether a body has to be parsed: most that do not fit are told without that."""
        return self._needle in body or b"\\" in body

    def fits(self, body: bytes) -> bool:
        """Whether a body is JSON, in UTF-8, with the value at the path."""
        if not self.may_fit(body):
            return False
        try:
            value: Any = _decode(body.decode())
        except (ValueError, RecursionError):  # it is not JSON, or is nested too deeply
            return False
        for step in self._steps:
            if isinstance(step, int):
                if not isinstance(value, list) or step >= len(value):
                    return False
            elif not isinstance(value, dict) or step not in value:
                return False
            value = value[step]
        return any(type(value) is type(wanted) and value == wanted for wanted in self._wanted)  # 1 is not true


def _value(text: str) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return a number, true, false, null or a text in quotes as JSON has it; anything else is a text as it is."""
    try:
        value: Any = _decode(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, (dict, list)) else value
