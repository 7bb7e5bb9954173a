"""Why a session does not carry out its next command yet."""

from enum import Enum
from typing import Final


class Blocked(Enum):
    """The reasons; a session has at most one at a time. They are compared by identity."""

    WAITING = "waiting in a reserve"
    KICKING = "in a kick of many jobs, which is done in slices"
    LOOKING = "a command that takes long waits for its turn; it changes nothing"
    WORKING = "a command that takes long waits for its turn; it may change jobs"
    FETCHING = "the body of a job that it replies with is on its way"
    REPLETE = "the client has enough replies to read"
    YIELDING = "others have their turn first"
    CLOSING = "the client has said quit, or met a bug of ours"


# The same as module constants: looking a member up in its class costs more than the comparison.
WAITING: Final = Blocked.WAITING
KICKING: Final = Blocked.KICKING
LOOKING: Final = Blocked.LOOKING
WORKING: Final = Blocked.WORKING
FETCHING: Final = Blocked.FETCHING
REPLETE: Final = Blocked.REPLETE
YIELDING: Final = Blocked.YIELDING
CLOSING: Final = Blocked.CLOSING
