"""Makes connections to servers, over TCP, TLS or a Unix socket, and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

from beanlite.beanstalk.client import Server
from beanlite.beanstalk.over_tls import OverTls, in_plain_words
from beanlite.net.pace import Pace
from beanlite.net.tls import Tls
from beanlite.router.relay import Introduction

# What tells of a server that is gone without a word.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
# Likewise while something is on the way to it: the kernel sends that 15 times, with 2 s between the last ones. A server
# that takes nothing, but whose machine answers, is not gone. Linux 6.15 has TCP_RTO_MAX_MS; Python has no name for it.
_RTO_MAX: Final = (socket.IPPROTO_TCP, 44, 2000)
# What older kernels have also ends the connection to a server that takes nothing for so long.
_USER_TIMEOUT: Final = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
# How often it is looked whether all is sent before the end of what is sent.
_UNSENT_AGAIN_S: Final = 0.05

Contexts = Callable[[OverTls], ssl.SSLContext]


async def dial(address: Server, end: asyncio.Protocol, context_of: Contexts, introduction: bytes = b"") -> None:
    """Connect to a server, whose connection is then looked after by ``end``. OSError: that fails.

    ``introduction``: what the server has to take before that.
    """
    first = Introduction(introduction, end)
    try:
        await _connect(address, first, context_of)
        await first.over
    except BaseException:
        first.abort()
        raise
    # Only now: ``end`` must never have a connection that is given up for a timeout at the same moment.
    first.hand_over()


async def _connect(address: Server, end: asyncio.Protocol, context_of: Contexts) -> None:
    loop = asyncio.get_running_loop()
    if isinstance(address, OverTls):
        handshake = _Handshake(loop, context_of(address), address.host, end)
        transport = await _over_tcp(lambda: Tls(handshake), address.host, address.port)
        try:
            await handshake.over
        except BaseException:
            transport.abort()
            raise
    elif len(address) == 1:
        await loop.create_unix_connection(lambda: end, address[0])
        return
    else:
        transport = await _over_tcp(lambda: end, address[0], address[1])
    sock = transport.get_extra_info("socket")
    if sock is None:  # uvloop has none once the connection is closed
        raise ConnectionAbortedError("the connection was closed at once")
    for option in _KEEPALIVE:
        sock.setsockopt(*option)
    try:
        sock.setsockopt(*_RTO_MAX)
    except OSError:
        sock.setsockopt(*_USER_TIMEOUT)


async def _over_tcp(new: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(new, host, port)
    except ValueError as error:  # Python does not ask the resolver for such a name
        raise OSError("no machine can have this name") from error
    return transport


def half_close(transport: asyncio.Transport) -> None:
    """Tell the server at once that nothing more comes: the loop itself does so after others have had their turn.

    A client that asks after another one has gone expects that the jobs which that one had reserved are ready.
    """
    if transport.get_extra_info("ssl_object") is None:
        with contextlib.suppress(OSError):
            _shut_down(transport)


def send_no_more(transport: asyncio.Transport | None) -> None:
    """Tell the server that nothing more comes, once all is sent; what it says is heard all the same.

    If that fails, the connection is closed: else the server would never end the reserve that waits there.
    """
    if transport is None or transport.is_closing():
        return
    try:
        if transport.get_extra_info("ssl_object") is None:
            transport.write_eof()
        elif transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(_UNSENT_AGAIN_S, send_no_more, transport)
        else:  # without TLS: nothing is decrypted any more once that has been ended
            _shut_down(transport)
    except OSError:
        transport.abort()


def _shut_down(transport: asyncio.Transport) -> None:
    """End what is sent on a transport's socket, without a descriptor more. OSError: it is not connected any more."""
    sock = socket.socket(fileno=transport.get_extra_info("socket").fileno())
    try:
        sock.shutdown(socket.SHUT_WR)
    finally:
        sock.detach()


class _Handshake:
    """What looks after the handshake of one connection, as ``Tls`` sees it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext, host: str, end: asyncio.Protocol
    ) -> None:
        self._loop = loop
        self.pace = Pace()
        self._context = context
        self._host = host
        self._end = end
        self.over: asyncio.Future[None] = loop.create_future()

    def begin(self, tls: Tls) -> None:
        tls.greet()

    def new_session(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        return self._context.wrap_bio(incoming, outgoing, server_hostname=self._host)

    def go_on(self, tls: Tls) -> None:
        self._loop.call_soon(tls.shake)

    def keep(self, tls: Tls, size: int) -> None:
        pass

    def admit(self, _tls: Tls, *, is_kept: bool) -> asyncio.Protocol:
        self._fail(None)
        return self._end

    def refuse(self, tls: Tls, reason: str) -> None:
        self._fail(ConnectionAbortedError(reason))
        tls.abort()

    def refuse_for(self, tls: Tls, error: ssl.SSLError) -> None:
        self._fail(ConnectionAbortedError(in_plain_words(error)))
        tls.abort()

    def end(self, _tls: Tls, *, has_session: bool) -> None:
        self._fail(ConnectionResetError("the connection was closed amid the handshake"))

    def _fail(self, error: OSError | None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
