"""Gives each client its rights: when it connects, gives a token or acts for a person, and when rules have changed."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Final

from beanlite.core.access import Rights
from beanlite.core.tube import Client, Peer
from beanlite.net.allowed import Access
from beanlite.net.connection import Connection
from beanlite.net.identities import PAGE, PERSON, UID, Identity, identity_of
from beanlite.net.operators import Operators
from beanlite.net.pending import Pending
from beanlite.protocol.limited import limited_words
from beanlite.protocol.session import Words


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
        rights = self._rights_of(access, identity)
        if not rights.grants:
            self._pending.add(connection, identity)
        session.authenticate = partial(self._authenticate, connection, identity)
        self._give(connection, rights)
        _show(connection, self._shown(access, identity))

    def forget(self, connection: Connection) -> None:
        """Forget a client that is gone."""
        connection.session.authenticate = None
        self._pending.drop(connection)
        self._tokens.pop(connection.session.client, None)

    def act_for(self, connection: Connection, person: str) -> None:
        """Give a client that may do everything the rights of a person, and no others."""
        if self._access is not None:
            self._give(connection, _rights_of_name(self._access, PERSON + person))
        _show(connection, person.replace(" ", "_"))  # a blank ends the address, and the history has words behind it

    def change(self, operators: Operators, access: Access | None) -> None:
        """Take changed rules; ``look_again`` is then called for each client."""
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
            session.operator = self._operators.include(connection.transport.get_extra_info("peername"))
            self._pending.drop(connection)
            return
        identity = identity_of(connection.transport)
        name, digest = self._tokens.get(session.client, ("", ""))
        if name and access.digests.get(name) == digest:
            identity = identity.with_token(name)
        is_page = bool(digest) and digest == self.page_digest
        rights = _rights_of_name(access, PAGE) if is_page else self._rights_of(access, identity)
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
            if not _is_near(connection.transport):
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
