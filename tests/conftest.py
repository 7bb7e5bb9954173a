"""Fixtures for several test files."""

import logging

import pytest


@pytest.fixture
def kept_logging():
    """Give pytest its log handlers back after a test of something that sets up logging."""
    root, ours = logging.getLogger(), logging.getLogger("beanlite")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(logging.NOTSET)
