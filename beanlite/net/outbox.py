"""The order of one client's replies: none leaves before its change is durable, and none overtakes another."""

from __future__ import annotations

import asyncio

from beanlite.commit.group import GroupCommit, Holder
from beanlite.net.ending import Ending
from beanlite.net.flow import Flow
from beanlite.net.turns import Turns
from beanlite.protocol.framing import FramedSession


class Outbox:
    """Sends the session's replies at once, has the group commit hold them, or lets them wait for those that are held.

    Those that wait stay with the session, so that they leave as one with what is released.
    """

    __slots__ = ("_ending", "_flow", "_group", "_journaled", "_session", "_turns", "_write", "held")

    def __init__(
        self,
        session: FramedSession,
        transport: asyncio.Transport,
        ending: Ending,
        flow: Flow,
        group: GroupCommit,
        turns: Turns,
    ) -> None:
        self._session = session
        self._write = transport.write  # looked up once, rather than for each reply
        self._ending = ending
        self._flow = flow
        self._group = group
        self._turns = turns
        self._journaled = session.service.journaled
        self.held = 0
        """How many calls of ``GroupCommit.hold`` have not been released yet."""

    def send(self, holder: Holder) -> None:
        """Send the session's replies, or hold them for the journal; the group commit releases them to ``holder``."""
        session = self._session
        if (session.waits or self._group.in_doubt) and self._journaled:
            if self.held:
                self._flow.none_waiting()  # those that wait are held with these
            self.held += 1
            if self._group.hold(holder, session.take_replies(hold=True)):
                self._turns.look_at_clock()
        elif not self.held:
            self._write(session.take_replies())
        else:
            self._flow.note_waiting(session.unsent_bytes)

    def release(self, replies: bytes) -> None:
        """Send replies that were held: the changes they acknowledge are durable."""
        session = self._session
        self.held -= 1
        if not self.held:
            self._flow.none_waiting()
            session.replies_sent()
            if session.replies and not self._group.in_doubt:
                replies += session.take_replies()  # answered meanwhile, and not waiting for the journal
        if not self._ending.leaving:
            self._write(replies)

    @property
    def owes(self) -> bool:
        """Whether the client has not been sent all replies to what has been carried out for it."""
        return bool(self.held or self._session.replies)
