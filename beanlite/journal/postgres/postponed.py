"""Totals that are written less often while that takes long.

An update of a row has to pass all earlier versions of it that PostgreSQL can't remove yet, as long as some transaction
may still read them. The totals of a busy tube are the same two rows each second, for an hour and for a day: after some
minutes their updates would hold up commits.
"""

from typing import Final, cast

from beanlite.core.totals import Tally
from beanlite.journal.totals import Totals, TotalsRow

# The first fields of a row: the span, its beginning and the tube. All others are added up.
_KEY: Final = 3
# How many rows are written with a batch, unless so many come with it.
_AT_ONCE: Final = 400
# From which time on rows take long to write, in all and each. Tests change these, and the bounds of the wait.
_SLOW_S = 0.005
_SLOW_EACH_S = 50e-6
_LEAST_S = 1.0
_LONGEST_S = 60.0


class PostponedTotals(Totals):
    """Totals whose rows gather for longer, up to a minute, each time that it took long to write them."""

    def __init__(self) -> None:
        super().__init__()
        self._gathered: dict[tuple[object, ...], TotalsRow] = {}
        self._due: list[TotalsRow] = []
        """The rest of those that are being written."""
        self._wait_s = 0.0
        self._until_s = 0.0
        self._ending = False

    @property
    def waiting(self) -> bool:
        """Whether there are rows that have not been returned."""
        return bool(self._gathered or self._due)

    def end(self) -> None:
        """Postpone nothing any more."""
        self._ending = True

    def rows(self, tallies: list[Tally], now_s: float) -> list[TotalsRow]:
        """Return what is to be written now of that and of what has gathered; see ``Totals.rows``."""
        new = super().rows(tallies, now_s)
        for row in new:
            key = row[:_KEY]
            before = self._gathered.get(key)
            self._gathered[key] = row if before is None else _sum(before, row)
        if not self._due and (self._ending or now_s >= self._until_s):
            self._due, self._gathered = list(self._gathered.values()), {}
            self._until_s = now_s + self._wait_s
        most = max(_AT_ONCE, len(new))
        rows, self._due = self._due[:most], self._due[most:]
        return rows

    def note(self, rows: int, seconds: float) -> None:
        """Note how long it took to write so many rows, of which others may follow."""
        if self._due or not rows:
            return
        wait_s = 0.0
        if seconds > max(_SLOW_S, rows * _SLOW_EACH_S):
            wait_s = min(max(_LEAST_S, 2 * self._wait_s), _LONGEST_S)
        self._until_s += wait_s - self._wait_s
        self._wait_s = wait_s


def _sum(row: TotalsRow, other: TotalsRow) -> TotalsRow:
    counts = zip(cast(tuple[float, ...], row[_KEY:]), cast(tuple[float, ...], other[_KEY:]), strict=True)
    return (*row[:_KEY], *[one + another for one, another in counts])
