"""A loop that calls one at a time, and whatever else ``Turns`` knows of its server."""

from collections import deque
from typing import Any


class StepByStep:
    """The loop, the group commit and the clock of a ``Turns``, in one."""

    def __init__(self):
        self.now_ns = 1 << 50
        self.calls: deque[Any] = deque()
        self.timers = []
        """The delay and the call of each."""
        self.full = self.flooded = self.syncing = self.deferring = self.in_doubt = False

    def call_soon(self, call):
        self.calls.append(call)

    def call_later(self, delay_s, call):
        self.timers.append((delay_s, call))

    def look(self):
        pass

    def turn_ends(self, *_):
        pass

    def await_totals(self):
        pass

    def turn(self):
        for _ in range(len(self.calls)):
            self.calls.popleft()()
