"""A connection on asyncio: the socket for a `Dialogue`, whose tokens are futures."""

import asyncio
import os
import socket
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from beanlite.client import calls
from beanlite.client.calls import Call
from beanlite.client.dialogue import DEFAULT, Answer, Dialogue, JobCount
from beanlite.client.errors import (
    UNFIT,
    BadFormat,
    ClientError,
    Declined,
    NotSent,
    UnknownCommand,
    cannot_connect,
)
from beanlite.client.target import CONNECT_S, KEEPALIVE, Target, failed_in_row, no_such_host

T = TypeVar("T")

_ENDED: Final = "the connection has ended"
# A command that is larger leaves at once, so that the transport says when it takes no more.
_LARGE: Final = 1 << 12
_RECEIVE_BYTES: Final = 1 << 15


_CHANNELS: "Final[weakref.WeakSet[Channel]]" = weakref.WeakSet()
"""Those that are connected."""


class Channel(asyncio.BufferedProtocol):
    """A connection to a server."""

    def __init__(self, when_free: "Callable[[Channel], None]") -> None:
        """``when_free`` is called when the last of its reserved jobs is finished."""
        self._loop = asyncio.get_running_loop()
        self._when_free = when_free
        self._dialogue = Dialogue()
        self._transport: asyncio.Transport
        self._socket: socket.socket
        self._made_at: float
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._flushes = False
        self._room: asyncio.Future[None] | None = None
        self.ended: asyncio.Future[bool] = self._loop.create_future()
        """Its end: whether that came from the other side."""
        self.is_lost = False
        self.failed_before = 0
        """How many in a row could not be made, or ended, before it."""
        self.watched = frozenset({DEFAULT})
        """The tubes that the server has confirmed as watched."""
        self.held = 0
        """How many jobs are reserved on it."""
        self.has_forgotten = False
        """Whether one of them will not be finished by anybody."""
        self.knows_notes: bool | None = None
        self.knows_batches = True
        """Whether the server may know them."""

    def ask(self, call: Call[T], tube: str | None = None) -> "asyncio.Future[T]":
        """Send a command, and return what will be its result. NotSent: the connection has ended."""
        if self.is_lost:
            raise NotSent(_ENDED)
        future: asyncio.Future[T] = self._loop.create_future()
        dialogue = self._dialogue
        is_idle = not dialogue.sent
        if is_idle and (tube is None or tube == dialogue.used):
            data, shape = call
            dialogue.sent.append((shape, future))
            self._transport.write(data)
            return future
        dialogue.send(call, future, tube)
        if is_idle or len(call[0]) > _LARGE:
            self._transport.write(dialogue.take())
        elif not self._flushes:
            self._flush_soon()
        return future

    def ask_all(self, several: Sequence[Call[T]], tube: str | None = None) -> "asyncio.Future[list[T | ClientError]]":
        """Send several commands at once, and return what will be their results and errors. NotSent."""
        if self.is_lost:
            raise NotSent(_ENDED)
        future: asyncio.Future[list[T | ClientError]] = self._loop.create_future()
        token = _Replies(future, len(several))
        for call in several:
            self._dialogue.send(call, token, tube)
        if not several:
            future.set_result([])
        elif not self._flushes:
            self._flush_soon()
        return future

    async def reserve_several(self, count: int) -> list[tuple[int, bytes] | ClientError]:
        """Reserve so many jobs if they are ready, otherwise one; beanlite has a word for that."""
        if self.knows_batches:
            results = await self.ask_all([calls.reserve_batch(count)])
            if not isinstance(results[0], BadFormat | UnknownCommand):
                return results
            self.knows_batches = False
        return await self.ask_all([calls.RESERVE, *[calls.reserve(0)] * (count - 1)])

    def _flush_soon(self) -> None:
        """Have what several tasks send now leave together."""
        self._flushes = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        data = self._dialogue.take()
        if data and not self.is_lost:
            self._transport.write(data)

    @property
    def is_full(self) -> bool:
        """Whether more is to be sent than the server takes now."""
        return self._room is not None

    async def room(self) -> None:
        """Wait until the server takes more."""
        if self._room is not None:
            await asyncio.shield(self._room)

    async def watch(self, tubes: frozenset[str]) -> None:
        """Watch these tubes and no others. Declined: the server does not allow it."""
        if tubes == self.watched:
            return
        several = [calls.watch(tube) for tube in sorted(tubes - self.watched)]
        several += [calls.ignore(tube) for tube in sorted(self.watched - tubes)]
        for result in await self.ask_all(several):
            if isinstance(result, ClientError):
                raise result
        self.watched = tubes

    async def note(self, job_id: int, text: str) -> None:
        """Leave a note on a job, if the server knows notes."""
        if self.knows_notes is None:
            try:
                await self.ask(calls.note(0, ""))
            except UnknownCommand:
                self.knows_notes = False
            except Declined:
                self.knows_notes = True
        if self.knows_notes:
            with suppress(Declined):  # what becomes of the job is more important
                await self.ask(calls.note(job_id, text))

    def raise_if_last(self, until: float | None) -> None:
        """Return if another connection may do better than this one, which has ended; as that of `Dialogue`."""
        self._dialogue.raise_if_last(self._made_at, until)

    @property
    def failed_in_row(self) -> int:
        """How many connections in a row have failed, now that this one has ended."""
        since_s = self._loop.time() - self._made_at
        return failed_in_row(self.failed_before, since_s, has_answered=self._dialogue.has_answered)

    def greeted(self) -> None:
        """Take note that the greeting is over."""
        self._dialogue.has_answered = False

    @property
    def number(self) -> int:
        """The number of its socket; -1: it is closed."""
        return self._socket.fileno()

    def let_go(self) -> None:
        """Count one job less that is reserved on it."""
        self.held -= 1
        if self.held == 0 and not self.is_lost:
            if self.has_forgotten:
                self.abort()
            else:
                self._when_free(self)

    def forget(self) -> None:
        """Count one job less, which nobody will finish: the server gets it back when the others are finished."""
        self.has_forgotten = True
        self.let_go()

    def forget_soon(self) -> None:
        """Do that from whatever thread it is."""
        if not self.is_lost and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.forget)

    def close(self) -> None:
        """Send what is still to be sent, and close."""
        self.is_lost = True
        self._transport.close()

    def abort(self) -> None:
        """Close at once: the server gives what is reserved to others."""
        self.is_lost = True
        self._transport.abort()

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")  # now: a transport of TLS that is ending has none
        self._made_at = self._loop.time()
        _CHANNELS.add(self)

    def get_buffer(self, _: int) -> memoryview:
        """Return where to put what is received: a new place for each reply, as for other protocols, costs more."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand out the results of what has been received."""
        dialogue = self._dialogue
        _hand_out(dialogue.receive(bytes(self._buffer[:nbytes])))
        if dialogue.unexpected is not None:
            self.abort()
        elif dialogue.out and not self._flushes:
            self._transport.write(dialogue.take())

    def connection_lost(self, error: Exception | None) -> None:
        """Hand out errors."""
        was_ours = self.is_lost
        self.is_lost = True
        _CHANNELS.discard(self)
        self.ended.set_result(not was_ours)  # first, so that whoever goes on with another one waits before
        _hand_out(self._dialogue.lose(), error)
        self.resume_writing()

    def pause_writing(self) -> None:
        """Have commands wait."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """Let commands go on."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None


class _Replies:
    """The token of several commands, with one future for all."""

    def __init__(self, future: "asyncio.Future[list[Any]]", count: int) -> None:
        self._future = future
        self._count = count
        self._results: list[Any] = []

    def done(self) -> bool:
        return self._future.done()

    def set_result(self, result: object) -> None:
        if isinstance(result, JobCount):
            self._count += result - 1
            return
        self._results.append(result)
        if len(self._results) == self._count:
            self._future.set_result(self._results)

    set_exception = set_result


def _let_go_in_fork() -> None:
    """Leave the connections to the process that has made them: with it they end."""
    if _CHANNELS:
        null = os.open(os.devnull, os.O_RDWR)
        for channel in _CHANNELS:
            if channel.number >= 0:
                os.dup2(null, channel.number, inheritable=False)  # not closed: their objects will do that
        os.close(null)


os.register_at_fork(after_in_child=_let_go_in_fork)


def _hand_out(answers: list[Answer], cause: Exception | None = None) -> None:
    for token, result in answers:
        if token.done():  # cancelled
            continue
        if isinstance(result, ClientError):
            result.__cause__ = cause
            token.set_exception(result)
        else:
            token.set_result(result)


async def connect_channel(target: Target, when_free: Callable[[Channel], None]) -> Channel:
    """Connect, and show the token and the name. CannotConnect; Unauthorized: the token is not accepted."""
    channel = Channel(when_free)
    try:
        async with asyncio.timeout(CONNECT_S):
            try:
                await _connect(target, channel)
                if target.token is not None:
                    await _if_known(channel.ask(calls.auth(target.token)))
                if target.name is not None:
                    await _if_known(channel.ask(calls.call_itself(target.name)))
                await channel.ask(calls.list_tube_used())
                channel.greeted()
            except BaseException:
                if hasattr(channel, "_transport"):
                    channel.abort()
                raise
    except TimeoutError as error:
        raise cannot_connect(target, TimeoutError(f"no answer within {CONNECT_S:.0f} s")) from error
    except (OSError, *UNFIT) as error:
        raise cannot_connect(target, error) from error
    return channel


async def _connect(target: Target, channel: Channel) -> None:
    loop = asyncio.get_running_loop()
    if target.path is not None:
        await loop.create_unix_connection(lambda: channel, target.path)
        return
    try:
        transport, _ = await loop.create_connection(lambda: channel, target.host, target.port, ssl=target.context())
    except UnicodeError:
        raise no_such_host() from None
    sock: socket.socket = transport.get_extra_info("socket")
    for level, option, value in KEEPALIVE:
        sock.setsockopt(level, option, value)


async def _if_known(answer: "asyncio.Future[None]") -> None:
    try:
        await answer
    except UnknownCommand:
        return
