"""The rules of who may do what, and the rights that follow from those that match a client."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple

from beanlite.core.access import Rights


class Rule(NamedTuple):
    """A rule of the file."""

    number: int
    """Its place in the file, counted from 1."""
    who: tuple[str, ...]
    """The identities as they are written there."""
    names: frozenset[str]
    """Those that are compared as text, with users and groups as numbers."""
    networks: tuple[IPv4Network | IPv6Network, ...]
    roles: tuple[str, ...]
    tubes: tuple[bytes, ...]


class Access:
    """All rules, and the tokens by which clients can prove an identity."""

    def __init__(self, rules: Iterable[Rule], digests: dict[str, str], spelt: dict[str, str]) -> None:
        """``digests``: the SHA-256 of each token in hexadecimal digits, by its name.

        ``spelt``: the names of users that are written as names, by those that are compared: ``uid:33``.
        """
        self.rules = tuple(rules)
        self.spelt = spelt
        self.digests = digests
        self.names = {digest: name for name, digest in digests.items()}
        """The names of tokens by their digests."""
        self._rights: dict[tuple[Rule, ...], Rights] = {}

    def matching(self, names: frozenset[str], host: str | None) -> tuple[Rule, ...]:
        """Return the rules that hold for a client with these identities, at this address if it has one."""
        address = None if host is None else address_of(host)
        return tuple(
            [
                rule
                for rule in self.rules
                if not names.isdisjoint(rule.names)
                or (address is not None and any(address in network for network in rule.networks))
            ]
        )

    def rights_of(self, rules: tuple[Rule, ...]) -> Rights:
        """Return what these rules permit together; the same object for the same rules."""
        rights = self._rights.get(rules)
        if rights is None:
            rights = Rights([(role, pattern) for rule in rules for role in rule.roles for pattern in rule.tubes])
            self._rights[rules] = rights
        return rights


def deciding(rules: tuple[Rule, ...], role: str, pattern: bytes) -> Rule | None:
    """Return the first rule that gives a role on all tubes that a pattern matches; None if there is none."""
    for rule in rules:
        if Rights((each, tube) for each in rule.roles for tube in rule.tubes).may(role, pattern):
            return rule
    return None


def address_of(host: str) -> IPv4Address | IPv6Address:
    """Return an address as rules have it: that of an IPv4 client, even if it has come to a socket for IPv6."""
    bare = host.partition("%")[0]  # a link-local address is followed by its interface
    if ":" not in bare:
        return IPv4Address(bare)
    address = IPv6Address(bare)
    return address if address.ipv4_mapped is None else address.ipv4_mapped
