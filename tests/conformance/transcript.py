r"""The transcript format: how a file is read. README.md beside this file is its documentation."""

import re
from dataclasses import dataclass
from pathlib import Path

HEADERS = {"title", "rule", "server", "defect", "since-1.13"}
CLIENT_STEP = re.compile(r"(\w+)(<!|<|>>|\.>|>|\+|:)(?: (.*))?")
CLIENT_VERB = re.compile(r"(\w+) (silent|closed|close|half-close)(?: ([\d.]+))?")
PLAIN_VERB = re.compile(r"(wait) ([\d.]+)|(drain)|(less) \{(\w+)\} \{(\w+)\}")
PIECE = re.compile(r"\\x([0-9a-f]{2})|\\([rnt\\])|\{([^{}]+?)\*(\d+)\}|\{(\*|\d+\.\.\d+|\w+)\}|([^\\{}])")
ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "\\": b"\\"}
SILENT_S = 0.1
FIGURES_OF_TIME = {"age", "time-left", "pause-time-left", "uptime"}


class TranscriptError(Exception):
    """A transcript is not well written; the text names the file and the line."""


@dataclass(frozen=True)
class Hole:
    """What is not literal in a text: ``*`` for anything, ``2..3`` for a number in a range, or the name of a number."""

    name: str


Text = list[bytes | Hole]


@dataclass(frozen=True)
class Step:
    """One line of the session. ``verb`` is the operator or the word; ``checks`` are the lines of a YAML reply."""

    line: int
    source: str
    verb: str
    client: str = ""
    text: tuple[bytes | Hole, ...] = ()
    seconds: float = 0.0
    names: tuple[str, ...] = ()
    checks: tuple[tuple[int, str], ...] = ()

    def shows_time(self) -> bool:
        """Whether a figure of the reply counts seconds, which may just have become one more."""
        return any(check.partition(":")[0] in FIGURES_OF_TIME for _, check in self.checks)


@dataclass(frozen=True)
class Transcript:
    """One file: what it shows, which rule it takes that from, and the steps."""

    name: str
    title: str
    rule: str
    flags: tuple[str, ...]
    defect: str
    since_1_13: str
    steps: tuple[Step, ...]

    def waits_s(self) -> float:
        """How long it takes at least."""
        return sum(step.seconds for step in self.steps)

    def is_timed(self) -> bool:
        """Whether what comes depends on when things are done."""
        return any(step.seconds or step.verb == "<!" or step.shows_time() for step in self.steps)


def read_all(folder: Path) -> list[Transcript]:
    """Every transcript of a folder and the folders in it, by name."""
    return [parse(str(path.relative_to(folder)), path.read_text()) for path in sorted(folder.rglob("*.txt"))]


def parse(name: str, content: str) -> Transcript:
    """Read one file's content. Raises TranscriptError."""
    lines = content.split("\n")
    headers: dict[str, str] = {}
    end_of_headers = lines.index("") if "" in lines else len(lines)
    for number, line in enumerate(lines[:end_of_headers], 1):
        key, colon, value = line.partition(": ")
        if not colon or key not in HEADERS or key in headers:
            raise TranscriptError(f"{name}:{number}: not a header: {line!r}")
        headers[key] = value
    if not {"title", "rule"} <= headers.keys():
        raise TranscriptError(f"{name}: a title and a rule are needed")
    steps: list[Step] = []
    for number, line in enumerate(lines[end_of_headers:], end_of_headers + 1):
        if not line or line.startswith("#"):
            continue
        try:
            _add_step(steps, number, line)
        except ValueError as error:
            raise TranscriptError(f"{name}:{number}: {error}: {line!r}") from None
    return Transcript(
        name=name.removesuffix(".txt"),
        title=headers["title"],
        rule=headers["rule"],
        flags=tuple(headers.get("server", "").split()),
        defect=headers.get("defect", ""),
        since_1_13=headers.get("since-1.13", ""),
        steps=tuple(steps),
    )


def parse_text(text: str) -> Text:
    """Literal bytes and holes. Raises ValueError."""
    parts: Text = []
    position = 0
    while position < len(text):
        found = PIECE.match(text, position)
        if found is None:
            raise ValueError(f"what is {text[position:]!r}?")
        position = found.end()
        code, escape, repeated, times, hole, literal = found.groups()
        if hole:
            parts.append(Hole(hole))
            continue
        if code:
            piece = bytes([int(code, 16)])
        elif escape:
            piece = ESCAPES[escape]
        elif repeated:
            piece = b"".join(part for part in parse_text(repeated) if isinstance(part, bytes)) * int(times)
        else:
            piece = literal.encode()
        if parts and isinstance(parts[-1], bytes):
            parts[-1] += piece
        else:
            parts.append(piece)
    return parts


def _add_step(steps: list[Step], number: int, line: str) -> None:
    if line != line.rstrip():
        raise ValueError("write a blank at the end as \\x20")
    if found := CLIENT_STEP.fullmatch(line):
        client, verb, text = found[1], found[2], found[3] or ""
        if verb != ":":
            steps.append(Step(number, line, verb, client, tuple(parse_text(text))))
            return
        # The lines of one YAML reply follow each other and make one step.
        check = (number, text)
        last = steps[-1] if steps else None
        if last and last.verb == ":" and last.client == client and last.checks[-1][0] == number - 1:
            steps[-1] = Step(last.line, last.source, ":", client, checks=(*last.checks, check))
        else:
            steps.append(Step(number, line, ":", client, checks=(check,)))
    elif found := CLIENT_VERB.fullmatch(line):
        verb = found[2]
        if found[3] and verb != "silent":
            raise ValueError(f"{verb} takes no time")
        seconds = float(found[3] or SILENT_S) if verb == "silent" else 0.0
        steps.append(Step(number, line, verb, found[1], seconds=seconds))
    elif found := PLAIN_VERB.fullmatch(line):
        if found[1]:
            steps.append(Step(number, line, "wait", seconds=float(found[2])))
        elif found[3]:
            steps.append(Step(number, line, "drain"))
        else:
            steps.append(Step(number, line, "less", names=(found[5], found[6])))
    else:
        raise ValueError("not a step")
