"""Prints at the end how many fuzzed inputs were tried."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line, if the fuzzing was run."""
    for report in terminalreporter.stats.get("passed", []):
        for key, value in report.user_properties:
            if key == "fuzzed inputs" and report.when == "call":
                terminalreporter.write_line(f"fuzzing: {value} new inputs, and nobody got out of step")
