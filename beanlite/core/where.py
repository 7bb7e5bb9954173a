"""Values at paths in bodies that are JSON: such as ``customer=4711`` or ``items[0].state="new"``, or any."""

import json
import re
from typing import Any, Final, NoReturn

# A larger body is not parsed by a server: that takes long, and other clients wait.
PARSED_MAX: Final = 1 << 16

# A key as it is, or in quotes as JSON has it; the place in an array; and a path of these.
_KEY: Final = r'[^\s.\[\]="]+|"(?:[^"\\]|\\.)*"'
_PLACE: Final = r"\[[0-9]{1,9}\]"
# The path of a value.
_STEPS: Final = rf"(?:{_KEY}|{_PLACE})(?:\.(?:{_KEY})|{_PLACE})*"
_PATH: Final = re.compile(_STEPS)
_CONDITION: Final = re.compile(rf"({_STEPS})=")
_STEP: Final = re.compile(rf"({_KEY})|{_PLACE}")
# So many bytes of a value are looked for before a body is parsed: with more, a body can be made that takes long.
_NEEDLE_MAX: Final = 32
# The longest text of a value that is told, in characters.
VALUE_MAX: Final = 200
# Numbers that are too large, as JSON can have them.
_INFINITIES: Final = {float("inf"): "1e999", float("-inf"): "-1e999"}
# What is at a path where there is nothing.
_NOTHING: Final = object()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decode: Final = json.JSONDecoder(parse_constant=_refuse).decode


def _steps(path: str) -> list[str | int]:
    """Return the keys and places of a path."""
    steps: list[str | int] = []
    for step in _STEP.finditer(path):
        key = step[1]
        steps.append(int(step[0].strip("[]")) if key is None else str(_value(key)) if '"' in key else key)
    return steps


def _parsed(body: bytes) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return the value of a body that is JSON in UTF-8; else _NOTHING."""
    try:
        return _decode(body.decode())
    except (ValueError, RecursionError):  # it is not JSON, or is nested too deeply
        return _NOTHING


def _follow(value: Any, steps: list[str | int]) -> Any:  # noqa: ANN401 - likewise
    """Return what a path leads to in a value; _NOTHING if it leads nowhere."""
    for step in steps:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return _NOTHING
        elif not isinstance(value, dict) or step not in value:
            return _NOTHING
        value = value[step]
    return value


def is_path(text: str) -> bool:
    """Whether a text is a path."""
    return _PATH.fullmatch(text) is not None


def condition_of(text: str) -> tuple[str, str] | None:
    """Return the path and the value of a condition; None if it is none."""
    path = _CONDITION.match(text)
    return None if path is None else (path[1], text[path.end() :])


class Condition:
    """A path, and the value that has to be there."""

    __slots__ = ("_needle", "_steps", "_wanted")

    def __init__(self, text: str) -> None:
        """Parse the path and the value, with an = between. ValueError: they are not so."""
        path_and_value = condition_of(text)
        if path_and_value is None:
            raise ValueError(f"{text[:100]!r} is not a path and a value, such as customer=4711 or items[0].state=new")
        path, value = path_and_value
        self._steps = _steps(path)
        parsed = _value(value)
        self._wanted: list[Any] = [parsed]
        if not isinstance(parsed, str):
            self._wanted.append(value)  # what looks like a number may be text
        # What the body has in it, unless it is written otherwise: a fraction, or text with an escape.
        text = "" if isinstance(parsed, float) else str(self._wanted[-1]).strip()
        self._needle = text.encode(errors="surrogatepass")[:_NEEDLE_MAX]

    def may_fit(self, body: bytes) -> bool:
        """Whether a body has to be parsed: most that do not fit are told without that."""
        return self._needle in body or b"\\" in body

    def fits(self, value: Any) -> bool:  # noqa: ANN401 - as above
        """Whether a parsed body has the value at the path."""
        there = _follow(value, self._steps)
        return any(type(there) is type(wanted) and there == wanted for wanted in self._wanted)  # 1 is not true


class Where:
    """The values that have to be in a body, at one path each."""

    __slots__ = ("_conditions",)

    def __init__(self, texts: list[str]) -> None:
        """Parse the conditions. ValueError: one is not so."""
        self._conditions = [Condition(text) for text in texts]

    def looks(self, body: bytes) -> int:
        """Return with how many conditions it is told that a body does not fit; 0 if it has to be parsed."""
        for at, condition in enumerate(self._conditions):
            if not condition.may_fit(body):
                return at + 1
        return 0

    def fits(self, body: bytes) -> bool:
        """Whether a body is JSON, in UTF-8, with all the values."""
        if self.looks(body):
            return False
        value = _parsed(body)
        return all(condition.fits(value) for condition in self._conditions)


class Paths:
    """Paths, and the values that a body has there."""

    __slots__ = ("_paths",)

    def __init__(self, texts: list[str]) -> None:
        """Parse paths. ValueError: one is none."""
        self._paths: list[list[str | int]] = []
        for text in texts:
            if not is_path(text):
                raise ValueError(f"{text[:100]!r} is not a path, such as customer or items[0].state")
            self._paths.append(_steps(text))

    def values(self, body: bytes) -> list[str | None]:
        """Return the texts of the values, or None where there is none; a large body has none."""
        if len(body) > PARSED_MAX:
            return [None] * len(self._paths)
        value = _parsed(body)
        return [_text(_follow(value, steps)) for steps in self._paths]


def _text(value: Any) -> str | None:  # noqa: ANN401 - as above
    """Return a text as it is, and any other value as JSON has it; cut if it is long."""
    if value is _NOTHING:
        return None
    try:
        text: str = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:  # it has just been shallow enough to be parsed
        return "…"
    if isinstance(value, float) and value in _INFINITIES:
        text = _INFINITIES[value]
    if len(text) > VALUE_MAX:
        text = text[: VALUE_MAX - 1] + "…"
    return text.encode(errors="replace").decode()  # half a pair of surrogates is not UTF-8


def _value(text: str) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return a number, true, false, null or a text in quotes as JSON has it; anything else is a text as it is."""
    try:
        value: Any = _decode(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, (dict, list)) else value
