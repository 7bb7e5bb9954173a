"""Paths on the command line."""

from pathlib import Path

import typer

from beanlite.values import of_path


def path_given(text: object) -> str:
    """Return a path as it was given, unless it is empty, as from a script whose variable is not set. BadParameter."""
    try:
        return str(of_path(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def as_path(text: object) -> Path:
    """Parse a path. BadParameter: it is empty."""
    return Path(path_given(text))
