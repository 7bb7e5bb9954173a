"""Computes what is added to each tube's totals of the hour and of the day."""

from typing import Final

from beanlite.core.job import SECOND_NS
from beanlite.core.totals import Tally

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
# How long the totals of each kind of span are kept.
KEPT_S: Final = {HOUR_S: 14 * DAY_S, DAY_S: 400 * DAY_S}
# How many tubes have totals of their own in an hour or a day: otherwise, clients that use a new tube for each request
# would fill the disk. All other tubes share a row under a name that no tube can have.
TUBES_MAX: Final = 10_000
REST: Final = b"[rest]"

TotalsRow = tuple[object, ...]


class Totals:
    """The tubes that have rows of their own: in each hour and day, the first TUBES_MAX to occur."""

    def __init__(self) -> None:
        self._spans: dict[int, tuple[int, set[bytes]]] = {span_s: (0, set()) for span_s in KEPT_S}
        """For each length of span: when the current span began, and the tubes that have a row in it."""

    def resume(self, span_s: int, at_s: int, tubes: set[bytes]) -> None:
        """Continue a span that began at ``at_s``, and in which these tubes have a row."""
        self._spans[span_s] = (at_s, tubes - {REST})

    def rows(self, tallies: list[Tally], now_s: float) -> list[TotalsRow]:
        """Return what to add to the hour and the day of ``now_s``, in UTC seconds; each tube has at most one tally."""
        return [row for span_s in KEPT_S for row in self._rows_of_span(span_s, began_s(span_s, now_s), tallies)]

    def _rows_of_span(self, span_s: int, at_s: int, tallies: list[Tally]) -> list[TotalsRow]:
        last_s, names = self._spans[span_s]
        if last_s != at_s:
            names = set()
            self._spans[span_s] = (at_s, names)
        rows: list[TotalsRow] = []
        rest: Tally | None = None
        for tally in tallies:
            if len(names) < TUBES_MAX or tally.name in names:
                names.add(tally.name)
                rows.append(_row(span_s, at_s, tally))
            else:
                if rest is None:
                    rest = Tally(REST)
                rest.add(tally)
        if rest is not None:
            rows.append(_row(span_s, at_s, rest))
        return rows


def began_s(span_s: int, now_s: float) -> int:
    """Return when the hour or the day of ``now_s`` began, in UTC seconds."""
    return int(now_s) // span_s * span_s


def _row(span_s: int, at_s: int, tally: Tally) -> TotalsRow:
    return (
        span_s,
        at_s,
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
        tally.dead,
        tally.expired,
        tally.refused,
        tally.duplicates,
        tally.client_gone,
        tally.delay_over,
    )
