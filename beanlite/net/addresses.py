"""Addresses of clients, and how many connections each address has."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv6Address
from typing import Final

from beanlite.host.places import as_place

# A provider's customer has at least the addresses with this prefix for itself, and can use any of them.
_IPV6_BYTES: Final = 8
# How the system writes the address of an IPv4 client that has come to a socket for IPv6.
_MAPPED: Final = "::ffff:"


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return a client's address: ``host:port``, or ``unix``."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "unix"
    return as_place(peer[0].removeprefix(_MAPPED), peer[1])


class Addresses:
    """Counts the connections of each address, and limits them."""

    def __init__(self, most: int, *, spare_local: bool) -> None:
        self.limit(most, spare_local=spare_local)
        self._connections: dict[bytes, int] = {}
        self._of: dict[object, bytes] = {}

    def limit(self, most: int, *, spare_local: bool) -> None:
        """Set how many connections an address may have. Existing connections stay, and count or not as before.

        ``spare_local``: clients that connect over the loopback interface are not limited.
        """
        self._most = most
        self._spare_local = spare_local

    def is_full(self, address: bytes | None) -> bool:
        """Whether the address has as many connections as it may have. None is an address that is not limited."""
        return address is not None and self._connections.get(address, 0) >= self._most

    def add(self, client: object, address: bytes | None) -> None:
        """Count a new client of this address."""
        if address is not None:
            self._of[client] = address
            self._connections[address] = self._connections.get(address, 0) + 1

    def drop(self, client: object) -> None:
        """Stop counting a client, whose socket is closed. Does nothing if it is not counted."""
        address = self._of.pop(client, None)
        if address is not None:
            self._connections[address] -= 1
            if not self._connections[address]:
                del self._connections[address]

    def fullest(self) -> tuple[bytes | None, int]:
        """Return the address that has the most connections, and how many; None if there are none."""
        address = max(self._connections, key=self._connections.__getitem__, default=None)
        return address, 0 if address is None else self._connections[address]

    def __len__(self) -> int:
        """Return how many clients are counted."""
        return len(self._of)

    def has(self, client: object, address: bytes | None) -> bool:
        """Whether the client is counted under this address; None: whether it is not counted."""
        return self._of.get(client) == address

    def address_of(self, peer: object) -> bytes | None:
        """Return what counts as one address: the IPv4 address, or the network part of the IPv6 address.

        None if the client is not limited, as on a Unix socket. ``peer`` is its address as the socket reports it.
        """
        if not isinstance(peer, tuple):  # a Unix socket
            return None
        host = peer[0].partition("%")[0]  # a link-local address is followed by its interface
        if ":" not in host:
            packed = socket.inet_aton(host)
            return None if self._spare_local and packed[0] == 127 else packed
        address = IPv6Address(host)
        if address.ipv4_mapped is not None:
            packed = address.ipv4_mapped.packed
            return None if self._spare_local and packed[0] == 127 else packed
        return None if self._spare_local and address.is_loopback else address.packed[:_IPV6_BYTES]
