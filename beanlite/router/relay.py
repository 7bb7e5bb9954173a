"""A connection to a server before a client has it; tells the server for whom it asks."""

from __future__ import annotations

import asyncio
import json
from typing import Final, cast

from beanlite.net.addresses import peer_name
from beanlite.net.identities import CERT, identity_of

# A server takes no more names of a client.
_NAMES_MAX: Final = 1000
_TAKEN: Final = b"OK 2\r\n{}\r\n"
_LINE_MAX: Final = 1024
WORD: Final = "relay-for"
_CLOSES: Final = "it closes its connections"
_CLOSES_TLS: Final = f"{_CLOSES}, perhaps for want of a certificate that it accepts (--tls-cert); its log says why"


def introduction_of(transport: asyncio.BaseTransport) -> bytes:
    """Return what servers are told of a client: its address, its certificate, and whether it can be overheard."""
    identity = identity_of(transport)
    shown = CERT + identity.shown
    # Users and groups mean nothing on another machine. The name that is shown comes first.
    names = sorted((name for name in identity.names if name.startswith(CERT)), key=lambda name: (name != shown, name))
    return introduction(peer_name(transport), names[:_NAMES_MAX], is_private=identity.is_private)


def introduction(address: str, names: list[str], *, is_private: bool) -> bytes:
    """Return the command for a client with this address and these names."""
    body = json.dumps({"address": address, "names": names, "private": is_private}).encode()
    return b"%b %d\r\n%b\r\n" % (WORD.encode(), len(body), body)


def why_closed(transport: asyncio.BaseTransport) -> str:
    """Return what is known if the server closes a connection before it has said anything.

    A server that does not accept our certificate, or asks for one, says so once the handshake is over.
    """
    return _CLOSES if transport.get_extra_info("ssl_object") is None else _CLOSES_TLS


class Introduction(asyncio.Protocol):
    """A connection on which nothing but the introduction, if there is one, is sent until the server has taken it.

    Otherwise what the client sends would be carried out with the rights of the router if the server refuses it.
    """

    def __init__(self, command: bytes, end: asyncio.Protocol) -> None:
        """``end`` looks after the connection once it is handed over."""
        self._command = command
        self._end = end
        self._transport: asyncio.Transport | None = None
        self._closes = _CLOSES
        self._data = b""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the introduction."""
        self._transport = cast(asyncio.Transport, transport)
        self._closes = why_closed(transport)
        if self._command:
            self._transport.write(self._command)
        else:
            self.over.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take note that the server has taken the introduction, or refuses it."""
        self._data += data
        if self.over.done():
            return
        if self._data.startswith(_TAKEN):
            self.over.set_result(None)
        elif not _TAKEN.startswith(self._data) and (b"\r\n" in self._data or len(self._data) > _LINE_MAX):
            reply = self._data[:_LINE_MAX].partition(b"\r\n")[0].decode("ascii", "replace")
            self._fail(
                f"{WORD} is answered {reply}; in the server's rules give the router the role operator on all tubes "
                "(without rules, name it in the setting operators), or start the router without --relay"
            )

    def eof_received(self) -> None:
        """Close: by itself a connection with TLS would stay open."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        """Take note that the server has closed the connection."""
        self._transport = None
        self._fail(self._closes)

    def hand_over(self) -> None:
        """Have ``end`` look after the connection. OSError: it is lost already."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionAbortedError(self._closes)
        self._transport.set_protocol(self._end)
        self._end.connection_made(self._transport)
        rest = self._data[len(_TAKEN) :] if self._command else self._data
        if rest:
            self._end.data_received(rest)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self.over.cancel()

    def _fail(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_exception(ConnectionAbortedError(reason))
            self.over.exception()  # nobody may wait for it
