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


def pytest_terminal_summary(terminalreporter):
    """How many random steps agreed with the model."""
    for report in terminalreporter.stats.get("passed", []):
        for key, value in report.user_properties:
            if key in {"model steps", "restart steps"} and report.when == "call":
                steps, source = value
                terminalreporter.write_line(f"{key}: all {steps} agreed with the model ({source})")
