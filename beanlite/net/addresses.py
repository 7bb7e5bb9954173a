"""Where clients are, and how many connections each of their addresses has."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv6Address
from typing import Final

# One customer of a provider has at least so much of an IPv6 address for itself, and can have any address behind it.
_IPV6_BYTES: Final = 8


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Where a client is: ``host:port``, or ``unix``."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "unix"
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Addresses:
    """Counts the connections of each address, and says when one has enough."""

    def __init__(self, most: int, *, spare_local: bool) -> None:
        self.limit(most, spare_local=spare_local)
        self._connections: dict[bytes, int] = {}
        self._of: dict[object, bytes] = {}

    def limit(self, most: int, *, spare_local: bool) -> None:
        """Set how many connections an address may have; those that are there stay as they were counted.

        ``spare_local``: this machine's own clients may have more, if they come over the loopback interface.
        """
        self._most = most
        self._spare_local = spare_local

    def is_full(self, address: bytes | None) -> bool:
        """Whether it has as many as it may have. None is an address that does not count."""
        return address is not None and self._connections.get(address, 0) >= self._most

    def add(self, client: object, address: bytes | None) -> None:
        """A client of this address is connected."""
        if address is not None:
            self._of[client] = address
            self._connections[address] = self._connections.get(address, 0) + 1

    def drop(self, client: object) -> None:
        """Its socket is closed, if it was not already."""
        address = self._of.pop(client, None)
        if address is not None:
            self._connections[address] -= 1
            if not self._connections[address]:
                del self._connections[address]

    def has(self, client: object, address: bytes) -> bool:
        """Whether this is where the client comes from."""
        return self._of.get(client) == address

    def address_of(self, peer: object) -> bytes | None:
        """What counts as one address: IPv4's, the network part of IPv6's, and nothing for a Unix socket.

        ``peer`` is what the socket calls the client.
        """
        if not isinstance(peer, tuple):  # a Unix socket, or a client that has gone already
            return None
        host = peer[0].partition("%")[0]  # what follows is the interface of a link-local address
        if ":" not in host:
            packed = socket.inet_aton(host)
            return None if self._spare_local and packed[0] == 127 else packed
        address = IPv6Address(host)
        if address.ipv4_mapped is not None:
            packed = address.ipv4_mapped.packed
            return None if self._spare_local and packed[0] == 127 else packed
        return None if self._spare_local and address.is_loopback else address.packed[:_IPV6_BYTES]
