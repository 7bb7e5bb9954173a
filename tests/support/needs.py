"""Programs and packages that a test can't do without."""

import os

import pytest


def need(there: object, what: str) -> None:
    """A skip on a user's machine; CI has installed it."""
    if not there:
        if os.environ.get("CI"):
            pytest.fail(what)
        pytest.skip(what)
