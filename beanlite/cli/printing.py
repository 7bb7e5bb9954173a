"""Prints to a stdout that may be on a full disk, or have lost its reader."""

import os
import sys


def print_done(text: str, failure: str = "done, but the result can't be printed") -> None:
    """Print what a command has done. If that fails it is done all the same, and one line on stderr says so.

    An exit code other than 0 would have a script do it again. A reader that has gone wants to hear no more.
    """
    try:
        print(f"{text}\n", end="", flush=True)  # in one write, so that no other thread's comes between
    except BrokenPipeError:
        print_no_more()
    except OSError as error:
        print_no_more()
        print(f"beanlite: {failure}: {error.strerror}", file=sys.stderr)


def print_no_more() -> None:
    """Discard what is printed from now on, and what is still buffered: Python would report that it can't be flushed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
