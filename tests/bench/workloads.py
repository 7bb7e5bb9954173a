"""The commands that connections send: each repeats the steps of its role."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tests.bench.replies import Jobs, Lines

TTR_S: Final = 3600  # nothing times out under load
DELAY_S: Final = 3600  # no delay ends on its own: kicks end them


@dataclass(frozen=True, slots=True)
class Step:
    """One batch of commands and its replies.

    It is the same each time (`batch`), or has a command for each of the job ids from the last reserve (`around`).
    """

    name: str
    replies: Lines | Jobs
    batch: bytes = b""
    count: int = 0
    """The number of commands in `batch`."""
    around: tuple[bytes, bytes] = (b"", b"")
    reserves: bool = False
    """Its replies have the job ids for the following steps."""
    waits: bool = False
    """Its replies depend on other connections, so they are not timed, and not waited for at the end."""
    finishes: bool = False
    """Each of its replies counts as a job done."""

    def request(self, ids: list[bytes]) -> bytes:
        """Return the batch for these ids, of which there is at least one."""
        if self.batch:
            return self.batch
        before, after = self.around
        return before + (after + before).join(ids) + after


Roles = tuple[tuple[Step, ...], ...]
"""The roles of a workload: connections take them in turn."""


def body_of(size: int) -> bytes:
    """Return a body of `size` bytes."""
    return b"x" * size


def put_batch(size: int, count: int) -> bytes:
    """Return `count` puts with bodies of `size` bytes."""
    return b"put 1024 0 %d %d\r\n%b\r\n" % (TTR_S, size, body_of(size)) * count


class _Steps:
    """The steps for batches of `depth` commands and bodies of `size` bytes."""

    def __init__(self, depth: int, size: int) -> None:
        body = body_of(size)
        self.noop = Step("list-tube-used", Lines(b"USING "), b"list-tube-used\r\n" * depth, depth)
        self.put = Step("put", Lines(b"INSERTED "), put_batch(size, depth), depth)
        self.reserve = Step("reserve", Jobs(body, may_end=False), b"reserve\r\n" * depth, depth, reserves=True)
        self.take = Step(
            "reserve", Jobs(body, may_end=True), b"reserve-with-timeout 0\r\n" * depth, depth, reserves=True
        )
        self.delete = Step("delete", Lines(b"DELETED\r\n"), around=(b"delete ", b"\r\n"), finishes=True)
        self.delay = Step("release", Lines(b"RELEASED\r\n"), around=(b"release ", b" 1024 %d\r\n" % DELAY_S))
        self.bury = Step("bury", Lines(b"BURIED\r\n"), around=(b"bury ", b" 1024\r\n"))
        self.kick = Step("kick-job", Lines(b"KICKED\r\n"), around=(b"kick-job ", b"\r\n"))


# Reserves need not wait where each connection puts, or kicks, as many jobs as it then reserves.
_WORKLOADS: Final[dict[str, Callable[[_Steps], Roles]]] = {
    "noop": lambda s: ((s.noop,),),
    "put": lambda s: ((replace(s.put, finishes=True),),),
    "cycle": lambda s: ((s.put, s.reserve, s.delete),),
    "drain": lambda s: ((s.take, s.delete),),
    "pc": lambda s: ((s.put,), (replace(s.reserve, waits=True), s.delete)),
    "mixed": lambda s: ((s.put, s.reserve, s.delay, s.kick, s.reserve, s.bury, s.kick, s.reserve, s.delete),),
}
BESIDE: Final = (_Steps(1, 0).noop,)
"""The role of the connections that only add load beside the measured ones."""
NAMES: Final = tuple(_WORKLOADS)


def roles(workload: str, depth: int, size: int) -> Roles:
    """Return the roles of a workload."""
    return _WORKLOADS[workload](_Steps(depth, size))
