"""Prints at the end how many transcripts agreed with which server, and why some were played again."""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line per server, and the differences that did not recur."""
    counts: dict[str, Counter[str]] = {}
    again: list[tuple[str, str]] = []
    for outcome in ("passed", "failed", "xfailed"):
        for report in terminalreporter.stats.get(outcome, []):
            properties = dict(report.user_properties)
            if "transcript server" in properties and report.when == "call":
                count = counts.setdefault(properties["transcript server"], Counter())
                count[outcome] += 1
                whys = properties.get("transcript played again", [])  # missing if a play raised
                again += [(properties["transcript server"], why) for why in whys]
    for server, count in sorted(counts.items()):
        of = count["passed"] + count["failed"] + count["xfailed"]
        terminalreporter.write_line(
            f"transcripts: {server} agreed with {count['passed']} of {of}; "
            f"{count['xfailed']} differ as they are marked, {count['failed']} unexpectedly"
        )
    for server, why in again:
        terminalreporter.write_line(f"transcripts: played again with {server}: {why}")
