"""Handshakes of TLS: how many there may be, how long they may take, and what comes of them."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from beanlite.host import log
from beanlite.net.addresses import Addresses, peer_name
from beanlite.net.buffers import Buffers
from beanlite.net.certificates import DAY_S, SOON_S, Certificates, in_words
from beanlite.net.pace import Pace
from beanlite.net.refusals import Refusals
from beanlite.net.tls import Tls

# So many connections may be without a finished handshake, unless max_connections is small: a tenth of it, but some.
PENDING_MAX: Final = 512
PENDING_LEAST: Final = 16
# If there are too many, an address with more than this part of them, but some, makes room. Until then it may have any
# number: a host may begin hundreds at once, as when its program starts, and all wait for their turn.
SHARE: Final = 10
SHARE_LEAST: Final = 8
# How long a client may take from its connection to the end of its handshake.
LASTS_S: Final = 10.0
# How long connections may go on in one turn of the loop: each takes up to a millisecond, for its handshake or for bytes
# that are to be decrypted.
TURN_S: Final = 0.002

_TOO_MANY: Final = "too many are under way"
_WORDS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has sent no certificate",
    "UNSUPPORTED_PROTOCOL": "the client's version of TLS is too old",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the client's version of TLS is too old",
    "NO_SHARED_CIPHER": "the client has no cipher that the server has",
    "NO_SUITABLE_KEY_SHARE": "the client can't exchange keys on the curve P-256",
    "WRONG_CURVE": "the client's certificate is on a curve for which it needs TLS 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the server's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the server's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client takes the server's certificate for expired",
}


def most_pending(max_connections: int) -> int:
    """Return how many connections may be without a finished handshake."""
    return min(PENDING_MAX, max(PENDING_LEAST, max_connections // 10))


class TlsCount(Protocol):
    """What counts the clients whose connection is encrypted."""

    tls_clients: int


class Handshakes:
    """The connections that are not known yet, and the certificates with which new ones are received."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        certificates: Certificates,
        most: int,
        refusals: Refusals,
        memory: TlsCount,
        buffers: Buffers | None = None,
    ) -> None:
        """``buffers`` counts what waits for its turn."""
        self._loop = loop
        self.pace = Pace()
        self.certificates = certificates
        self._refusals = refusals
        self._memory = memory
        self._buffers = buffers
        self._addresses = Addresses(0, spare_local=True)
        self.limit(most)
        self._pending: dict[Tls, float] = {}
        """Until when each connection may take, the earliest first."""
        self._ready: deque[Tls] = deque()
        """Those whose clients have sent something."""
        self._late: deque[Tls] = deque()
        """Known connections with bytes that are still to be decrypted."""
        self._slow: deque[Tls] = deque()
        """Likewise, of clients whose bytes take long: others need not wait for them."""
        self._queues = deque((self._ready, self._late, self._slow))
        self._at_work = False
        """``_work`` is about to be called, or is being."""
        self._timer: asyncio.TimerHandle | None = None
        self._daily: asyncio.TimerHandle | None = None
        self._new_connection: Callable[[], asyncio.Protocol] = asyncio.Protocol

    def open(self, new_connection: Callable[[], asyncio.Protocol]) -> None:
        """Begin: ``new_connection`` makes the protocol of a client whose handshake is over."""
        self._new_connection = new_connection
        self._tell_daily()

    def close(self) -> None:
        """Close all connections without a finished handshake."""
        for each in list(self._pending):
            each.abort()
        for timer in (self._timer, self._daily):
            if timer is not None:
                timer.cancel()

    def limit(self, most: int) -> None:
        """From now on so many may be without a finished handshake."""
        self._most = most
        self._share = max(SHARE_LEAST, most // SHARE)

    def renew(self, certificates: Certificates) -> None:
        """Receive new connections with these certificates; existing ones stay."""
        self.certificates = certificates
        self.tell_ends()

    def __len__(self) -> int:
        """Return how many connections there are without a finished handshake."""
        return len(self._pending)

    # -- called by connections

    def new(self) -> Tls:
        """Make the protocol of a new connection."""
        return Tls(self)

    def begin(self, tls: Tls) -> None:
        """Give a new connection some time, in place of an earlier one if too many are pending."""
        peer = tls.get_extra_info("peername")
        if peer is None:  # it is gone already
            tls.abort()
            return
        if len(self._pending) >= self._most:
            self._dismiss(self._earliest(), _TOO_MANY)
        self._addresses.add(tls, self._addresses.address_of(peer))
        self._pending[tls] = self._loop.time() + LASTS_S
        if self._timer is None:
            self._timer = self._loop.call_later(LASTS_S, self._on_timer)

    def _earliest(self) -> Tls:
        """Return the earliest connection: of the address that has the most, if these are more than its share.

        Otherwise one address could have all others closed. Those of this machine count as one.
        """
        address, most = self._addresses.fullest()
        if len(self._pending) - len(self._addresses) >= most:
            address, most = None, len(self._pending) - len(self._addresses)
        if most > self._share:
            return next(tls for tls in self._pending if self._addresses.has(tls, address))
        return next(iter(self._pending))

    def new_session(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Make what encrypts and decrypts for a connection."""
        session = self.certificates.context.wrap_bio(incoming, outgoing, server_side=True)
        self._memory.tls_clients += 1
        return session

    def go_on(self, tls: Tls) -> None:
        """Go on with a connection when it is its turn."""
        queue = self._ready if tls in self._pending else self._slow if tls.is_slow else self._late
        queue.append(tls)
        if not self._at_work:
            self._at_work = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """Go on with connections of each kind by turns, so that none holds up another."""
        until_s = time.monotonic() + TURN_S
        queues = self._queues
        try:
            while any(queues):
                queues.rotate(-1)
                if queues[0]:
                    queues[0].popleft().shake()
                    if time.monotonic() >= until_s:
                        break
        finally:  # also after a lack of memory, which the server may survive
            self._at_work = any(queues)
            if self._at_work:
                self._loop.call_soon(self._work)

    def keep(self, tls: Tls, size: int) -> None:
        """Count what a connection has received, and waits for its turn."""
        if self._buffers is not None:
            self._buffers.note(tls, size)

    def admit(self, tls: Tls, *, is_kept: bool) -> asyncio.Protocol | None:
        """Return the protocol of a client whose handshake is over; None if OpenSSL keeps its session: it is refused."""
        self._forget(tls)
        if is_kept:
            # After an orderly end the session would stay.
            self._dismiss(tls, "the client has TLS 1.2 without session tickets")
            return None
        return self._new_connection()

    def refuse(self, tls: Tls, reason: str) -> None:
        """Close a connection before its handshake is over."""
        self._note(tls, reason)
        self._forget(tls)
        tls.close()

    def _dismiss(self, tls: Tls, reason: str) -> None:
        """Close a connection without another word to its client."""
        self._note(tls, reason)
        self._forget(tls)
        tls.abort()

    def refuse_for(self, tls: Tls, error: ssl.SSLError) -> None:
        """Close a connection whose handshake has failed."""
        if isinstance(error, ssl.SSLCertVerificationError):
            self.refuse(tls, f"the client's certificate: {error.verify_message}")
        else:
            self.refuse(tls, _WORDS.get(error.reason or "", in_words(error)))

    def end(self, tls: Tls, *, has_session: bool) -> None:
        """Forget a connection that is closed."""
        if has_session:
            self._memory.tls_clients -= 1
            if tls in self._pending:
                self._note(tls, "the client has left")
        self.keep(tls, 0)
        self._forget(tls)

    def _forget(self, tls: Tls) -> None:
        if self._pending.pop(tls, None) is not None:
            self._addresses.drop(tls)

    def _note(self, tls: Tls, reason: str) -> None:
        self._refusals.note("handshake", address=peer_name(tls), reason=reason)

    # -- time

    def _on_timer(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for tls, until_s in list(self._pending.items()):
            if until_s > now_s:
                self._timer = self._loop.call_later(until_s - now_s, self._on_timer)
                return
            self._dismiss(tls, f"it was not over within {LASTS_S:.0f} s")

    def _tell_daily(self) -> None:
        self._daily = self._loop.call_later(DAY_S, self._tell_daily)
        self.tell_ends()

    def tell_ends(self) -> None:
        """Log which certificates end soon, or have ended."""
        now_s = time.time()
        for setting, ends_s in self.certificates.ends_s.items():
            file = self.certificates.files[setting]
            if ends_s <= now_s:
                log.error("certificate has expired", setting=setting, file=file)
            elif ends_s < now_s + SOON_S:
                log.warning("certificate expires soon", setting=setting, file=file, days=int(ends_s - now_s) // DAY_S)
