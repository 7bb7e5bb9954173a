"""The kinds of commands that are sent to servers, by what becomes of their replies."""

from __future__ import annotations

from typing import Final

from beanlite.protocol.replies import (
    AUTHENTICATED,
    BURIED,
    DELETED,
    INTERNAL_ERROR,
    NAMED,
    NOT_FOUND,
    NOT_IGNORED,
    RELEASED,
    TOUCHED,
    UNAUTHORIZED,
    USING,
    WATCHING,
)
from beanlite.router.ids import inner_id, with_outer_id
from beanlite.router.lane import CLOSED, DEFAULT, Ask, InternalAsk, Lane
from beanlite.router.state import ClientState

# What beanstalkd takes by default.
MAX_JOB_SIZE: Final = 65535
_FINISHED: Final = (DELETED, RELEASED, BURIED, NOT_FOUND)


class PutAsk(Ask):
    """A put: its reply has the id of the new job."""

    __slots__ = ()

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply; a job that the server had to bury has an id, too."""
        self.reply = with_outer_id(line, lane.number) if line.startswith((b"INSERTED ", b"BURIED ")) else line


class JobAsk(Ask):
    """A command for a job that the client has reserved, or reserves with it."""

    __slots__ = ("job_id",)

    def __init__(self, job_id: int) -> None:
        """``job_id`` is the job as its server knows it."""
        super().__init__()
        self.job_id = job_id


class FinishAsk(JobAsk):
    """A command for a job that is reserved: the reply tells if it is not, or not any more."""

    __slots__ = ()

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply."""
        if line in _FINISHED:
            lane.held.discard(self.job_id)
        elif line == TOUCHED:  # it may have been reserved anew, for nobody, since its ttr has ended
            lane.hold(self.job_id)
        self.reply = line


class ReserveJobAsk(JobAsk):
    """The command reserve-job."""

    __slots__ = ()

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply."""
        self.reply = reserved(lane, line, body) if line.startswith(b"RESERVED ") else line


def reserved(lane: Lane, line: bytes, body: bytes) -> bytes:
    """Return the reply to a reserve that a server answers with a job."""
    lane.hold(inner_id(line))
    return with_outer_id(line, lane.number) + body


class ReserveAsk(Ask):
    """A reserve, which may wait."""

    __slots__ = ("_session", "_timeout_s", "until_s")

    def __init__(self, session: ClientState, timeout_s: float) -> None:
        super().__init__()
        self._session = session
        self._timeout_s = timeout_s
        self.until_s = 0.0
        """When the client is told that there is no job; 0: it waits for the reserves before this one."""

    def begin(self) -> None:
        """Note that there is no reserve before this one."""
        if not self.until_s:
            self.until_s = self._session.now_s + self._timeout_s

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply of the only server that was asked."""
        self.reply = reserved(lane, line, body) if line.startswith(b"RESERVED ") else line
        self._leave()
        if self._session.reserves:
            for ask in lane.asks:
                if isinstance(ask, ReserveAsk):  # the next one, should its server be lost
                    ask.begin()
                    break

    def lose(self, lane: Lane) -> bool:
        """Wait until the server is back: a job that it has given out in between went back with the connection."""
        self._leave()
        self._session.orphans.append(self)
        return True

    def fail(self, lane: Lane) -> None:
        """Wait likewise."""
        self.lose(lane)

    def refuse(self, lane: Lane, line: bytes) -> None:
        """Tell the client that it may not reserve."""
        self.reply = line
        self._leave()

    def _leave(self) -> None:
        session = self._session
        session.reserves -= 1
        if session.reserves == 0:
            session.waits_on = None


class UseAsk(Ask):
    """A use of the client."""

    __slots__ = ("_session", "_tube", "before")

    def __init__(self, session: ClientState, tube: bytes) -> None:
        super().__init__()
        self._session = session
        self._tube = tube
        self.before = session.used
        """What the client uses if it is refused."""

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply. The tube was taken for the client's at once unless it is on another server."""
        session = self._session
        if not line.startswith(USING):
            if session.barrier is not self and not self._tell_next(lane):
                if session.used == self._tube:
                    session.use(self.before)
                if lane.used == self._tube:
                    lane.used = self.before
        elif session.barrier is self:
            self._take(lane)
            lane.used = self._tube
        self._end(line)

    def _tell_next(self, lane: Lane) -> bool:
        """Have the next use fall back on the tube before this one, too; returns whether there is one on this lane.

        By another file it may be on another server.
        """
        is_followed = False
        for each in self._session.lanes.values():
            for ask in each.asks:
                if isinstance(ask, UseAsk):
                    if ask.before == self._tube:
                        ask.before = self.before
                    is_followed = is_followed or (each is lane and self._session.barrier is not ask)
                    break
        return is_followed

    def lose(self, lane: Lane) -> bool:
        """Use it once the server is back."""
        self.fail(lane)
        return True

    def fail(self, lane: Lane) -> None:
        """Use it once the server is back: there is nothing that could be lost."""
        if self._session.barrier is self:  # else it was taken at once, and the client may use another one by now
            self._take(lane)
        self._end(b"%b%b\r\n" % (USING, self._tube))

    def _take(self, lane: Lane) -> None:
        session = self._session
        old = session.home
        session.use(self._tube)
        if old is not lane and old.state != CLOSED and old.used != DEFAULT and not old.ended:
            old.used = DEFAULT
            old.send(b"use default\r\n", InternalAsk())

    def _end(self, reply: bytes) -> None:
        if self._session.barrier is self:
            self._session.barrier = None
        self.reply = reply


class SwitchAsk(InternalAsk):
    """A use of the router's own: the client uses the tube already."""

    __slots__ = ("_session", "_tube")

    def __init__(self, session: ClientState, tube: bytes) -> None:
        super().__init__()
        self._session = session
        self._tube = tube

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply."""
        if line.startswith(USING):
            lane.used = self._tube
        else:
            lane.refusal = line
        self._session.barrier = None

    def lose(self, lane: Lane) -> bool:
        """Do without it: a new connection begins with the tube."""
        self._session.barrier = None
        return True

    def fail(self, lane: Lane) -> None:
        """Have the command that waits for it fail, too."""
        lane.refusal = INTERNAL_ERROR
        self._session.barrier = None


class WatchAsk(Ask):
    """A watch or an ignore of the client, which goes to one server, or to both of a tube that has moved."""

    __slots__ = ("_count", "_refusal", "_session", "_tube", "ignores", "left")

    def __init__(self, session: ClientState, tube: bytes, left: int, *, ignores: bool) -> None:
        super().__init__()
        self._session = session
        self._tube = tube
        self.left = left
        """How many servers have not answered."""
        self.ignores = ignores
        self._count = len(session.watched)
        self._refusal = b""

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply of one server."""
        stays = self.ignores and line == NOT_IGNORED and self._session.stays_last(lane, self._tube)
        if not stays and not line.startswith(b"WATCHING "):
            self._refusal = line
            self._undo(lane)
        self._end_one()

    def _undo(self, lane: Lane) -> None:
        session, tube = self._session, self._tube
        if self.ignores:
            session.watch_tube(tube)
            lane.watched.add(tube)
        else:
            lane.watched.discard(tube)
            if len(session.watched) > 1:
                session.ignore_tube(tube)
            if not lane.watched:
                lane.watched.add(DEFAULT)  # the server has refused to ignore it, too
                lane.placeholder = not session.has_tube(lane, DEFAULT) or DEFAULT not in session.watched

    def lose(self, lane: Lane) -> bool:
        """Do it once the server is back."""
        self._end_one()
        return True

    def fail(self, lane: Lane) -> None:
        """Do it likewise."""
        self.lose(lane)

    def _end_one(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.reply = self._refusal or WATCHING % self._count


class NameAsk(Ask):
    """The command name, with which a connection that is made anew begins."""

    __slots__ = ()

    def lose(self, lane: Lane) -> bool:
        """Do it once the server is back."""
        self.fail(lane)
        return True

    def fail(self, lane: Lane) -> None:
        """Do it likewise."""
        self.reply = NAMED


class DoubtAsk(Ask):
    """A command whose reply the next one waits for, and which may have been carried out if that is lost."""

    __slots__ = ("_session",)

    def __init__(self, session: ClientState) -> None:
        super().__init__()
        self._session = session

    def lose(self, lane: Lane) -> bool:
        """Have the client lose its connection."""
        self._session.barrier = None
        return False

    def fail(self, lane: Lane) -> None:
        """Tell the client that the server is away."""
        super().fail(lane)
        self._session.barrier = None


class AuthAsk(DoubtAsk):
    """The command auth."""

    __slots__ = ("_token",)

    is_secret = True

    def __init__(self, session: ClientState, token: bytes) -> None:
        super().__init__(session)
        self._token = token

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply: an accepted token is shown to the other servers as well."""
        if line == AUTHENTICATED:
            self._session.token = self._token
        elif line == UNAUTHORIZED:
            self._session.is_over = True
        self._session.barrier = None
        self.reply = line

    def fail(self, lane: Lane) -> None:
        """Have the client try again on another connection."""
        super().fail(lane)
        self._session.is_over = True


class LargestBodyAsk(InternalAsk):
    """The question for the largest body that a server takes."""

    __slots__ = ("_session",)

    def __init__(self, session: ClientState) -> None:
        super().__init__()
        self._session = session

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the statistics."""
        number = body.partition(b"\nmax-job-size: ")[2].partition(b"\n")[0]
        self._end(lane, int(number) if number.isdigit() else MAX_JOB_SIZE)

    def lose(self, lane: Lane) -> bool:
        """Guess."""
        self._end(lane, MAX_JOB_SIZE)
        return True

    def fail(self, lane: Lane) -> None:
        """Guess."""
        self.lose(lane)

    def _end(self, lane: Lane, size: int) -> None:
        lane.server.max_job_size = size
        self._session.barrier = None
