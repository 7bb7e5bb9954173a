"""Programs and packages that a test can't do without."""

import os

import pytest


def need(there: object, what: str) -> None:
    """Skip the test if something is missing; fail it in CI, where everything is installed."""
    if not there:
        if os.environ.get("CI"):
            pytest.fail(what)
        pytest.skip(what)
