"""How long connections may decrypt in one pass of the loop."""

from __future__ import annotations

import asyncio
from typing import Final

# So long may all connections together; what comes later waits for its turn.
TURN_S: Final = 0.002


class Pace:
    """The time that is left in this pass of the loop, for all connections."""

    __slots__ = ("left_s",)

    def __init__(self) -> None:
        self.left_s = TURN_S

    def spend(self, seconds: float) -> None:
        """Count what was decrypted at once; the next pass begins anew."""
        if self.left_s == TURN_S:
            asyncio.get_running_loop().call_soon(self._begin)
        self.left_s -= seconds

    def _begin(self) -> None:
        self.left_s = TURN_S
