"""The event loop of a simulated server. Nothing outside writes to it: where it would wait, simulated time passes."""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulator.world import World

TURN_NS = 50_000  # what a turn of the loop takes
SECOND_NS = 1_000_000_000
STALLED_S = 100_000.0
DUE_S = 1e-9  # a timer is due so much early, because times in seconds are not exact


class Call:
    """A call that is due. asyncio's own handles take longer, for contexts and a debug mode that nobody here needs."""

    __slots__ = ("args", "callback")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.callback: Callable[..., Any] | None = callback
        """None: cancelled."""
        self.args = args

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop that runs in a world's time."""

    _ready: Any
    _scheduled: list[tuple[float, int, Call]]  # the calls by time; of the same time, in the order in which they came
    _stopping: bool

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world
        self._number = 0

    def time(self):
        return self._world.now_ns / SECOND_NS

    def call_soon(self, callback, *args, **_context):  # type: ignore[override]
        call = Call(callback, args)
        self._ready.append(call)
        return call

    def call_soon_threadsafe(self, callback, *args, **_context):  # type: ignore[override]
        return self.call_soon(callback, *args)

    def call_later(self, delay, callback, *args, **_context):  # type: ignore[override]
        return self.call_at(self._world.now_ns / SECOND_NS + delay, callback, *args)

    def call_at(self, when, callback, *args, **_context):  # type: ignore[override]
        self._number += 1
        call = Call(callback, args)
        heappush(self._scheduled, (when, self._number, call))
        return call

    def run_in_executor(self, _executor, function, *args):  # type: ignore[override]
        """Call a function in the loop, after the time that a thread takes."""
        called = self.create_future()
        self.call_later(self._world.thread_s, _call, called, function, args)
        return called

    def add_signal_handler(self, sig, callback, *args):  # type: ignore[override]
        """Do nothing: there are no signals, and the simulator does directly what a handler would do."""

    def _run_once(self):
        """Let time pass until something is due, and do everything that is."""
        ready = self._ready
        self._pass_time()
        scheduled = self._scheduled
        due_s = self._world.now_ns / SECOND_NS + DUE_S
        while scheduled and scheduled[0][0] < due_s:
            call = heappop(scheduled)[2]
            if call.callback is not None:
                ready.append(call)
        for _ in range(len(ready)):
            call = ready.popleft()
            if call.callback is None:
                continue
            try:
                call.callback(*call.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio does
                self.call_exception_handler({"message": f"exception in {call.callback}", "exception": error})

    def _pass_time(self) -> None:
        world, scheduled = self._world, self._scheduled
        if world.disk.dies and not world.dead and world.disk.came():
            world.crash()
            return
        while scheduled and scheduled[0][2].callback is None:
            heappop(scheduled)
        wait_ns = 0
        if not self._ready and not self._stopping:
            # Without timers nothing will ever happen again, which a huge step makes noticeable.
            wait_s = scheduled[0][0] - world.now_ns / SECOND_NS if scheduled else STALLED_S
            wait_ns = round(wait_s * SECOND_NS)
        world.now_ns += wait_ns if wait_ns > 0 else TURN_NS
        if not world.dead and world.now_ns >= world.crash_ns > 0:
            world.crash()


def _call(called: asyncio.Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if called.cancelled():
        return
    try:
        called.set_result(function(*args))
    except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
        called.set_exception(error)
