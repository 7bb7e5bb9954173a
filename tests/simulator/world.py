"""Time and randomness of a simulated server, and their stand-ins in the standard library.

Nothing here waits. Each reading of a clock takes a moment, so that a loop that spins until some time comes to an end.
"""

import asyncio
import os
import random
import time
import zlib
from typing import Any, ClassVar

import aiosqlite

from beanlite.host import signals
from tests.simulator.disk import SYNC, FaultyDisk
from tests.simulator.loop import SECOND_NS, SimulatedLoop

LOOK_NS = 300  # what reading a clock takes
BEGIN_NS = 2_000_000_000 * SECOND_NS  # of the wall clock: later than the real time of any file

_REAL = {name: getattr(time, name) for name in ("time", "time_ns", "monotonic", "perf_counter", "clock_gettime_ns")}
_real_fdatasync = os.fdatasync
real_s = time.monotonic


class World:
    """The time, disk and faults of one seed. ``dead``: the process has been killed, and nothing that it does counts."""

    def __init__(self, seed: int | str) -> None:
        self.chance = random.Random(seed)
        self.disk: FaultyDisk
        self.now_ns = 5 * SECOND_NS
        self.wall_ns = BEGIN_NS
        """By how much the wall clock is ahead of ``now_ns``."""
        self.boot = 1
        self.sync_s = 0.0001
        """About how long a sync takes."""
        self.thread_s = 0.0005
        """About how long the journal's thread takes to begin with a call, such as a fetch of bodies."""
        self.slow = True
        """Whether some syncs take much longer."""
        self.dead = False
        self.ended_ns = 0
        """When the process ended, in whatever way; 0: it is alive."""
        self.trace = False
        """Whether to print all messages between clients and server."""
        self.digest = 0
        """A checksum of all messages: two runs of a seed have the same."""
        self.committed = 0
        """The last batch that was reported durable."""
        self.synced = 0
        """The last such batch that a sync has covered."""
        self.loop: SimulatedLoop | None = None
        self.crash_ns = 0
        self.referee: Any = None
        """Sees what becomes of policies, in a run that has some."""
        self.broken: Exception | None = None
        """The first broken promise that was found inside a call by the server, which must not get the exception."""

    def note(self, who: str, what: bytes) -> None:
        """Add a message to the digest, and print it if ``trace`` is set."""
        self.digest = zlib.crc32(b"%d %b %b" % (self.now_ns, who.encode(), what), self.digest)
        if self.trace:
            print(f"{self.now_ns / SECOND_NS:.6f} {who} {what[:200]!r}")

    @property
    def gone(self) -> bool:
        """Whether the process is gone, perhaps in the middle of a file operation."""
        return self.dead or (self.disk.dies and self.disk.came())

    def crash(self) -> None:
        """Kill the process."""
        self.ended_ns = self.ended_ns or self.now_ns
        self.dead = True
        self.disk.die()
        if self.loop is not None:
            self.loop.stop()

    def sync_takes_s(self) -> float:
        """Return the duration of a sync: mostly typical, now and then much longer."""
        chance = self.chance
        if chance.random() < 0.02 and self.slow:
            return chance.choice((0.03, 0.3, 2.0))
        return self.sync_s * chance.uniform(0.5, 2)


class SimulatedSync:
    """The sync in the background: everything written before it began is safe once it has ended.

    If one fails nothing more is safe, but as by the kernel, each descriptor is told of it just once.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._under_way: list[tuple[float, Any, int, int]] = []
        self._error: OSError | None = None
        self._told: set[int] = set()
        """The descriptors that have been told of the error."""

    def __call__(self, descriptor, done):
        world = self._world
        loop = asyncio.get_running_loop()
        error = world.disk.due(SYNC)
        if error is not None:
            self._error = error
        else:
            world.disk.begin_sync(descriptor)
        at_s = loop.time() + world.sync_takes_s()
        entry = (at_s, done, descriptor, world.committed)
        self._under_way.append(entry)
        loop.call_at(at_s, self._end, entry)

    def _end(self, entry):
        if entry not in self._under_way or self._world.gone:
            return
        self._under_way.remove(entry)
        _, done, descriptor, committed = entry
        if self._error is None:
            self._world.disk.end_sync(descriptor)
            self._world.synced = max(self._world.synced, committed)
        error = None if descriptor in self._told else self._error
        if error is not None:
            self._told.add(descriptor)
        done(error)

    def poll(self):
        now_s = self._world.now_ns / SECOND_NS
        for entry in [each for each in self._under_way if each[0] <= now_s]:
            self._end(entry)


class InlineConnection(aiosqlite.Connection):
    """Does in the loop, after a simulated delay, what aiosqlite's thread would do."""

    world: ClassVar[World | None] = None

    def __await__(self):
        return self._open().__await__()

    async def _open(self):
        self._connection = self._connector()
        return self

    async def _execute(self, fn, *args, **kwargs):
        assert self.world is not None
        chance = self.world.chance
        await asyncio.sleep(chance.expovariate(1 / self.world.thread_s))
        done = fn(*args, **kwargs)
        await asyncio.sleep(chance.expovariate(5000))
        return done

    async def close(self):
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __del__(self):
        pass


_world: World | None = None


def _time_of(name):
    real = _REAL[name]
    in_s = not name.endswith("_ns")

    def on_the_wall(*given):
        world = _world
        if world is None:
            return real(*given)
        now_ns = world.now_ns + world.wall_ns  # looking takes no time: how often depends on the folder's real time
        return now_ns / SECOND_NS if in_s else now_ns

    def since_boot(*given):
        world = _world
        if world is None:
            return real(*given)
        world.now_ns += LOOK_NS
        return world.now_ns / SECOND_NS if in_s else world.now_ns

    return on_the_wall if name in {"time", "time_ns"} else since_boot


def _fdatasync(descriptor):
    if _world is not None:
        _world.now_ns += round(_world.sync_takes_s() * SECOND_NS)
    _real_fdatasync(descriptor)


def install() -> None:
    """Have everything that is imported from now on use the current world; to be called once, early."""
    for name in _REAL:
        setattr(time, name, _time_of(name))
    for module, name, value in (
        (os, "fdatasync", _fdatasync),
        (aiosqlite, "Connection", InlineConnection),
        (signals, "hold", lambda: None),
        (signals, "hear", lambda: None),
    ):
        setattr(module, name, value)


def current() -> World:
    """The world that was entered last."""
    assert _world is not None
    return _world


def enter(world: World | None) -> None:
    """Make this the current world; None: the real one."""
    global _world  # noqa: PLW0603 - there is only one, as there is only one time module
    _world = InlineConnection.world = world
