"""Why a session doesn't carry out its next command."""

from enum import Enum
from typing import Final


class Blocked(Enum):
    """The reasons, of which a session has at most one at a time. They are compared by identity."""

    WAITING = "waiting in a reserve"
    KICKING = "in a kick of many jobs, which is done in slices"
    FETCHING = "the body of a job that it replies with is on its way"
    REPLETE = "the client has enough replies to read"
    YIELDING = "others have their turn first"
    CLOSING = "the client has said quit, or met a bug of ours"


# The same under names of their own: to look a member up in its class costs more than the comparison does.
WAITING: Final = Blocked.WAITING
KICKING: Final = Blocked.KICKING
FETCHING: Final = Blocked.FETCHING
REPLETE: Final = Blocked.REPLETE
YIELDING: Final = Blocked.YIELDING
CLOSING: Final = Blocked.CLOSING
