"""The totals in the file: adding to them, and pruning the oldest."""

import sqlite3
from typing import Final

from beanlite.host import log
from beanlite.journal.sqlite.file.fileformat import text_of
from beanlite.journal.totals import KEPT_S, Totals, TotalsRow, began_s

# The most rows of each span that are deleted at a time.
PRUNED_MAX: Final = 500

_INTO: Final = """
    INTO totals (
        span_s, at, tube, put, reserved, deleted, released, timed_out, buried, kicked, waited_s, held_s,
        dead, expired, refused, duplicates, client_gone, delay_over
    ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ADD: Final = f"""
    INSERT {_INTO}
    ON CONFLICT DO UPDATE SET
        put = put + excluded.put, reserved = reserved + excluded.reserved, deleted = deleted + excluded.deleted,
        released = released + excluded.released, timed_out = timed_out + excluded.timed_out,
        buried = buried + excluded.buried, kicked = kicked + excluded.kicked,
        waited_s = waited_s + excluded.waited_s, held_s = held_s + excluded.held_s,
        dead = dead + excluded.dead, expired = expired + excluded.expired,
        refused = refused + excluded.refused, duplicates = duplicates + excluded.duplicates,
        client_gone = client_gone + excluded.client_gone, delay_over = delay_over + excluded.delay_over
"""
_REPLACE: Final = f"REPLACE {_INTO}"
_TUBES: Final = "SELECT CAST(tube AS BLOB) FROM totals WHERE span_s = ? AND at = ?"
_PRUNE: Final = """
    DELETE FROM totals WHERE (span_s, at, tube) IN
        (SELECT span_s, at, tube FROM totals WHERE span_s = ? AND at < ? ORDER BY at, tube LIMIT ?)
"""


def resume_totals(connection: sqlite3.Connection, totals: Totals, now_s: float) -> None:
    """Continue with the tubes that have a row in the present hour and day. Raises sqlite3.Error."""
    for span_s in KEPT_S:
        at_s = began_s(span_s, now_s)
        totals.resume(span_s, at_s, {tube for (tube,) in connection.execute(_TUBES, (span_s, at_s))})


def add_totals(connection: sqlite3.Connection, rows: list[TotalsRow]) -> None:
    """Add the counts in these rows. A stored row that can't be added to is damaged, and is replaced."""
    for row in rows:
        try:
            connection.execute(_ADD, row)
        except sqlite3.IntegrityError as error:
            log.warning("damaged row of totals was reset; check the disk", tube=row[2], why=text_of(error))
            connection.execute(_REPLACE, row)


def prune_totals(connection: sqlite3.Connection, now_s: float) -> bool:
    """Delete a slice of the totals that are too old; returns whether there may be more."""
    count = 0
    for span_s, kept_s in KEPT_S.items():
        count += connection.execute(_PRUNE, (span_s, now_s - kept_s, PRUNED_MAX)).rowcount
    return count >= PRUNED_MAX
