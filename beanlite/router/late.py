"""Jobs that come late: they go back to their servers if no reserve waits for them any more."""

from __future__ import annotations

from beanlite.router.asks import FinishAsk, JobAsk, WatchAsk
from beanlite.router.ids import inner_id
from beanlite.router.lane import InternalAsk, Lane
from beanlite.router.state import ClientState, IgnoreAsk


def take_late(session: ClientState, lane: Lane, line: bytes, body: bytes) -> None:
    """Take a late reply after all; a job is given back if no reserve waits for one, or the client wants it no more."""
    session.end_late(lane)
    if line.startswith(b"RESERVED "):
        job_id, wait = inner_id(line), session.wait
        is_wanted = not _is_asked_for(lane, job_id, FinishAsk) and not _may_be_ignored(session, lane)
        if wait is None or not is_wanted or not wait.use_late(lane, line, body):
            give_back(session, lane, job_id)
    if session.wait is not None:
        session.wait.opened(lane)


def _may_be_ignored(session: ClientState, lane: Lane) -> bool:
    """Whether the client may have ignored the tube of a job, which is not known, since it was asked for.

    What has been sent since then is not answered either.
    """
    return lane not in session.reserve_lanes() or any(
        isinstance(ask, IgnoreAsk) or (isinstance(ask, WatchAsk) and ask.ignores) for ask in lane.asks
    )


def _is_asked_for(lane: Lane, job_id: int, kind: type[JobAsk]) -> bool:
    return any(isinstance(ask, kind) and ask.job_id == job_id for ask in lane.asks)


class GiveBackAsk(InternalAsk):
    """The question for the pri of a job that nobody waits for, and that is to be released with it.

    Meanwhile the lane is late: the release would come behind a reserve that waits there.
    """

    __slots__ = ("_id", "_session")

    def __init__(self, session: ClientState, job_id: int) -> None:
        super().__init__()
        self._session = session
        self._id = job_id

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Release the job, unless it is free by now, or the client has reserved it itself, or may have."""
        if b"\nstate: reserved\n" in body and self._id not in lane.held:
            if _is_asked_for(lane, self._id, JobAsk):
                give_back(self._session, lane, self._id)
            else:
                pri = body.partition(b"\npri: ")[2].partition(b"\n")[0]
                lane.send(b"release %d %b 0\r\n" % (self._id, pri), InternalAsk())
        self.lose(lane)
        if self._session.wait is not None:
            self._session.wait.opened(lane)

    def lose(self, lane: Lane) -> bool:
        """Have the lane be asked again."""
        self._session.end_late(lane)
        return True

    def fail(self, lane: Lane) -> None:
        """Do so likewise."""
        self.lose(lane)


def give_back(session: ClientState, lane: Lane, job_id: int) -> None:
    """Release a job that nobody waits for."""
    session.begin_late(lane)
    lane.held.discard(job_id)
    lane.send(b"stats-job %d\r\n" % job_id, GiveBackAsk(session, job_id))
