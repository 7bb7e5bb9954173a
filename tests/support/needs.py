"""Programs and packages that a test can't do without."""

import errno
import os
from pathlib import Path

import pytest

from beanlite.journal.sqlite.file.mark import ATTRIBUTE


def need(there: object, what: str) -> None:
    """Skip the test if something is missing; fail it in CI, where everything is installed."""
    if not there:
        if os.environ.get("CI"):
            pytest.fail(what)
        pytest.skip(what)


def need_attributes(folder: Path) -> None:
    """Skip the test if the file system of its folder has no extended attributes."""
    try:
        os.setxattr(folder, ATTRIBUTE, b"")
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        need(there=False, what="the file system has no extended attributes")
