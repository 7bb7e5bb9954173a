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


def as_new_file(text: object) -> Path:
    """Parse the path of a file to be made. BadParameter: it is empty, or can only be that of a folder."""
    given = path_given(text)
    if given.endswith(("/", "/.")):
        raise typer.BadParameter(f"{given} can only be a folder, and a file is to be named")
    return Path(given)
