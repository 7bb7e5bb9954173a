"""Fixtures for the core and its commands."""

import pytest

from tests.support.operators import Operator


@pytest.fixture
def operator(core):
    """An operator's session."""
    return Operator(core)


@pytest.fixture
def router(core):
    """A client that asks for offers, as a router does."""
    return core.client()
