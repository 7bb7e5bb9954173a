"""How long replies take, by the turn and by the batch: to read the clock for each command would cost too much."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from beanlite.core.measures import Measures


class Latencies:
    """Follows the replies from the turn in which their commands came until they leave.

    Commands of one client that came together count as one. A reply that needs no batch leaves at the end of its turn.
    """

    __slots__ = ("_clock", "_committing", "_dated", "_gathering", "measures")

    def __init__(self, measures: Measures, clock: Callable[[], int]) -> None:
        self.measures = measures
        self._clock = clock
        self._gathering: list[tuple[int, int]] = []
        """Of the batch being gathered: when turns began, and how many replies each has added."""
        self._dated = 0
        """How many replies these are in all."""
        self._committing: deque[tuple[int, int, list[tuple[int, int]]]] = deque()
        """The same of each batch that is not durable yet, with its number and when it was taken."""

    def turn_ends(self, began_ns: int, now_ns: int, served: int, held: int) -> None:
        """A turn that has begun then is over. So many clients were served, and so many replies are held by now."""
        took_ns = now_ns - began_ns
        self.measures.turns.note(took_ns)
        of_turn = held - self._dated
        if of_turn > 0:
            self._gathering.append((began_ns, of_turn))
            self._dated = held
        if served > of_turn:
            self.measures.commands.note(took_ns, served - of_turn)

    def batch_taken(self, batch: int, held: int) -> None:
        """The batch being gathered is taken, with so many replies that wait for it."""
        now_ns = self._clock()
        if held > self._dated:  # they came in the turn that is not over yet
            self._gathering.append((now_ns, held - self._dated))
        self._committing.append((batch, now_ns, self._gathering))
        self._gathering = []
        self._dated = 0

    def batch_durable(self, batch: int) -> None:
        """The replies that wait for batches up to this one leave."""
        now_ns = self._clock()
        while self._committing and self._committing[0][0] <= batch:
            for began_ns, replies in self._committing.popleft()[2]:
                self.measures.commands.note(now_ns - began_ns, replies)

    def committing_ns(self) -> int:
        """For how long the oldest batch under way has not become durable; 0 if there is none."""
        return self._clock() - self._committing[0][1] if self._committing else 0
