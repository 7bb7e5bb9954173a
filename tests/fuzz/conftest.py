"""Prints at the end how many inputs were fuzzed."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line, if it was done."""
    for report in terminalreporter.stats.get("passed", []):
        for key, value in report.user_properties:
            if key == "fuzzed inputs" and report.when == "call":
                terminalreporter.write_line(f"fuzzing: {value} new inputs, and nobody got out of step")
