"""The totals of each tube by the hour and by the day: how they grow, and how the oldest are taken away."""

from __future__ import annotations

import sqlite3
from typing import Final

from beanlite.core.job import SECOND_NS
from beanlite.core.totals import Tally

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
# How long each is kept.
_KEPT_S: Final = {HOUR_S: 14 * DAY_S, DAY_S: 400 * DAY_S}
# Rows taken away in one go.
PRUNED_MAX: Final = 500

ADD_TOTALS: Final = """
    INSERT INTO totals
        (span_s, at, tube, put, reserved, deleted, released, timed_out, buried, kicked, waited_s, held_s)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        put = put + excluded.put, reserved = reserved + excluded.reserved, deleted = deleted + excluded.deleted,
        released = released + excluded.released, timed_out = timed_out + excluded.timed_out,
        buried = buried + excluded.buried, kicked = kicked + excluded.kicked,
        waited_s = waited_s + excluded.waited_s, held_s = held_s + excluded.held_s
"""
_PRUNE: Final = """
    DELETE FROM totals WHERE (span_s, at, tube) IN
        (SELECT span_s, at, tube FROM totals WHERE span_s = ? AND at < ? ORDER BY at, tube LIMIT ?)
"""


def totals_rows(tallies: list[Tally], now_s: float) -> list[tuple[object, ...]]:
    """What to add to the hour and to the day that it is, in UTC seconds."""
    rows: list[tuple[object, ...]] = []
    for tally in tallies:
        counts = (
            tally.name.decode(),
            tally.put,
            tally.reserved,
            tally.deleted,
            tally.released,
            tally.timed_out,
            tally.buried,
            tally.kicked,
            tally.waited_ns / SECOND_NS,
            tally.held_ns / SECOND_NS,
        )
        rows += [(span_s, int(now_s) // span_s * span_s, *counts) for span_s in _KEPT_S]
    return rows


def prune_totals(connection: sqlite3.Connection, now_s: float) -> bool:
    """Take a slice of the oldest away; returns whether there may be more."""
    pruned = 0
    for span_s, kept_s in _KEPT_S.items():
        pruned += connection.execute(_PRUNE, (span_s, now_s - kept_s, PRUNED_MAX)).rowcount
    return pruned >= PRUNED_MAX
