"""A filter as one line of text: ``state:buried tube:web* customer:4711 since:02:00 tries:>5 timed out``.

The keys are those of the criteria; any other key is a path in bodies that are JSON. What has no key is a text in
the body.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import tzinfo
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, get_args

from beanlite.console.filters import STATES, WHYS
from beanlite.console.units import parse_age, parse_moment
from beanlite.core.where import VALUE_MAX, condition_of, is_path
from beanlite.errors import ConfigError
from beanlite.protocol.arguments import U64_MAX
from beanlite.protocol.operators.filters import CONDITIONS_MAX, CRITERIA, IDS_MAX, NAMES, Filter, most_of

# How long a line may be: a thousand ids fit into it.
LENGTH_MAX: Final = 25_000
# How long one word of it may be, other than of ids.
WORD_MAX: Final = 1000

_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_WORD: Final = re.compile(rf'(?:{_QUOTED}|[^\s"])+|"')
_KEYED: Final = re.compile(rf'((?:{_QUOTED}|[^\s":])+):(.*)', re.DOTALL)
_WHOLE: Final = re.compile(_QUOTED)
_PLAIN: Final = re.compile(r'[^\s":]+')
# What follows a key as it is: no blank, no quote, nothing that would be a comparison or a part of an address.
_SAFE: Final = re.compile(r'(?![<>]|//)[^\s"]+')
# A part of a path: a key in quotes, a place in an array, or a key as it is.
_PART: Final = re.compile(rf'{_QUOTED}|\[[0-9]+\]|[^".\[\]]+')
_BOUND: Final = re.compile(r"(>=?|<=?)(.*)", re.DOTALL)
# A key and a value as the options of commands have them.
_EQUATED: Final = re.compile(r"([^=]+)=(?!=)(.+)", re.DOTALL)
_ID: Final = "id"
_HOLDER: Final = (
    "a client that has jobs is found by its number or its address, holder:17 or host:10.0.0.5, not its name"
)
# What is said of words that are likely to be tried as keys.
_NO_KEYS: Final = {
    **dict.fromkeys(("client", "worker"), _HOLDER),
    **dict.fromkeys(
        ("due", "left", "delay"), "in a tube, state:delayed sorted by queue has those first that are due first"
    ),
}
# The words that the values of some keys are, and what is behind a key in completions.
_WORDS_OF: Final = {"state": STATES, "why": WHYS}


def _fields() -> dict[str, dict[str, str]]:
    """Return the fields that each key stands for, by what compares its value: >, <, or nothing."""
    fields: dict[str, dict[str, str]] = {_ID: {"": "ids"}}
    for name, criterion in CRITERIA.items():
        key = criterion.key.rstrip("<>")
        if key:
            fields.setdefault(key, {})[criterion.key[len(key) :]] = name
    return fields


KEYS: Final = _fields()


class Misunderstood(ConfigError):
    """A word of a filter that says nothing that can be looked for."""


class Word(NamedTuple):
    """A word of a filter: a key and a value, or a text."""

    raw: str
    key: str
    value: str


class Completion(NamedTuple):
    """A word that may be meant, and what it looks for."""

    word: str
    help: str
    is_whole: bool
    """Whether the word is complete; else a value has to follow."""


def words_of(line: str) -> list[Word]:
    """Return the words of a line. Misunderstood: a quote is not closed, or a word is too long."""
    if len(line) > LENGTH_MAX:
        raise Misunderstood(f"a filter has {LENGTH_MAX:,} characters at most")
    words = []
    for match in _WORD.finditer(line):
        raw = match[0]
        if raw == '"':
            raise Misunderstood(f"the quote is not closed: {line[match.start() :][:40]}")
        keyed = _KEYED.fullmatch(raw)
        word = Word(raw, "", raw) if keyed is None else Word(raw, keyed[1], keyed[2])
        if len(raw) > WORD_MAX and word.key != _ID:
            raise Misunderstood(f"{raw[:40]}…: a word has {WORD_MAX} characters at most")
        words.append(word)
    return words


def parse(line: str, now_s: float, zone: tzinfo | None = None) -> dict[str, Any]:
    """Return the criteria of a filter. Misunderstood: a word is wrong; the text names it, and what may be meant.

    Moments are in ``zone``, or in that of the process.
    """
    criteria: dict[str, Any] = {}
    texts: list[str] = []
    ended = False
    for word in words_of(line):
        if not word.key:
            if ended:
                raise Misunderstood(f"{word.raw[:40]}: write the whole text in one place, or in quotes")
            texts.append(_unquoted(word.value))
            continue
        ended = bool(texts)
        for name, value in _criteria_of(word, now_s, zone):
            if name == "where":
                conditions = criteria.setdefault(name, [])
                conditions.append(value)
                if len(conditions) > CONDITIONS_MAX:
                    raise Misunderstood(f"{word.raw[:40]}: only {CONDITIONS_MAX} values in the body can be looked for")
            elif name in criteria:
                raise Misunderstood(f"{word.raw[:40]}: {word.key} is given twice")
            else:
                criteria[name] = value
    if texts and "text" in criteria:
        raise Misunderstood(f"{texts[0][:40]}: text is given twice")
    return criteria | ({"text": " ".join(texts)} if texts else {})


def _criteria_of(word: Word, now_s: float, zone: tzinfo | None) -> Iterator[tuple[str, Any]]:
    """Yield the fields that a word sets, and their values."""
    fields = KEYS.get(word.key)
    if fields is None:
        yield "where", _condition(word)
        return
    if not word.value:
        raise Misunderstood(f"{word.raw} needs a value, such as {_example(word.key)}")
    bound = _BOUND.fullmatch(word.value)
    if bound is None or "" in fields:
        names = [fields[""]] if "" in fields else list(fields.values()) if fields.keys() == {">", "<"} else []
        if not names or fields.get(">", "").endswith("_s"):
            signs = [each if name.endswith("_s") else f"{each}=" for each, name in fields.items()]
            shown = " or ".join(f"{word.key}:{each}{word.value[:40]}" for each in signs)
            raise Misunderstood(f"{word.raw[:40]}: write {shown}")
        for name in names:
            yield name, _value(word, name, _unquoted(word.value), now_s, zone)
        return
    sign, text = bound[1], bound[2]
    name = fields.get(sign[0], "")
    if not name:
        other = next(iter(fields))
        raise Misunderstood(f"{word.raw[:40]}: only {word.key}:{other} can be looked for")
    value = _value(word, name, text, now_s, zone)
    if isinstance(value, int):  # a length of time is no whole number
        value += {">": 1, "<": -1}.get(sign, 0)
        if not 0 <= value <= most_of(Filter.model_fields[name], U64_MAX):
            raise Misunderstood(f"{word.raw[:40]}: no job can be so")
    yield name, value


def _condition(word: Word) -> str:
    """Return the condition of a body that a word stands for."""
    value = word.value
    if not is_path(word.key):
        raise Misunderstood(f"{word.raw[:40]}: {word.key[:40]} is no key, and no path in a body; put a text in quotes")
    if not value:
        raise Misunderstood(f'{word.raw[:40]} needs a value; {word.key[:40]}:"" is an empty text')
    if _BOUND.fullmatch(value) is not None:
        compared = ", ".join(key for key, fields in KEYS.items() if "" not in fields)
        more = f"; {_NO_KEYS[word.key]}" if word.key in _NO_KEYS else ""
        text = f"; as a text in a body: {word.key[:40]}:{_quoted(value)[:60]}"
        raise Misunderstood(f"{word.raw[:40]}: {word.key[:40]} can't be compared, only {compared}{more or text}")
    if _WHOLE.fullmatch(value) is None and _SAFE.fullmatch(value) is None:
        quoted = _quoted(word.raw if value.startswith("//") else value)
        meant = quoted if value.startswith("//") else f"{word.key}:{quoted}"
        raise Misunderstood(f"{word.raw[:40]}: values in bodies are not compared; a text is in quotes: {meant[:60]}")
    if _WHOLE.fullmatch(value) is not None:
        _decoded(value)
    return f"{word.key}={value}"


def _value(word: Word, name: str, text: str, now_s: float, zone: tzinfo | None) -> Any:  # noqa: ANN401 - as its field
    """Return the value of a field. Misunderstood: it is none."""
    if name == "ids":
        return _ids(word, text)
    if word.key in _WORDS_OF and text not in _WORDS_OF[word.key]:
        choice = _WORDS_OF[word.key]
        close = get_close_matches(text, choice, n=1)
        meant = f"did you mean {word.key}:{close[0]}?" if close else f"one of {', '.join(choice)}"
        raise Misunderstood(f"{word.raw[:40]}: {meant}")
    try:
        if name.endswith("_s"):
            return float(parse_age(text))
        if name.endswith("_at"):
            return parse_moment(text, now_s, zone, is_end=name == "until_at")
    except ValueError as error:
        raise Misunderstood(f"{word.raw[:40]}: {error}") from None
    if int not in get_args(Filter.model_fields[name].annotation):
        return text
    if name == "holder" and not text.isdecimal():
        raise Misunderstood(f"{word.raw[:40]}: {_HOLDER}")
    return _number(word, text, most_of(Filter.model_fields[name], U64_MAX))


def _ids(word: Word, text: str) -> list[int]:
    ids = [_number(word, part, U64_MAX) for part in text.split(",") if part.strip()]
    if len(ids) > IDS_MAX:
        raise Misunderstood(f"{word.raw[:40]}…: {IDS_MAX} ids at most")
    return ids


def _number(word: Word, text: str, most: int) -> int:
    text = text.strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 20 or int(text) > most:
        raise Misunderstood(f"{word.raw[:40]}: {text[:40]!r} is not a whole number from 0 to {most}")
    return int(text)


def _unquoted(text: str) -> str:
    """Return a text without its quotes. Misunderstood: it is not in quotes as JSON has them, or is not UTF-8."""
    if _WHOLE.fullmatch(text) is None:
        return text
    decoded = _decoded(text)
    try:
        decoded.encode()
    except UnicodeEncodeError:
        raise Misunderstood(f"{text[:40]}: half a pair of surrogates is no character") from None
    return decoded


def _decoded(text: str) -> str:
    """Return the text that is in quotes. Misunderstood: it is not as JSON has it."""
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        raise Misunderstood(f"{text[:40]}: in quotes, \\ is written \\\\") from None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _example(key: str, sign: str | None = None) -> str:
    """Return a word with this key."""
    if key in _WORDS_OF:
        return f"{key}:{_WORDS_OF[key][-1]}"
    sign = next(iter(KEYS[key])) if sign is None else sign
    name = KEYS[key][sign]
    sign += "=" if sign and not name.endswith("_s") else ""
    return f"{key}:{sign}{CRITERIA[name].example if name in CRITERIA else '17,18'}"


# -- lines that are written


def write(key: str, value: str) -> str:
    """Return the word of a key and a value, in quotes if it needs them."""
    return f"{key}:{value if _SAFE.fullmatch(value) else _quoted(value)}"


def key_of(path: str) -> str:
    """Return a path as the key of a word, in quotes where it would be read as something else."""
    quotes = path in KEYS

    def written(part: re.Match[str]) -> str:
        is_bare = part[0][0] not in '"['
        return _quoted(part[0]) if is_bare and (quotes or ":" in part[0]) else part[0]

    return _PART.sub(written, path)


def from_fields(fields: Mapping[str, str]) -> str:
    """Return the line that says the same as fields by the names of the criteria, one each, as links have them."""
    words = []
    for name, key in NAMES.items():
        value = fields.get(key, "").strip() if name != "text" else fields.get(key, "")
        if not value or key == "up_to_id":
            continue
        if name == "ids":
            words.append(f"{_ID}:{''.join(value.split())}")
        elif name == "text":
            plain = all(_PLAIN.fullmatch(part) for part in value.split(" "))
            words.append(value if plain else _quoted(value))
        elif name == "where":
            path, text = condition_of(value) or (value, "")
            whole = key_of(path)
            words.append(f"{whole}:{text}" if _WHOLE.fullmatch(text) else write(whole, text))
        elif name in CRITERIA:
            bare = CRITERIA[name].key.rstrip("<>")
            sign = CRITERIA[name].key[len(bare) :]
            sign += "=" if sign and not name.endswith("_s") else ""
            words.append(f"{bare}:{sign}{value}" if sign else write(bare, value))
    return " ".join(words)


def without(line: str, key: str) -> str:
    """Return a line without the words that have a key; as it is, if it is misunderstood."""
    try:
        return " ".join(word.raw for word in words_of(line) if word.key != key)
    except Misunderstood:
        return line


def values_in(line: str) -> str:
    """Return the words of a line that look for values in bodies that are JSON; none, if it is misunderstood."""
    try:
        return " ".join(word.raw for word in words_of(line) if word.key and word.key not in KEYS)
    except Misunderstood:
        return ""


def values_of(line: str) -> list[str]:
    """Return the values in bodies that a line looks for. Misunderstood: it looks for something else."""
    words = words_of(line)
    if not all(word.key and word.key not in KEYS for word in words):
        raise Misunderstood("only values in JSON bodies can be looked for, such as customer:4711")
    return [_condition(word) for word in words]


def hint(line: str) -> str:
    """Return what may be meant by a word that is looked for in bodies, if it is like a condition; empty if none is."""
    return next(filter(None, map(_meant, words_of(line))), "")


def _meant(word: Word) -> str:
    if word.raw.startswith('"'):  # which is how one looks for such a text, or path
        return ""
    if not word.key:
        key, value = equated.groups() if (equated := _EQUATED.fullmatch(word.value)) else ("", word.value)
        if key and is_path(key):
            meant = f"{key}:{value}" if _WHOLE.fullmatch(value) else write(key, value)
            return f"{word.raw[:40]} is looked for as a text in bodies; did you mean {meant[:60]}?"
        for each, words in _WORDS_OF.items():
            close = get_close_matches(value.lower(), words, n=1, cutoff=0.8)
            if close:
                return f"{value} is looked for as a text in bodies; did you mean {each}:{close[0]}?"
    elif word.key not in KEYS:
        close = get_close_matches(word.key, KEYS, n=1, cutoff=0.75)
        meant = _NO_KEYS.get(word.key) or (f"did you mean {close[0]}:{word.value}?" if close else "")
        return f"{word.key} is looked for in bodies that are JSON; {meant}" if meant else ""
    return ""


def is_cut(value: str) -> bool:
    """Whether a value that a server has told can't be looked for: it is cut, or is an object or an array."""
    if len(value) >= VALUE_MAX:
        return True
    try:
        return isinstance(json.loads(value), (dict, list))
    except (ValueError, RecursionError):
        return False


def syntax() -> list[tuple[str, str]]:
    """Return an example for each key, and what it looks for."""
    return [(_example(key, sign), _help(key, sign)) for key, signs in KEYS.items() for sign in signs]


# -- completion


def complete(word: str) -> list[Completion]:
    """Return what a word may become, other than the name of a tube."""
    key, colon, value = word.partition(":")
    if not colon:
        keys = [key for key in KEYS if key.startswith(word.lower())]
        return [Completion(f"{key}:", _help(key), is_whole=False) for key in keys]
    words = [each for each in _WORDS_OF.get(key, ()) if each.startswith(value.lower())]
    if words:
        return [Completion(f"{key}:{each}", "", is_whole=True) for each in words]
    signs = [sign for sign in KEYS.get(key, {}) if sign and not value]
    return [Completion(f"{key}:{sign}", _help(key, sign), is_whole=False) for sign in signs]


def _help(key: str, sign: str | None = None) -> str:
    """Return what a key looks for."""
    if key == _ID:
        return "Jobs with these ids: id:17,18."
    names = KEYS[key]
    return CRITERIA[names[next(iter(names)) if sign is None else sign]].help
