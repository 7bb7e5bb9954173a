"""Prints at the end how many random steps agreed."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line, if random steps were played."""
    for report in terminalreporter.stats.get("passed", []):
        for key, value in report.user_properties:
            if key == "random steps" and report.when == "call":
                kind, steps, replies, seed = value
                terminalreporter.write_line(
                    f"random sessions: beanlite ({kind}) and beanstalkd agreed in all {steps} steps, {replies} replies "
                    f"(RANDOM_SEED={seed})"
                )
