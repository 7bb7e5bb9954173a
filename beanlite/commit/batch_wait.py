"""The wait of a batch for clients that have just been answered: with their next commands they share it.

Otherwise clients take turns: the first one that comes back begins a batch, and all others wait for the next one, too.
"""

from typing import Final

# A batch waits as long as clients are served: until there is a pause of this part of the time that a batch takes to
# become durable, or of this time. In all it waits no longer than so many of these pauses.
PAUSE_PART: Final = 8
PAUSE_NS: Final = 40_000
PAUSES: Final = 10
# On a disk that takes longer, it waits no longer than on one that takes this time.
TOOK_MAX_NS: Final = 20_000_000
# If the core is away for this time when it is yielded to the clients, another program uses it: no batch waits for so
# long.
AWAY_NS: Final = 1_000_000
REST_NS: Final = 1_000_000_000


class BatchWait:
    """How long the next batch waits, and for how many clients."""

    def __init__(self) -> None:
        self._expected = 0
        """How many clients are to wait for the batch."""
        self._served = 0
        """How many clients have been served since that was last looked at."""
        self._took_ns = 0
        """How long the last batch took."""
        self._pause_ns = PAUSE_NS
        """How long it waits after a client has been served."""
        self._quiet_at_ns = self._late_at_ns = 0
        """When it stops to wait: unless a client is served before, and in any case."""
        self._rests_until_ns = 0
        """Until when no batch waits."""

    def begin(self, expected: int, took_ns: int, now_ns: int) -> None:
        """Wait for so many clients from now on; the last batch took this time."""
        # A disk that is slow now and then is not a slow disk.
        typical_ns, self._took_ns = min(self._took_ns, took_ns, TOOK_MAX_NS), took_ns
        self._expected = expected
        self._served = 0
        self._pause_ns = max(typical_ns // PAUSE_PART, PAUSE_NS)
        self._quiet_at_ns = now_ns + self._pause_ns
        self._late_at_ns = now_ns + PAUSES * self._pause_ns

    def note_served(self, clients: int) -> None:
        """Note that so many clients have been served."""
        self._served += clients

    def lasts(self, held: int, now_ns: int) -> bool:
        """Whether the batch waits for others, beside those that are held."""
        if held >= self._expected:
            return False
        if self._served:
            self._served = 0
            self._quiet_at_ns = min(now_ns + self._pause_ns, self._late_at_ns)
        return self._rests_until_ns <= now_ns < self._quiet_at_ns

    def note_yield(self, away_ns: int, now_ns: int) -> None:
        """Note that the core was yielded, and away for this time."""
        if away_ns > AWAY_NS:
            self._rests_until_ns = now_ns + REST_NS
