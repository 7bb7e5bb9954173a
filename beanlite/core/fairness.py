"""The choice of the tube from which a client reserves, where some tubes share out the reservations."""

from __future__ import annotations

from beanlite.core.job import ID_BITS, ID_MASK
from beanlite.core.queues import Queues
from beanlite.core.ticker import Ticker
from beanlite.core.tube import Client, Tube


class Fairness:
    """The choice by the policy ``fair``."""

    __slots__ = ("_ruled", "_ticker")

    def __init__(self, queues: Queues, ticker: Ticker) -> None:
        self._ruled = queues.ruled
        self._ticker = ticker

    def choose(self, client: Client, now_ns: int) -> Tube | None:
        """Return the tube to reserve from.

        Of those whose first job has the same pri, it is the one with the fewest jobs reserved, then the one from which
        none has been for longest. Of the tubes that share nothing out, only the one with the first job of all is
        compared, and the last reservation from any of them counts: else they would have all reservations, or none.
        """
        best: Tube | None = None
        best_rank = (0, 0, 0, 0)
        other: Tube | None = None
        other_key = 0
        for tube in client.watched:
            keys = tube.ready.keys
            if not keys or (tube.shut and self._ticker.stays_shut(tube, now_ns)):
                continue
            rules, kept = tube.rules, tube.kept
            if rules is not None and rules.fair and kept is not None:
                rank = (keys[0] >> ID_BITS, tube.reserved, kept.turn, keys[0] & ID_MASK)
                if best is None or rank < best_rank:
                    best = tube
                    best_rank = rank
            elif other is None or keys[0] < other_key:
                other = tube
                other_key = keys[0]
        if other is None:
            return best
        rank = (other_key >> ID_BITS, other.reserved, self._ruled.other_turn, other_key & ID_MASK)
        return other if best is None or rank < best_rank else best
