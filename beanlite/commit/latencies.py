"""How long replies take, measured per turn and batch, since reading the clock for each command would cost too much."""

from collections import deque
from collections.abc import Callable

from beanlite.core.measures import Measures


class Latencies:
    """A measurement of the time from the turn in which commands come until their replies leave.

    Commands that a client sent together count as one. A reply that needs no batch leaves at the end of its turn.
    """

    __slots__ = ("_clock", "_committing", "_gathering", "_reply_count", "measures")

    def __init__(self, measures: Measures, clock: Callable[[], int]) -> None:
        self.measures = measures
        self._clock = clock
        self._gathering: list[tuple[int, int]] = []
        """When each turn began that added replies to the batch being gathered, and how many it added."""
        self._reply_count = 0
        """How many replies ``_gathering`` has in all."""
        self._committing: deque[tuple[int, int, list[tuple[int, int]]]] = deque()
        """Each batch that is not durable yet: its number, when it was taken, and what ``_gathering`` was then."""

    def turn_ends(self, began_ns: int, now_ns: int, clients: int, replies: int) -> None:
        """Note that a turn has ended, when it began, how many clients it served, and how many replies are held."""
        took_ns = now_ns - began_ns
        self.measures.turns.note(took_ns)
        of_turn = replies - self._reply_count
        if of_turn > 0:
            self._gathering.append((began_ns, of_turn))
            self._reply_count = replies
        if clients > of_turn:
            self.measures.commands.note(took_ns, clients - of_turn)

    def batch_taken(self, batch: int, replies: int) -> None:
        """Note that the batch being gathered is taken, with this many replies that wait for it."""
        now_ns = self._clock()
        if replies > self._reply_count:  # the rest came in the turn that has not ended yet
            self._gathering.append((now_ns, replies - self._reply_count))
        self._committing.append((batch, now_ns, self._gathering))
        self._gathering = []
        self._reply_count = 0

    def batch_durable(self, batch: int) -> None:
        """Note that the replies leave that wait for batches up to this one."""
        now_ns = self._clock()
        while self._committing and self._committing[0][0] <= batch:
            for began_ns, replies in self._committing.popleft()[2]:
                self.measures.commands.note(now_ns - began_ns, replies)

    def committing_ns(self) -> int:
        """Return how long ago the oldest batch was taken that is not durable yet; 0 if there is none."""
        return self._clock() - self._committing[0][1] if self._committing else 0
