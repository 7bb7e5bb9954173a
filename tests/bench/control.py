"""One connection for what is not measured: filling tubes, clearing them, statistics."""

import itertools
import time
from typing import Final, TypeVar

from beanlite.beanstalk.client import Client
from beanlite.client import calls
from beanlite.client.calls import Call
from beanlite.client.errors import ClientError, NotFound, TimedOut
from tests.bench.workloads import TTR_S, body_of

T = TypeVar("T")

CLEARED_WITHIN_S: Final = 5.0  # the server may still be taking back what closed connections had reserved
_BATCH_BYTES: Final = 1 << 20
_KICKED_MAX: Final = 1_000_000


class Control(Client):
    """A client that fills tubes and clears them. Its methods raise Unreachable and ClientError."""

    def fill(self, tubes: list[str], size: int, count: int) -> None:
        """Put `count` jobs with bodies of `size` bytes, spread over the tubes."""
        most = _batch(size)
        put = calls.put(body_of(size), calls.PRI, 0, TTR_S)
        for number, tube in enumerate(tubes):
            share = len(range(number, count, len(tubes)))
            for batch in itertools.chain(itertools.repeat(most, share // most), [share % most]):
                self._each([put] * batch, tube)

    def clear(self, tubes: list[str], size: int) -> int:
        """Delete all jobs of the tubes, which have bodies of `size` bytes; return how many could not be deleted."""
        self.watch(frozenset(tubes))
        end_s = time.monotonic() + CLEARED_WITHIN_S
        while True:
            for tube in tubes:
                while self.ask(calls.kick(_KICKED_MAX), tube):
                    pass
            self._delete_ready(size)
            left = sum(self._jobs_in(tube) for tube in tubes)
            if not left or time.monotonic() > end_s:
                return left
            time.sleep(0.05)

    def _delete_ready(self, size: int) -> None:
        while jobs := self._each([calls.reserve(0)] * _batch(size)):
            self._each([calls.delete(job_id) for job_id, _ in jobs])

    def _jobs_in(self, tube: str) -> int:
        try:
            stats = self.ask(calls.stats_tube(tube))
        except NotFound:
            return 0
        return sum(int(stats[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed", "buried"))

    def _each(self, several: list[Call[T]], tube: str | None = None) -> list[T]:
        """Return the results of several commands; of reserves those that there are."""
        results: list[T] = []
        for result in self.ask_all(several, tube):
            if not isinstance(result, ClientError):
                results.append(result)
            elif not isinstance(result, TimedOut):
                raise result
        return results


def _batch(size: int) -> int:
    """Return how many commands to send at once with bodies of this size."""
    return max(1, min(500, _BATCH_BYTES // (size + 64)))
