"""Decides which clients may give operators' commands."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from beanlite.settings.values import operator_networks


class Operators:
    """The addresses of operators, as in the setting."""

    def __init__(self, setting: str) -> None:
        self._local, self._networks = operator_networks(setting)
        self._has = lru_cache(maxsize=1024)(self._look_up)

    def include(self, peer: object) -> bool:
        """Whether a client is an operator; ``peer`` is its address as the socket reports it, None if it can't.

        It can't if the client is gone already. What such a client has sent may still arrive, so it is no operator.
        """
        if isinstance(peer, tuple):
            return self._has(peer[0])
        return self._local and peer is not None

    def _look_up(self, host: str) -> bool:
        address = ip_address(host.partition("%")[0])  # a link-local address is followed by its interface
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)
