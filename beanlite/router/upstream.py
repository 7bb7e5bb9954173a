"""The servers as the router reaches them: at which address, since when not, and what they understand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from beanlite.beanstalk.client import Server, address_text
from beanlite.errors import in_system_words
from beanlite.host import log
from beanlite.router.dial import Contexts, dial
from beanlite.router.known import KnownServer
from beanlite.router.relay import WORD, introduction, why_closed

# How long a server may take to accept a connection, and to answer what it is asked then.
CONNECT_S: Final = 2.0
# How often it is tried again, and how long clients wait for it before they are told that it is away.
AGAIN_S: Final = 0.2
AWAY_S: Final = 5.0
# One that does not trust the router is tried ever more seldom, until it is this long between two tries.
REFUSED_AGAIN_S: Final = 5.0
_TRIES: Final = 3
# So many connections to a server are being made at a time. When thousands of clients need one at once, as after its
# restart, it could not accept all before its kernel drops some, which these would notice very late.
_DIALS_MAX: Final = 100
# So many connections of its own the router has to a server at most.
PROBES: Final = 2
_QUESTIONS: Final = b"take 0\r\nnote 0 0\r\n\r\n"


class Upstream:
    """One server."""

    def __init__(
        self,
        server: KnownServer,
        addresses: list[Server],
        context_of: Contexts,
        tell_back: Callable[[], None],
        *,
        relays: bool = False,
    ) -> None:
        """``tell_back`` is called when it can be reached again. ``relays``: it is told for whom the router asks."""
        self.server = server
        self.addresses = addresses
        self._context_of = context_of
        self._tell_back = tell_back
        self._relays = relays
        self._is_refused = False
        """The log says that it does not take introductions."""
        self._loop = asyncio.get_running_loop()
        self._address: Server | None = None
        """The address at which it was last reached; None: at none, or that is in doubt."""
        self._doubtful_since_s = self._loop.time()
        self._reached = asyncio.Event()
        self.looked = asyncio.Event()
        """Set once it was reached, or could not be."""
        self._silent: set[Server] = set()
        """The addresses that did not answer in time when they were last asked."""
        self._look: asyncio.Task[None] | None = None
        self._doubt: asyncio.Task[None] | None = None
        self._is_closed = False
        self._dialing = asyncio.Semaphore(_DIALS_MAX)
        self._bugs = 0
        """How many connections could not be made for a bug of ours."""
        server.doubt = self._begin_to_doubt

    def suspect(self) -> None:
        """Find out whether it can be reached, and at which address."""
        if self._look is not None or self._is_closed:
            return
        if self._address is not None:
            self._doubtful_since_s = self._loop.time()
        self._address = None
        self._reached.clear()
        self._doubt_no_more()
        self._look = self._loop.create_task(self._look_for_it())

    def is_gone_from(self, address: Server | None) -> bool:
        """Whether it was reached again after this address had not answered, and thus at another one."""
        return self._address is not None and address in self._silent

    def _begin_to_doubt(self) -> None:
        """Find out whether the address still answers, which is used until it does not, if there are others.

        The kernel accepts connections for a server that is halted, while its standby takes over.
        """
        if self._address is not None and self._doubt is None and len(self.addresses) > 1:
            self._doubt = self._loop.create_task(self._ask_again(self._address))

    async def _ask_again(self, address: Server) -> None:
        reason = await self._try(address)
        self._doubt = None
        if reason:
            self.suspect()

    def _doubt_no_more(self) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None

    def close(self) -> None:
        """Look for it no more, and make no more connections to it."""
        self._is_closed = True
        self._address = None
        self._reached.set()
        self._doubt_no_more()
        if self._look is not None:
            self._look.cancel()

    async def connect(self, end: asyncio.Protocol, introduction: bytes) -> Server | None:
        """Make a connection, which ``end`` then looks after; return where. None: the server is away for too long."""
        for _ in range(_TRIES):
            async with self._dialing:
                address = self._address if await self._is_reached() else None
                if address is None:
                    return None
                try:
                    async with asyncio.timeout(CONNECT_S):
                        await dial(address, end, self._context_of, introduction)
                except OSError:
                    self.suspect()
                except Exception as bug:  # noqa: BLE001 - else the client would wait for the connection for good
                    self._bugs += 1
                    if log.is_rare(self._bugs):
                        log.error("no connection to a server", exc=bug, server=self.server.name, times=self._bugs)
                    return None
                else:
                    return address
        return None

    async def _is_reached(self) -> bool:
        left_s = self._doubtful_since_s + AWAY_S - self._loop.time()
        if self._address is None and left_s > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._reached.wait()
            except TimeoutError:
                return False
        return self._address is not None

    async def _look_for_it(self) -> None:
        again_s = AGAIN_S
        while True:
            reasons = []
            for address in self.addresses:
                reason = await self._try(address)
                if not reason:
                    self._note_reached(address)
                    return
                reasons.append(f"{address_text(address)}: {reason}")
            self.looked.set()
            is_refused = any(WORD in reason for reason in reasons)
            if not self.server.away or is_refused > self._is_refused:
                self.server.away, self._is_refused = True, is_refused
                log.warning("server away", server=self.server.name, reason="; ".join(reasons))
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, REFUSED_AGAIN_S) if is_refused else AGAIN_S

    async def _try(self, address: Server) -> str:
        """Ask the server what it understands; return why that fails."""
        answers = _Answers(self._loop.create_future())
        relayed = _Answers(self._loop.create_future(), b"")
        try:
            async with asyncio.timeout(CONNECT_S):
                if self._relays:  # on a connection of its own: its client may do nothing, and is not answered
                    await dial(address, relayed, self._context_of, introduction("unix", [], is_private=False))
                await dial(address, answers, self._context_of)
                await answers.complete
        except TimeoutError:
            self._silent.add(address)
            return "no answer in time"
        except OSError as error:
            return in_system_words(error)
        except Exception as bug:  # noqa: BLE001 - else it would never be looked for again
            return repr(bug)
        finally:
            answers.close()
            relayed.close()
        answers.note(self.server)
        self._silent.discard(address)
        return ""

    def _note_reached(self, address: Server) -> None:
        self._look = None
        self._address = address
        self._reached.set()
        self.looked.set()
        self._is_refused = False
        if self.server.away:
            self.server.away = False
            away_s = self._loop.time() - self._doubtful_since_s
            log.info("server back", server=self.server.name, address=address_text(address), seconds=away_s)
        self._tell_back()


class _Answers(asyncio.Protocol):
    """A connection that asks a server what it understands."""

    def __init__(self, complete: asyncio.Future[None], questions: bytes = _QUESTIONS) -> None:
        self.complete = complete
        self._questions = questions
        self._transport: asyncio.Transport | None = None
        self._closes = ""
        self._data = b""
        self._lines: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._closes = why_closed(transport)
        self._transport.write(self._questions)

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._lines = self._data.split(b"\r\n")[:-1]
        if len(self._lines) >= 2 and not self.complete.done():
            self.complete.set_result(None)

    def eof_received(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.complete.done():
            self.complete.set_exception(ConnectionResetError(self._closes))
            self.complete.exception()  # nobody may wait for it

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.complete.cancel()

    def note(self, server: KnownServer) -> None:
        """Note what the server understands."""
        server.knows_offers = self._lines[0] not in {b"UNKNOWN_COMMAND", b"BAD_FORMAT"}
        server.knows_notes = self._lines[1] not in {b"UNKNOWN_COMMAND", b"BAD_FORMAT"}
