"""Prints at the end how many transcripts agreed with which server."""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a server."""
    counts: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed", "xfailed"):
        for report in terminalreporter.stats.get(outcome, []):
            for key, server in report.user_properties:
                if key == "transcript server" and report.when == "call":
                    counts.setdefault(server, Counter())[outcome] += 1
    for server, outcomes in sorted(counts.items()):
        terminalreporter.write_line(
            f"transcripts: {server} agreed with {outcomes['passed']} of {outcomes.total()}; "
            f"{outcomes['xfailed']} differ as they are marked, {outcomes['failed']} unexpectedly"
        )
