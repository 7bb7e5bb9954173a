"""The two connections of a forwarded client: its own, and the one made for it to the active server."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

# No command line is longer.
LINE_BYTES: Final = 256
# How long a client has to close its side once the active server has closed its own.
FAREWELL_S: Final = 2.0
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class End(asyncio.BufferedProtocol):
    """One of the two connections of a client: what is received on it is sent on the other one."""

    __slots__ = ("_chunk", "_is_cut", "_over", "early", "ended", "is_lost", "other", "transport")

    def __init__(self, chunk: memoryview, over: Callable[[], None]) -> None:
        """``chunk`` is the read buffer; ``over`` is called when this connection and the other one are both closed."""
        self._chunk = chunk
        self._over = over
        self._is_cut = False
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self.ended = False
        """Nothing more is taken from it."""
        self.is_lost = False
        """The connection is closed."""
        self.early = b""
        """What was received before the other connection was made."""

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, or abort it if ``cut_off`` was called before the connection was made."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)
        if self._is_cut:
            self.transport.abort()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the read buffer: all connections share one, as it is emptied at once."""
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        """Forward received bytes to the other connection, or keep them until it is made."""
        other = self._open_other()
        if self.ended:
            return
        if other is not None:
            other.write(self._chunk[:nbytes].tobytes())
        elif self.other is not None and self.other.transport is None and not self.other.is_lost:
            self.early += self._chunk[:nbytes].tobytes()

    def eof_received(self) -> bool:
        """Take nothing more from the peer, which has half-closed; return whether bytes may still be sent to it."""
        self.end()
        return self.other is not None and not self.other.ended

    def connection_lost(self, _exc: Exception | None) -> None:
        """Abort the other connection as well; if both are closed, call ``over``."""
        self.transport = None
        self.is_lost = True
        other = self._open_other()
        if other is not None:
            other.abort()
        elif self.other is not None and self.other.is_lost:
            self._over()

    def pause_writing(self) -> None:
        """Stop reading from the other connection, as the peer is not reading."""
        other = self._open_other()
        if other is not None:
            other.pause_reading()

    def resume_writing(self) -> None:
        """Read from the other connection again, as the peer has read everything."""
        other = self._open_other()
        if other is not None and self.other is not None and not self.other.ended:
            other.resume_reading()

    # -- closing

    def end(self) -> None:
        """Take nothing more from this connection, and half-close the other one; if that has ended, too, close it."""
        self.ended = True
        other = self._open_other()
        if other is None or self.other is None:
            return
        if self.other.ended:
            other.close()
            return
        try:
            other.write_eof()
        except OSError:  # it was closed on both sides already
            other.abort()

    def hear_no_more(self) -> None:
        """Stop reading, as if the peer had half-closed."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self.end()

    def cut_off(self) -> None:
        """Close the connection at once, or as soon as it is made."""
        self._is_cut = True
        if self.transport is not None:
            self.transport.abort()

    def _open_other(self) -> asyncio.Transport | None:
        other = None if self.other is None else self.other.transport
        return None if other is None or other.is_closing() else other


class ServerEnd(End):
    """The connection to the active server. When the server closes its side, it is done with the client."""

    __slots__ = ("names", "sock")

    def __init__(self, chunk: memoryview, over: Callable[[], None], sock: socket.socket) -> None:
        """``sock`` is connected already."""
        super().__init__(chunk, over)
        self.sock = sock
        self.names: tuple[object, object] = sock.getsockname(), sock.getpeername()
        """The local and the remote address of the socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what has been received meanwhile on the client's connection, which was made first."""
        super().connection_made(transport)
        client, own = self.other, self.transport
        if client is None or own is None or own.is_closing():
            return
        if client.is_lost:
            own.abort()
            return
        own.write(client.early)
        client.early = b""
        if client.ended:
            client.end()

    def eof_received(self) -> bool:
        """Close the client's connection FAREWELL_S later, unless the client closes it sooner."""
        client = self._open_other()
        if client is not None:
            asyncio.get_running_loop().call_later(FAREWELL_S, client.close)
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's connection, but only after the replies received so far are sent."""
        client = self._open_other()
        if client is not None:
            client.close()
        super().connection_lost(exc)


class Guest:
    """A forwarded client: its socket, and its connection to the active server.

    Nothing is consumed from its socket until an active server is connected and takes what the client has sent. Until
    then the client can be forwarded to another server, or be served by this one.
    """

    __slots__ = ("_threshold", "client", "peer", "server", "sock", "task")

    def __init__(self, sock: socket.socket, peer: object, client: End) -> None:
        self._threshold = 1
        self.sock = sock
        self.peer = peer
        self.client = client
        self.server: ServerEnd | None = None
        self.task: asyncio.Task[None] | None = None
        """Connects the client to the active server."""

    def has_asked(self) -> bool:
        """Whether the client has sent a line; if not, wait for more of it to be readable. OSError: it is gone."""
        try:
            data = self.sock.recv(LINE_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        # The loop reports an error only once, even if there is still something to read.
        if not data or self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise ConnectionAbortedError("it has closed its side")
        # With fewer bytes than were waited for, no more will come, or the socket does not support SO_RCVLOWAT.
        if b"\n" in data or not self._threshold <= len(data) < LINE_BYTES:
            self.await_bytes(1)  # what follows the line may be shorter than the line
            return True
        self.await_bytes(len(data) + 1)
        return False

    def pass_on(self, server: ServerEnd, most: int) -> bool:
        """Send the active server up to ``most`` bytes of what the client has sent.

        False: the server takes nothing, and all of it is still in the client's socket.
        """
        try:
            data = self.sock.recv(most, socket.MSG_PEEK)
        except OSError:  # the client is gone, which is noticed soon
            return True
        try:
            count = server.sock.send(data)
        except OSError:
            return False
        self.sock.recv(count)
        return True

    async def tie(self, server: ServerEnd) -> None:
        """Join the client's connection with this one to the active server."""
        self.server = server
        self.client.other, server.other = server, self.client
        await _join(self.client, self.sock)  # first, as this end can keep what is received before the other is ready
        await _join(server, server.sock)

    def cut_off(self) -> None:
        """Close both connections at once."""
        self.client.cut_off()
        if self.server is not None:
            self.server.cut_off()

    def await_bytes(self, nbytes: int) -> None:
        """Make the socket readable only when there are ``nbytes`` bytes; 1 is the default of every socket."""
        if nbytes != self._threshold:
            self._threshold = nbytes
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


async def _join(end: End, sock: socket.socket) -> None:
    """Attach a connected socket and its protocol to the loop; if that fails, it counts as closed."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: end, sock)
    except OSError:  # the peer is gone
        sock.close()
        end.connection_lost(None)


async def connect(host: str, port: int, chunk: memoryview, over: Callable[[], None]) -> ServerEnd:
    """Connect to the active server; the connection is not closed yet on its side. OSError: that fails."""
    loop = asyncio.get_running_loop()
    problem = "the name has no address"
    try:
        places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # the other server's setting, which may be any text
        raise OSError("no machine can have this name") from error
    for family, kind, protocol, _, address in places:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)  # noqa: FBT003 - as it is declared
            for option in _KEEPALIVE:
                sock.setsockopt(*option)
            await loop.sock_connect(sock, address)
            _look_at(sock)
            return ServerEnd(chunk, over, sock)
        except OSError as error:
            sock.close()
            problem = str(error)  # keeping the error itself would make a reference cycle with this frame
        except BaseException:
            sock.close()
            raise
    raise OSError(problem)


def _look_at(sock: socket.socket) -> None:
    """Check a new connection. OSError: the other side has closed it."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return
    raise ConnectionAbortedError("it closes its connections")
