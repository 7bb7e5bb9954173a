"""The connections of a client on asyncio: which does what, and new ones for those that have ended."""

import asyncio
import logging
import random
from contextlib import suppress
from typing import Final

from beanlite.client.channel import Channel, connect_channel
from beanlite.client.errors import CannotConnect, ConnectionLost, NotSent, TimedOut, cannot_connect
from beanlite.client.target import Target, wait_s

_LOG: Final = logging.getLogger("beanlite.client")
_CLOSED: Final = "the queue is closed"
_CLOSE_S: Final = 5.0
# So many connections that no reserve needs are kept.
_FREE_MAX: Final = 64
# A server that is none may answer in another way each time.
_REASONS_MAX: Final = 10


class Pool:
    """One connection for commands, those of reserves that wait and of jobs that are not finished, and free ones."""

    def __init__(self, where: tuple[Target, ...]) -> None:
        self._targets = where
        """The one to be tried next comes first."""
        self.main: Channel | None = None
        """What all commands go over that are not about a reserved job."""
        self._free: list[Channel] = []
        """Connections on which nothing is reserved, and no reserve waits."""
        self._channels: set[Channel] = set()
        self._failures = 0
        """How many connections in a row could not be made, or ended."""
        self._told: set[str] = set()
        """The reasons for that that were logged."""
        self._again = asyncio.Lock()
        self._new_main = asyncio.Lock()
        self._attempts: set[asyncio.Timeout] = set()
        """Those to connect that are under way."""
        self._closed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return bool(self._channels)

    async def close(self) -> None:
        """Close all connections, for good."""
        if not self._closed.is_set():  # an attempt whose time is over can't be told so once more
            self._closed.set()
            for attempt in self._attempts:
                attempt.reschedule(0)
        channels = list(self._channels)
        for channel in channels:
            channel.close()
        if channels:
            await asyncio.wait([channel.ended for channel in channels], timeout=_CLOSE_S)
        for channel in list(self._channels):  # of a server that reads nothing
            channel.abort()

    async def usable(self) -> Channel:
        """Return the connection for commands, once it takes more."""
        async with self._new_main:  # one makes it for all
            if self.main is None or self.main.is_lost:
                self.main = self._free.pop() if self._free else await self._open()
        await self.main.room()
        return self.main

    async def take(self, watched: frozenset[str], until: float | None = None) -> Channel:
        """Return a connection for a reserve from these tubes. TimedOut: there is none in time."""
        while True:
            channel = self._chosen(watched) or await self._open(until)
            if channel.watched == watched:
                return channel
            try:
                await channel.watch(watched)
            except NotSent:
                channel.raise_if_last(until)
                continue
            except BaseException:
                channel.abort()
                raise
            return channel

    def _chosen(self, watched: frozenset[str]) -> Channel | None:
        """Take a free connection, if there is one: rather one that watches these tubes already."""
        for channel in reversed(self._free):
            if channel.watched == watched:
                self._free.remove(channel)
                return channel
        return self._free.pop() if self._free else None

    def put_back(self, channel: Channel) -> None:
        """Take back a connection on which no job is reserved."""
        if channel.is_lost:
            return
        if len(self._free) < _FREE_MAX:
            self._free.append(channel)
        else:
            channel.close()

    async def _open(self, until: float | None = None) -> Channel:
        """Return a new connection, however long it takes until there is one. TimedOut: not in time. Unauthorized."""
        try:
            async with asyncio.timeout_at(until) as limit:
                while True:
                    if self._failures:
                        async with self._again:  # one tries for all
                            channel = await self._try(until, limit) if self._failures else None
                    else:
                        channel = await self._try(until, limit)
                    if channel is not None:
                        return channel
        except TimeoutError:
            raise TimedOut(f"no server could be reached at {self._targets[0]}") from None

    async def _try(self, until: float | None, limit: asyncio.Timeout) -> Channel | None:
        limit.reschedule(None)  # once its turn has come, each has one attempt
        if self._failures:
            await self._rest(until)
        try:
            channel = await self.connect()
        except CannotConnect as error:
            if not self._failures:
                self._told.clear()
            self._tell(str(error))
            self._failures += 1
            if until is not None and asyncio.get_running_loop().time() >= until:
                raise TimeoutError from None
            limit.reschedule(until)
            return None
        # Others need not wait now; if this one fails as well, the waits go on growing.
        channel.failed_before, self._failures = self._failures, 0
        return channel

    def _tell(self, reason: str) -> None:
        """Log why there is no connection; each reason once, until there is one."""
        if reason not in self._told and len(self._told) < _REASONS_MAX:
            self._told.add(reason)
            _LOG.warning("%s; connecting again", reason)

    async def _rest(self, until: float | None) -> None:
        """Wait before the next try, but no longer than until then or until all is closed."""
        pause_s = wait_s(self._failures, random.random(), len(self._targets))  # noqa: S311 - no secret
        if until is not None:
            pause_s = min(pause_s, until - asyncio.get_running_loop().time())
        if pause_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._closed.wait()

    async def begin(self) -> Channel:
        """Return the first connection, to whichever server there is. CannotConnect; Unauthorized."""
        for _ in self._targets[1:]:
            with suppress(CannotConnect):
                return await self.connect()
        return await self.connect()

    async def connect(self) -> Channel:
        """Return a new connection. CannotConnect; Unauthorized: the token is not accepted."""
        if self._closed.is_set():
            raise ConnectionLost(_CLOSED)
        try:
            async with asyncio.timeout(None) as attempt:
                self._attempts.add(attempt)
                try:
                    channel = await connect_channel(self._targets[0], self.put_back)
                finally:
                    self._attempts.discard(attempt)
        except TimeoutError:  # all was closed
            raise ConnectionLost(_CLOSED) from None
        except CannotConnect:
            self._targets = (*self._targets[1:], self._targets[0])
            raise
        if self._closed.is_set():  # just as it was made
            channel.abort()
            raise ConnectionLost(_CLOSED)
        self._channels.add(channel)
        channel.ended.add_done_callback(lambda ended: self._lost(channel, from_there=ended.result()))
        return channel

    def cannot_connect(self, error: Exception) -> CannotConnect:
        """Return the error for what has ended the first connection before it could be used."""
        return cannot_connect(self._targets[0], error)

    def _lost(self, channel: Channel, *, from_there: bool) -> None:
        self._channels.discard(channel)
        if from_there:
            failures = max(self._failures, channel.failed_in_row)
            if failures == 1 and not self._failures:
                self._told.clear()
                _LOG.warning("a connection to %s has ended; connecting again", self._targets[0])
            self._failures = failures
        if channel in self._free:
            self._free.remove(channel)
