"""The connection of a client of the router, and what becomes of those to the servers."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from beanlite.router.asks import ReserveAsk
from beanlite.router.conversation import RouterSession
from beanlite.router.dial import send_no_more
from beanlite.router.lane import CLOSED, GREETING, OPEN, Ask, Lane
from beanlite.router.relay import introduction_of
from beanlite.router.router_host import RouterHost
from beanlite.router.server_side import UNREAD_MAX, ServerSide

# When so much has come behind a reply of another server that comes first, it is not read any further.
HELD_MAX: Final = 1 << 20


def _is_private(transport: asyncio.BaseTransport) -> bool:
    """Whether nobody can overhear a connection, so that a token may be sent on it."""
    over_tcp = isinstance(transport.get_extra_info("peername"), tuple)
    return not over_tcp or transport.get_extra_info("ssl_object") is not None


class ClientSide(asyncio.Protocol):
    """The connection of a client."""

    __slots__ = (
        "_due_s",
        "_ends",
        "_first",
        "_held",
        "_held_bytes",
        "_host",
        "_introduction",
        "_is_closed",
        "_loop",
        "_reading",
        "_strays",
        "_tasks",
        "_timer",
        "_unread",
        "session",
        "transport",
    )

    def __init__(self, host: RouterHost[ClientSide]) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._ends: dict[Lane, ServerSide] = {}
        self._tasks: dict[Lane, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = float("inf")
        self._introduction = b""
        """What servers are told of the client."""
        self._reading = True
        self._unread = False
        """The client does not read its replies."""
        self._first: Ask | None = None
        """The command whose reply came next when replies were last held."""
        self._held_bytes = 0
        """What has come behind it."""
        self._held: list[ServerSide] = []
        """The servers that are not read from meanwhile."""
        self._strays: list[ServerSide] = []
        """Connections to where no server is any more, which are closed once that costs the client nothing."""
        self._is_closed = False

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make a session, or close the connection at once if there are too many."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNREAD_MAX)
        if self._host.relays:
            self._introduction = introduction_of(transport)
        self.session = RouterSession(self._host.map, self._host.own_stats, tokens_pass=_is_private(transport))
        if not self._host.admit(self):
            self._is_closed = True
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass on what the client says: every command starts here. After the last reply it is not looked at."""
        if self._is_closed:
            return
        self.session.receive(data, self._loop.time())
        self.flush()

    def eof_received(self) -> bool:
        """Note that the client sends no more; it still gets its replies."""
        if self._is_closed:
            return False
        self.session.half_close(self._loop.time())
        self.flush()
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        """Close the connections to servers: they give back what is reserved."""
        self._leave()

    def pause_writing(self) -> None:
        """Read no more from the servers, because the client does not read its replies."""
        self._unread = True
        for end in self._ends.values():
            end.pause()
        self.flush()

    def resume_writing(self) -> None:
        """Read from the servers again."""
        self._unread = False
        for end in self._ends.values():
            self._read_from(end)
        self._go_on()

    # -- the servers

    def server_made(self, end: ServerSide) -> None:
        """Take a connection that was made."""
        lane = end.lane
        self._ends[lane] = end
        assert end.transport is not None
        if self._unread:
            end.pause()
        data = self.session.opened(lane, self._loop.time(), is_private=_is_private(end.transport))
        if data:
            end.transport.write(data)
        elif lane.state == CLOSED:  # what was to be sent there may not be
            self._lose(end)
        self.flush()

    def server_came(self, end: ServerSide, data: bytes) -> None:
        """Take what a server says; a connection with something else than replies is closed."""
        lane = end.lane
        unanswered = len(lane.asks)
        if not self.session.came(lane, data, self._loop.time()) and end.transport is not None:
            end.transport.abort()
            self._lose(end)
        elif self.session.order and len(lane.asks) < unanswered:
            self._hold(end, len(data))
        if self._strays:
            self._drop_strays()
        self._end_misplaced()
        self.flush()

    def _hold(self, end: ServerSide, size: int) -> None:
        """Count what came from a server, and read no more from it if too much has to wait for another server's reply.

        One that owes something to the first command is read from, as are all for a reserve: it may be the router's own.
        """
        first = self.session.order[0]
        if first is not self._first:
            self._first, self._held_bytes = first, 0
            self._read_on()
        self._held_bytes += size
        owes = isinstance(first, ReserveAsk) or any(ask.is_for(first) for ask in end.lane.asks)
        if self._held_bytes > HELD_MAX and not owes and end.transport:
            end.pause()
            self._held.append(end)

    def _read_on(self) -> None:
        held, self._held = self._held, []
        for end in held:
            if not self._unread:
                self._read_from(end)

    def _read_from(self, end: ServerSide) -> None:
        end.resume()
        self.session.heard(end.lane, self._loop.time())

    def server_lost(self, end: ServerSide) -> None:
        """Take note that a connection was lost."""
        lane = end.lane
        upstream = self._host.upstreams.get(lane.number)
        if upstream is not None and not end.has_heard:  # a proxy accepts, whatever became of the server behind it
            upstream.suspect()
        if lane.state == GREETING and not lane.greets_again:  # the kernel accepts for a server that is about to end
            lane.greets_again = True
            self._leave_address(end)
        else:
            self._lose(end)
        self.flush()

    def _lose(self, end: ServerSide) -> None:
        lane = end.lane
        if self._ends.get(lane) is not end:
            return
        del self._ends[lane]
        end.close()
        if lane.state == OPEN:
            self.session.lost(lane, self._loop.time())
        elif lane.state == GREETING:
            self.session.failed(lane, self._loop.time())

    def come_back(self) -> None:
        """Take note that a server can be reached again, perhaps at another address than the one that was halted."""
        for end in [each for each in self._ends.values() if self._host.is_gone(each.lane, each.address)]:
            self._leave_address(end)
        self.session.come_back(self._loop.time())
        self.flush()

    def look_again(self) -> None:
        """Take note that tubes may have moved."""
        self._strays = [end for end in self._ends.values() if self._host.is_stray(end.lane, end.address)]
        self.session.look_again(self._loop.time())
        self._end_misplaced()
        self._drop_strays()
        self.flush()

    def _end_misplaced(self) -> None:
        """Close the connection on which a reserve waits that belongs elsewhere, once that costs the client nothing."""
        lane = self.session.misplaced()
        if lane is not None and lane in self._ends:
            self._lose(self._ends[lane])

    def _drop_strays(self) -> None:
        for end in list(self._strays):  # one by one: the loss of one may let commands begin on another
            if end.client is None or self.session.is_spare(end.lane):
                self._strays.remove(end)
                self._leave_address(end)

    def _leave_address(self, end: ServerSide) -> None:
        if end.lane.state == GREETING and self._ends.get(end.lane) is end:
            self._ends.pop(end.lane).close()
            self.session.connect_again(end.lane)
        else:
            self._lose(end)

    async def _open(self, lane: Lane) -> None:
        tried = None
        end = ServerSide(self, lane)
        try:
            while end.address is None and (upstream := self._host.upstreams.get(lane.number)) is not tried:
                tried = upstream  # it may change
                if upstream is not None:
                    end.address = await upstream.connect(end, self._introduction)
        finally:
            if self._tasks.get(lane) is asyncio.current_task():
                del self._tasks[lane]
            if end.address is None:
                end.close()
        if end.address is None and not self._is_closed:
            self.session.failed(lane, self._loop.time())
            self.flush()
        elif self._host.is_stray(lane, end.address) or self.session.misplaced() is lane:
            self.look_again()  # the file has changed meanwhile

    # -- sending

    def flush(self) -> None:
        """Send everything, and do what the session is ready for; to be called after each call into the session."""
        if self._is_closed:
            return
        session = self.session
        if session.opening:
            self._open_all()
        if session.dirty:
            self._send_to_servers()
        if session.out:
            self._reply()
        if self._held and (not session.order or session.order[0] is not self._first):
            self._read_on()
        if session.half_closed:
            self._end_wait()
        if session.is_done:
            self.close()
            return
        if session.due_s != self._due_s:
            self._set_timer(session.due_s)
        if (session.wants_more and not self._unread) != self._reading:
            self._turn_reading()

    def _reply(self) -> None:
        self.transport.write(self.session.take())  # which may call pause_writing, and that flushes
        if self.session.can_go_on and not self._unread:
            self._loop.call_soon(self._go_on)

    def _send_to_servers(self) -> None:
        dirty, self.session.dirty = self.session.dirty, []
        for lane in dirty:
            data = lane.take()
            if data and (transport := self._ends[lane].transport) is not None:
                transport.write(data)

    def _turn_reading(self) -> None:
        """Read from the client, or do so no more."""
        if not self.transport.is_closing():
            self._reading = not self._reading
            if self._reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _open_all(self) -> None:
        opening, self.session.opening = self.session.opening, []
        for lane in opening:
            self._tasks[lane] = self._loop.create_task(self._open(lane))

    def _end_wait(self) -> None:
        lane = self.session.take_ending()
        if lane is not None:
            send_no_more(self._ends[lane].transport)

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_s = due_s
        if due_s != float("inf"):
            self._timer = self._loop.call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._due_s = float("inf")
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_closed:
            self.session.tick(self._loop.time())
            self.flush()

    # -- the end

    @property
    def descriptors(self) -> int:
        """How many connections are open."""
        return 1 + len(self._ends)

    @property
    def owes(self) -> bool:
        """Whether something was sent that is not answered, and waits neither for a job nor behind a reserve."""
        order = self.session.order
        first = order[0] if order else None
        return first is not None and not (isinstance(first, ReserveAsk) and first.until_s > self._loop.time())

    def end_commands(self) -> None:
        """Carry out no more commands: one whose body is not all there is taken for not given."""
        self.session.is_over = True
        self.session.drop_body()

    def close(self) -> None:
        """Close all once everything is sent."""
        if not self._is_closed:
            self._leave()
            self._host.partings.begin(self.transport, is_mutual=self.session.half_closed)

    def _leave(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._set_timer(float("inf"))
        for task in list(self._tasks.values()):
            task.cancel()
        for end in self._ends.values():
            end.close()
        self._ends.clear()
        self.session.leave()
        self._host.forget(self)
