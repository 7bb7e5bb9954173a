"""TLS between a socket's transport and a connection, which sees no difference.

uvloop's own TLS can't half-close, hides what is unread in the socket's buffer, takes 256 KiB for each connection, and
does handshakes wherever they come, however many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import Final, Protocol, cast

from beanlite.net.pace import Pace

# So many bytes are given to OpenSSL in one go, as many as one record has: its buffers never shrink. If they take long,
# as key updates do, the client's next ones are given to it in smaller slices.
SLICE: Final = 1 << 14
SLICE_LEAST: Final = 1 << 10
LONG_S: Final = 0.0005
# So many bytes a client may send until its handshake is over: certificates take time to read, whoever has signed them.
HANDSHAKE_BYTES: Final = 1 << 14
# The first byte of TLS.
_HANDSHAKE: Final = 22


class Reception(Protocol):
    """What looks after connections until their handshakes are over, and whose turn it is, as this module sees it."""

    pace: Pace

    def begin(self, tls: Tls) -> None:
        """Give a new connection some time, in place of an earlier one if too many are pending."""

    def new_session(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Make what encrypts and decrypts for a connection."""

    def go_on(self, tls: Tls) -> None:
        """Call ``shake`` when it is the turn of a connection."""

    def keep(self, tls: Tls, size: int) -> None:
        """Count what a connection has received, and waits for its turn."""

    def admit(self, tls: Tls, *, is_kept: bool) -> asyncio.Protocol | None:
        """Return the protocol of a client whose handshake is over; None if it is refused.

        ``is_kept``: OpenSSL keeps its session for it to resume.
        """

    def refuse(self, tls: Tls, reason: str) -> None:
        """Close a connection before its handshake is over."""

    def refuse_for(self, tls: Tls, error: ssl.SSLError) -> None:
        """Close a connection whose handshake has failed."""

    def end(self, tls: Tls, *, has_session: bool) -> None:
        """Forget a connection that is closed."""


class Tls(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket's transport, and, once the handshake is over, the transport of a connection."""

    __slots__ = (
        "_early",
        "_ended",
        "_eof_received",
        "_handshakes",
        "_incoming",
        "_outgoing",
        "_pace",
        "_paused",
        "_protocol",
        "_raw",
        "_room_bytes",
        "_slice_bytes",
        "_tls",
    )

    def __init__(self, handshakes: Reception) -> None:
        # Without that of the base, whose dict would stay behind when a compiled object goes.
        self._handshakes = handshakes
        self._pace = handshakes.pace
        self._raw = _NO_TRANSPORT
        self._protocol: asyncio.Protocol = NOBODY
        """The connection, once there is one."""
        self._tls: ssl.SSLObject | None = None
        """None until the client has sent something: silence costs little."""
        self._incoming = _NONE
        self._outgoing = _NONE
        self._room_bytes = HANDSHAKE_BYTES
        """What the client may still send of its handshake."""
        self._slice_bytes = SLICE
        """How much is decrypted in one go."""
        self._early = b""
        """What has been received and waits for its turn; while there is something, nothing more is read."""
        self._paused = False
        """The connection wants to read no more."""
        self._eof_received = False
        self._ended = False
        """Nothing more is sent, and what is received is not looked at."""

    # -- called by the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the handshake."""
        self._raw = cast(asyncio.Transport, transport)
        self._handshakes.begin(self)

    def data_received(self, data: bytes) -> None:
        """Decrypt the data and pass it on, or go on with the handshake in its turn."""
        if self._ended:
            if not self._raw.is_closing():
                self._protocol.data_received(data)
            return
        if self._eof_received:  # TLS is over on this side: OpenSSL would keep what comes, and never look at it
            return
        tls = self._tls
        if tls is None:
            if data[0] != _HANDSHAKE:
                self._handshakes.refuse(self, "the client does not speak TLS")
                return
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = self._handshakes.new_session(self._incoming, self._outgoing)
        pace = self._pace
        if pace.left_s <= 0 or self._protocol is NOBODY or self.is_slow:
            self._put_off(data)
        else:
            pace.spend(self._read(data, pace.left_s))

    def eof_received(self) -> bool:
        """Pass on that the client sends no more, unless it has said so already; the socket stays open for replies."""
        if self._protocol is NOBODY:
            return False
        return self._tell_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection is closed."""
        self._handshakes.end(self, has_session=self._tls is not None)
        protocol, self._protocol = self._protocol, NOBODY  # otherwise they would be a cycle
        protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the client does not read."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client reads again."""
        self._protocol.resume_writing()

    # -- the handshake

    def greet(self) -> None:
        """Begin the handshake, as the side that has connected does."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls = self._handshakes.new_session(self._incoming, self._outgoing)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        self._flush()

    def shake(self) -> None:
        """Go on with the handshake, as far as the client has sent its part, or with what has come after it."""
        tls = self._tls
        if tls is None or self._ended or self._raw.is_closing():
            return
        data = self._early
        self._keep(b"")
        if self._protocol is not NOBODY:
            self._read(data, 0.0)
            if not self._early and not self._paused:
                self._raw.resume_reading()
            return
        kept = _sessions_kept(tls)
        try:
            at = self._feed(tls, data)
        except ssl.SSLError as error:
            self._flush()  # the alert
            self._handshakes.refuse_for(self, error)
            return
        self._flush()
        if at < 0 and not self._room_bytes:
            self._handshakes.refuse(self, "it is too long")
            return
        if self._raw.is_closing():  # it was found broken when it was written to
            return
        self._raw.resume_reading()
        if at < 0:
            return
        protocol = self._handshakes.admit(self, is_kept=_sessions_kept(tls) > kept)
        if protocol is not None:
            self._protocol = protocol
            protocol.connection_made(self)
            self._read(data[at:], 0.0)

    def _feed(self, tls: ssl.SSLObject, data: bytes) -> int:
        """Go on with the handshake; return how many bytes it took if it is over, else -1."""
        part = data[: self._room_bytes]
        self._room_bytes -= len(part)
        self._incoming.write(part)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            return len(part)
        return -1

    # -- bytes

    @property
    def is_slow(self) -> bool:
        """Whether what has come last took long to decrypt."""
        return self._slice_bytes < SLICE

    def _put_off(self, data: bytes) -> None:
        """Keep what has been received until its turn comes, and read no more until then."""
        self._raw.pause_reading()
        self._handshakes.go_on(self)
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._early = data
        self._handshakes.keep(self, len(data))

    def _read(self, data: bytes, left_s: float) -> float:
        """Decrypt what has been received, or as much of it as there is time for, and pass it on.

        What is left waits for its turn. Returns how long that took.
        """
        tls = self._tls
        assert tls is not None
        parts: list[bytes] = []
        at, size, ended = 0, len(data), False
        began_s = before_s = time.monotonic()
        try:
            while True:
                slice_bytes = self._slice_bytes
                self._incoming.write(data if size <= slice_bytes and not at else data[at : at + slice_bytes])
                ended = self._decrypt(tls, parts)
                at += slice_bytes
                now_s = time.monotonic()
                if now_s - before_s > LONG_S:
                    self._slice_bytes = max(SLICE_LEAST, slice_bytes // 2)
                elif slice_bytes < SLICE:
                    self._slice_bytes = slice_bytes * 2
                before_s = now_s
                if ended or at >= size or now_s - began_s >= left_s:
                    break
        except ssl.SSLError:  # junk, or somebody has changed it on its way
            self._flush()
            self._raw.abort()
            return time.monotonic() - began_s
        if self._outgoing.pending:
            self._flush()
        if at < size and not ended:
            self._put_off(data[at:])
        if not self._raw.is_closing():
            self._pass_on(parts, ended=ended)
        return before_s - began_s

    def _pass_on(self, parts: list[bytes], *, ended: bool) -> None:
        if parts:
            self._protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if ended and not self._raw.is_closing():
            self._tell_eof()

    def _decrypt(self, tls: ssl.SSLObject, parts: list[bytes]) -> bool:
        """Decrypt all that is complete; return whether the client has said that it sends no more."""
        try:
            while self._incoming.pending or tls.pending():
                part = tls.read(SLICE)
                if not part:
                    return True
                parts.append(part)
        except ssl.SSLWantReadError:  # the rest of a record is on its way
            pass
        return False

    def _tell_eof(self) -> bool:
        if not self._eof_received:
            self._eof_received = True
            self._protocol.eof_received()
        return not self._ended

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            self._raw.write(data)

    # -- called by the connection, as a transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt the data and send it."""
        tls = self._tls
        if tls is None or self._ended or self._raw.is_closing():
            return
        try:
            if len(data) <= SLICE:
                tls.write(data)
                self._raw.write(self._outgoing.read())
                return
            parts = []
            for at in range(0, len(data), SLICE):
                tls.write(data[at : at + SLICE])
                parts.append(self._outgoing.read())
        except ssl.SSLError:  # the connection has failed, and is about to be closed
            self._raw.abort()
            return
        self._raw.write(b"".join(parts))

    def write_eof(self) -> None:
        """Tell the client that nothing more is sent. OSError: it is gone."""
        self._end()
        self._raw.write_eof()

    def close(self) -> None:
        """Close the connection, once everything is sent."""
        self._end()
        self._raw.close()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._keep(b"")
        tls = self._tls
        if tls is not None and not self._raw.is_closing():
            with contextlib.suppress(ssl.SSLError):  # the client has not said the same yet, and may never
                tls.unwrap()
            self._flush()

    def abort(self) -> None:
        """Close the connection at once."""
        self._ended = True
        self._raw.abort()

    def cut_off(self) -> None:
        """Close the connection at once, because too much is kept of what has been received."""
        self.abort()

    def is_closing(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._raw.is_closing()

    def can_write_eof(self) -> bool:
        """Whether one side can be closed alone."""
        return True

    def pause_reading(self) -> None:
        """Read no more."""
        self._paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._paused = False
        if not self._early:
            self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set from how many bytes that the client has not read it is too slow."""
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the client has not read."""
        return self._raw.get_write_buffer_size()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol hear of the connection."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return ``ssl_object``, ``sslcontext`` or ``peercert``, or what the transport of the socket knows."""
        tls = self._tls
        if name == "sslcontext":
            return default if tls is None else tls.context
        if name == "ssl_object":
            return default if tls is None else tls
        if name == "peercert":
            return default if tls is None else tls.getpeercert()
        return self._raw.get_extra_info(name, default)


def _sessions_kept(tls: ssl.SSLObject) -> int:
    """Return how many sessions OpenSSL keeps for clients to resume, for hours and up to thousands.

    Nothing turns that off from Python, but it lets clients that take tickets keep their sessions themselves. (The
    attribute ``session`` of each connection would tell as well, but Python 3.11 never frees what it returns.)
    """
    return tls.context.session_stats()["number"]


_NONE: Final = ssl.MemoryBIO()
_NO_TRANSPORT: Final = asyncio.Transport()
# Stands in for a connection before and after it.
NOBODY: Final = asyncio.Protocol()
