"""The legal transitions of a job from state to state, in one table.

The engine doesn't consult the table: each of its commands makes the transitions named after it. The tests hold the
engine to the table, and the diagram in the documentation is drawn from it.
"""

from typing import Final, NamedTuple

from beanlite.core.job import BURIED, DELAYED, GONE, OFFERED, READY, RESERVED, State


class Transition(NamedTuple):
    """A step in a job's life."""

    before: State | None
    """None: the job is new."""
    event: str
    after: State


# A job that becomes ready while a client waits for it is reserved, or offered, at once: two transitions in one step.
TRANSITIONS: Final = (
    Transition(None, "put", READY),
    Transition(None, "put with a delay", DELAYED),
    Transition(DELAYED, "delay over", READY),
    Transition(READY, "reserve", RESERVED),
    Transition(READY, "reserve-job", RESERVED),
    Transition(DELAYED, "reserve-job", RESERVED),
    Transition(BURIED, "reserve-job", RESERVED),
    Transition(READY, "offer", OFFERED),
    Transition(OFFERED, "take", RESERVED),
    Transition(OFFERED, "decline", READY),
    Transition(OFFERED, "offer over", READY),
    Transition(OFFERED, "client gone", READY),
    Transition(RESERVED, "release", READY),
    Transition(RESERVED, "release with a delay", DELAYED),
    Transition(RESERVED, "bury", BURIED),
    Transition(RESERVED, "ttr over", READY),
    Transition(RESERVED, "client gone", READY),
    Transition(DELAYED, "kick", READY),
    Transition(BURIED, "kick", READY),
    Transition(READY, "delete", GONE),
    Transition(DELAYED, "delete", GONE),
    Transition(RESERVED, "delete", GONE),
    Transition(BURIED, "delete", GONE),
    # Operators kick, release, bury and delete like clients, whichever client holds the job. Only they can do these.
    Transition(READY, "bury by an operator", BURIED),
    Transition(DELAYED, "bury by an operator", BURIED),
    Transition(READY, "delay by an operator", DELAYED),
    # To them an offered job is a ready one.
    Transition(OFFERED, "delete", GONE),
    Transition(OFFERED, "bury by an operator", BURIED),
    Transition(OFFERED, "delay by an operator", DELAYED),
    Transition(OFFERED, "move by an operator", READY),
)
