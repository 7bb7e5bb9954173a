"""The naive model's policies: which values hold for a tube, read anew from all rows."""

from fnmatch import fnmatchcase
from typing import NamedTuple

SECOND_NS = 1_000_000_000
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NUMBERS = ("max_tries", "max_reserved", "max_jobs")


class Policies:
    """Rows: a value, as text, for each pair of a pattern and a key."""

    def __init__(self, rows=()):
        self.rows = dict(rows)
        self._of = {}

    def change(self, pattern, values):
        """Set these values of a pattern; None unsets."""
        self._of = {}
        for key, value in values.items():
            if value is None:
                self.rows.pop((pattern, key), None)
            else:
                self.rows[pattern, key] = value

    def of(self, name):
        """Return the values that hold for a tube, by key; those that are off are missing."""
        if name not in self._of:
            winners = {key: self._winner(name, key) for key in {key for _, key in self.rows}}
            texts = {key: text for key, text in winners.items() if text not in {None, "off"}}
            self._of[name] = {key: meaning(key, text) for key, text in texts.items()}
        return self._of[name]

    def _winner(self, name, key):
        patterns = [pattern for pattern, other in self.rows if other == key and fits(pattern, name)]
        return self.rows[min(patterns, key=unspecificity), key] if patterns else None


def fits(pattern, name):
    return pattern == name or fnmatchcase(name.decode(), pattern.decode())


def unspecificity(pattern):
    """Return what is smaller for a pattern that is more specific."""
    literals = sum(byte not in b"*?" for byte in pattern)
    return literals < len(pattern), -literals, pattern


def meaning(key, text):
    if key in NUMBERS:
        return int(text)
    if key == "retry":
        first, _, most = text.partition("..")
        return duration_ns(first), duration_ns(most or first)
    if key == "rate":
        jobs, unit = text.split("/")
        return rate_of(int(jobs), UNITS_S[unit])
    if key == "ttl":
        return duration_ns(text)
    return text


def duration_ns(text):
    return int(text[:-1]) * UNITS_S[text[-1]] * SECOND_NS


def destination(text):
    """Return the tube to which jobs move, if they do."""
    kind, _, name = (text or "").partition(":")
    return name.encode() if kind == "move" else None


class Rate(NamedTuple):
    """How long each job takes to be made up for, and how many of these whiles may add up."""

    job_ns: int
    most_ns: int


def rate_of(jobs, seconds):
    """Return the rate of so many jobs in so many seconds."""
    job_ns = (seconds * SECOND_NS + jobs - 1) // jobs
    return Rate(job_ns, max(1, jobs // seconds) * job_ns)
