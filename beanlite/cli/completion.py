"""What a shell completes beside commands and options: words of ours, and the names of tubes, which a server knows."""

import dataclasses
import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import islice
from threading import Thread
from typing import Final

import typer

from beanlite.cli.groups import ServerOption
from beanlite.console import listing
from beanlite.core.phrases import shell_word
from beanlite.settings.defaults import COMPLETES

# How long somebody at a terminal waits for names, and how many are of use there.
_WITHIN_S: Final = 0.3
_NAMES_MAX: Final = 500
# A word as bash tells it, with its quotes; and what bash takes for a word by itself.
_WORD: Final = re.compile(r"""(?:[^\s"'\\]|\\.|"[^"]*"?|'[^']*'?)+""")
_BREAK: Final = re.compile("[:=]+")


def join_words() -> None:
    """Join the words that bash has parted at a colon or an equals sign: HOST:PORT is one for us."""
    parts = _WORD.findall(os.environ.get("COMP_WORDS", ""))
    current = os.environ.get("COMP_CWORD", "")
    if not current.isdecimal() or not any(_BREAK.fullmatch(part) for part in parts):
        return
    words: list[str] = []
    at = int(current)
    joins = False
    for number, part in enumerate(parts):
        is_break = _BREAK.fullmatch(part) is not None
        if words and (is_break or joins):
            words[-1] += part
            at -= number <= int(current)
        else:
            words.append(part)
        joins = is_break
    if int(current) >= len(parts) and joins:  # nothing is typed behind it yet
        at -= 1
    os.environ |= {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(at)}


def command_to_complete(commands: Collection[str]) -> str | None:
    """Return the command whose arguments a shell completes; None: it completes the command itself, or nothing."""
    if not os.environ.get(COMPLETES):
        return None
    join_words()
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()
    is_there = len(words) > 2 or (len(words) == 2 and line[-1].isspace())
    return words[1] if is_there and words[1] in commands else None


def one_of(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Make the completion of an option that takes one of these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def tubes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the tubes that begin so; none if the server can't be reached, refuses or is slow. Nothing is printed.

    Names that are to be in quotes are left out: a shell would take mail$x for mail, or what is behind a semicolon for
    another command.
    """
    names: list[str] = []
    if ctx.params.get("db") is not None:  # to read a file may take long
        return names
    fields = (field.name for field in dataclasses.fields(ServerOption))
    server = ServerOption(**{name: ctx.params[name] for name in fields if name in ctx.params})

    def ask() -> None:
        with suppress(Exception), server.open() as live:
            records = listing.everything(live.list_tubes, {"like": f"{incomplete}*"}, "tubes")
            found = (record["name"] for record in islice(records, _NAMES_MAX))
            names.extend(name for name in found if shell_word(name) == name)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_WITHIN_S)
    return list(dict.fromkeys(names))
