"""What happens to jobs, told one by one: for the history that the journal keeps, and for whoever listens.

``Ledger.record`` makes an event of each thing that happens to a job while ``Ledger.recording``, and of what operators
do at any time. The events of a batch are in ``Changes.events``, in the order in which they happened.
"""

from __future__ import annotations

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
RESTART: Final = "restart"  # which made a job ready that was reserved before, or whose delay has passed meanwhile
# Only operators do these.
MOVE: Final = "move"
COPY: Final = "copy"
REPRIORITISE: Final = "reprioritise"
DELAY: Final = "delay"
# What can happen to a tube.
PAUSE: Final = "pause"


class Event:
    """Something that has happened to a job, and how things were at that moment: the job may change again at once.

    Of what has happened to a tube the job's id, pri and size are 0.
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
        """The tube that the job is in from then on."""
        self.what = what
        self.by = by
        """The client that did it, or that had the job when its ttr was over. None: it was time's doing."""
        self.pri = pri
        self.delay_s = delay_s
        """For how long the job is delayed, or the tube paused; 0 if it is not."""
        self.size = size
        """Of the job's body."""
        self.body = body
        """Of a job that is deleted, since nobody can ask for it later, if it was in memory."""
        self.by_operator = by_operator
        """It is recorded even where no history is kept."""
