"""Events: what happens to jobs, for the history that the journal keeps and for clients that watch.

While ``Ledger.recording``, ``Ledger.record`` makes an event of each thing that happens to a job; what operators do is
always recorded. The events of a batch are in ``Changes.events``, in the order in which they happened.
"""

from typing import Final

from beanlite.core.tube import Peer, Tube

# What can happen to a job.
PUT: Final = "put"
DELAY_OVER: Final = "delay over"
RESERVE: Final = "reserve"
TOUCH: Final = "touch"
RELEASE: Final = "release"
BURY: Final = "bury"
TTR_OVER: Final = "ttr over"
CLIENT_GONE: Final = "client gone"
KICK: Final = "kick"
DELETE: Final = "delete"
NOTE: Final = "note"  # was left on a job, or taken away
RESTART: Final = "restart"  # made a job ready that had been reserved, or whose delay ended while no server ran
# Only operators can do these.
MOVE: Final = "move"
COPY: Final = "copy"
REPRIORITISE: Final = "reprioritise"
DELAY: Final = "delay"
# What can happen to a tube.
PAUSE: Final = "pause"
# What can happen to the tubes that a pattern matches.
POLICY: Final = "policy"
# What can happen to a schedule.
SCHEDULE: Final = "schedule"
WORDS: Final = (
    PUT, DELAY_OVER, RESERVE, TOUCH, RELEASE, BURY, TTR_OVER, CLIENT_GONE, KICK, NOTE, DELETE, RESTART,
    MOVE, COPY, REPRIORITISE, DELAY, PAUSE, POLICY, SCHEDULE,
)  # fmt: skip


class Event:
    """Something that happened to a job, with the job as it was at that moment, since it may change again at once.

    If it happened to a tube, the job's id, pri and size are 0.
    """

    __slots__ = ("at_ns", "body", "by", "by_operator", "delay_s", "job_id", "pri", "size", "tube", "what")

    def __init__(
        self,
        at_ns: int,
        job_id: int,
        tube: Tube,
        what: str,
        by: Peer | None,
        pri: int,
        delay_s: int,
        size: int,
        body: bytes | None,
        *,
        by_operator: bool,
    ) -> None:
        self.at_ns = at_ns
        self.job_id = job_id
        self.tube = tube
        """The tube that the job is in after the event."""
        self.what = what
        self.by = by
        """The client that did it, or that held the job when its ttr ended or the client went; or, with the number 0,
        the policy or the schedule that did it. None: nobody."""
        self.pri = pri
        self.delay_s = delay_s
        """For how long the job is delayed, or the tube paused; 0 if it is not."""
        self.size = size
        """Of the job's body."""
        self.body = body
        """Only of a deleted job, since it can't be looked up later, and only if it was in memory; and what was set, of
        a policy, a schedule or a note."""
        self.by_operator = by_operator
        """It was an operator's command, which is recorded even where no history is kept."""
