"""Gives each client its rights: when it connects, gives a token, acts for a person, or when rules have changed.

A client may come through a router, which says who it is.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Final, NamedTuple

from beanlite.core.access import Rights
from beanlite.core.tube import Client, Peer
from beanlite.host.places import host_and_port
from beanlite.net.allowed import Access
from beanlite.net.connection import Connection
from beanlite.net.identities import CERT, PAGE, PERSON, UID, Identity, identity_of
from beanlite.net.operators import Operators
from beanlite.net.pending import Pending
from beanlite.protocol.limited import limited_words
from beanlite.protocol.session import Words


class Relayed(NamedTuple):
    """A client that comes through a router."""

    identity: Identity
    """Who it is, as the router says, without its token."""
    router_token: tuple[str, str]
    """The name and the digest of the token that the router has given, or two empty texts."""


class ClientGate:
    """The rules, and the clients to which they apply. Without rules, clients may do what ``Operators`` says."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        operators: Operators,
        access: Access | None,
        refused: Callable[[str, str], None],
        most: int,
    ) -> None:
        """``refused`` is called with a client and the word that it is refused. ``most`` may be without rights."""
        self._operators = operators
        self._access = access
        self._refused = refused
        self._words: dict[Rights, Words] = {}
        """The words of clients with these rights."""
        self._tokens: dict[Client, tuple[str, str]] = {}
        """The tokens that clients have given: the name of each, and its digest."""
        self._relayed: dict[Client, Relayed] = {}
        self._pending = Pending(loop, self._dismiss, self._cut_off, most)
        self.page_digest = ""
        """The digest of the token that the server has made for its page."""

    def admit(self, connection: Connection, transport: asyncio.BaseTransport) -> None:
        """Give a new client its rights; if it has none, one of those may be closed that have none, either."""
        session, access = connection.session, self._access
        if access is None:
            session.operator = self._operators.include(transport.get_extra_info("peername"))
            return
        identity = identity_of(transport)
        self._admit_by_rules(connection, access, identity)
        _show(connection, self._shown(access, identity))

    def _admit_by_rules(self, connection: Connection, access: Access, identity: Identity) -> None:
        rights = self._rights_of(access, identity)
        if not rights.grants:
            self._pending.add(connection, identity)
        connection.session.authenticate = partial(self._authenticate, connection, identity)
        self._give(connection, rights)

    def forget(self, connection: Connection) -> None:
        """Forget a client that is gone."""
        connection.session.authenticate = None
        self._pending.drop(connection)
        self._tokens.pop(connection.session.client, None)
        self._relayed.pop(connection.session.client, None)

    def relay_for(self, connection: Connection, address: str, names: list[str], *, is_private: bool) -> bool:
        """Have the connection of a router, which may do everything, be that of its client from now on.

        ``address`` is ``host:port`` or ``unix``. ``is_private``: nobody can read what the client sends to the router.
        Returns False if the connection is such a client's already.
        """
        session, access = connection.session, self._access
        client = session.client
        if client in self._relayed:
            return False
        router = identity_of(connection.transport)
        host = None if address == "unix" else host_and_port(address)[0]
        shown = names[0].removeprefix(CERT) if names else ""
        identity = Identity(frozenset(names), shown, host, is_private=is_private and router.is_private)
        self._relayed[client] = Relayed(identity, self._tokens.pop(client, ("", "")))
        client.peer = Peer(address, client.peer.number)
        if access is None:
            session.operator = self._includes(connection)
        else:
            self._admit_by_rules(connection, access, identity)
        _show(connection, shown)
        return True

    def _includes(self, connection: Connection) -> bool:
        """Whether a client is an operator where there are no rules; one that comes through a router has an address."""
        relayed = self._relayed.get(connection.session.client)
        includes = self._operators.include(connection.transport.get_extra_info("peername"))
        if relayed is None or not includes:
            return includes
        host = relayed.identity.host
        return self._operators.include(None if host is None else (host,))

    def act_for(self, connection: Connection, person: str) -> None:
        """Give a client that may do everything the rights of a person, and no others."""
        if self._access is not None:
            self._give(connection, _rights_of_name(self._access, PERSON + person))
        _show(connection, person.replace(" ", "_"))  # a blank ends the address, and the history has words behind it

    def change(self, operators: Operators, access: Access | None, most: int) -> None:
        """Take changed rules, and how many may be without rights; ``look_again`` is then called for each client."""
        self._pending.limit(most)
        self._operators = operators
        if access is not self._access:
            self._access = access
            self._words = {}

    def look_again(self, connection: Connection) -> None:
        """Give a client the rights that it has by the changed rules, or end its connection if it has lost some."""
        session, access = connection.session, self._access
        before = session.rights
        if access is None:
            session.rights, session.words, session.authenticate = None, session.service.words, None
            session.operator = self._includes(connection)
            self._pending.drop(connection)
            return
        identity = identity_of(connection.transport)
        relayed = self._relayed.get(session.client)
        is_trusted = True
        if relayed is not None:
            router = _with_token(access, identity, relayed.router_token)
            is_trusted = self._rights_of(access, router).everything
            identity = relayed.identity
        token = self._tokens.get(session.client, ("", ""))
        identity = _with_token(access, identity, token)
        is_page = bool(token[1]) and token[1] == self.page_digest
        rights = _rights_of_name(access, PAGE) if is_page else self._rights_of(access, identity)
        if not is_trusted:
            rights = _NOTHING
        if session.person and rights.everything:  # otherwise the client may not act for anybody any more
            rights = _rights_of_name(access, PERSON + session.person)
        elif session.person:
            rights = _NOTHING
        if rights.everything or (before is not None and rights.include(before)):
            if rights.grants:
                self._pending.drop(connection)
            session.authenticate = partial(self._authenticate, connection, identity)
            self._give(connection, rights)
        else:  # at once, since its turn to leave may come later
            self._give(connection, _NOTHING)
            session.engine.clients.stop_waiting(session.client)
            self._dismiss(connection)

    def _rights_of(self, access: Access, identity: Identity) -> Rights:
        return access.rights_of(access.matching(identity.names, identity.host))

    def _shown(self, access: Access, identity: Identity) -> str:
        """Return the name of a client beside its address: a user has the one that the file has."""
        shown = identity.shown
        return access.spelt.get(shown, shown) if shown.startswith(UID) else shown

    def _give(self, connection: Connection, rights: Rights) -> None:
        session = connection.session
        session.operator = True  # which of these words it may use its table says
        if rights.everything:
            session.rights, session.words = None, session.service.words
            return
        if rights not in self._words:
            self._words[rights] = limited_words(session.service, rights)
        session.rights, session.words = rights, self._words[rights]

    def _authenticate(self, connection: Connection, identity: Identity, token: bytes) -> bool:
        """Give a client the rights of a token as well; returns False if the token is wrong, or can be overheard."""
        access, digest = self._access, sha256(token).hexdigest()
        if access is None:
            return False
        if self.page_digest and hmac.compare_digest(digest, self.page_digest):
            if not _is_near(connection.transport) or connection.session.client in self._relayed:
                return False
            name, rights = PAGE, _rights_of_name(access, PAGE)
        else:
            name = access.names.get(digest, "")
            if not identity.is_private or not hmac.compare_digest(digest, access.digests.get(name, "")):
                return False
            rights = self._rights_of(access, identity.with_token(name))
        if rights.grants:
            self._pending.drop(connection)
        self._tokens[connection.session.client] = name, digest
        self._give(connection, rights)
        _show(connection, name)
        return True

    def _dismiss(self, connection: Connection) -> None:
        """End the connection of a client without rights, or with fewer than it had."""
        self._refused(connection.session.client.peer.address, "")
        connection.dismiss()

    def _cut_off(self, connection: Connection) -> None:
        """Close the connection of a client without rights, to make room for another."""
        self._refused(connection.session.client.peer.address, "")
        connection.ending.cut_off()


_NOTHING: Final = Rights([])


def _rights_of_name(access: Access, name: str) -> Rights:
    """Return the rights of an identity alone."""
    return access.rights_of(access.matching(frozenset({name}), None))


def _with_token(access: Access, identity: Identity, token: tuple[str, str]) -> Identity:
    """Return what a client is with the token that it has given, if the rules still have that."""
    name, digest = token
    return identity.with_token(name) if name and access.digests.get(name) == digest else identity


def _is_near(transport: asyncio.BaseTransport) -> bool:
    """Whether the client is on this machine, as the page is: then both ends have the same address."""
    peer = transport.get_extra_info("peername")
    return not isinstance(peer, tuple) or peer[0] == transport.get_extra_info("sockname")[0]


def _show(connection: Connection, name: str) -> None:
    """Have a client shown with a name."""
    client = connection.session.client
    peer = client.peer
    if name:
        shown = name.replace('"', "'")  # what the client calls itself is in quotes
        client.peer = Peer(f"{peer.address.partition(' ')[0]} {shown}", peer.number)
