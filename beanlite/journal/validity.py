"""What values can be: a damaged database, or a line of an import, may have anything."""

from typing import Final, NamedTuple, TypeGuard

from beanlite.core.job import SECOND_NS
from beanlite.core.restore import FAR_NS
from beanlite.host.clock import EPOCH_S

# Times further than this from 1970 would not fit into the server's clock, as those in milliseconds do not.
FAR_S: Final = FAR_NS // SECOND_NS - EPOCH_S
# No counter ever gets this far; SQLite's integers end at twice this number.
COUNTER_MAX: Final = 1 << 62
# How many faults a check of a database reports one by one, in rows and in bodies each.
FAULTS_MAX: Final = 20


def is_number(value: object, most: int) -> TypeGuard[int]:
    """Whether this is a whole number from 0 to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def is_time(value: object) -> TypeGuard[float]:
    """Whether this is a time in seconds since 1970."""
    return isinstance(value, float | int) and not isinstance(value, bool) and abs(value) <= FAR_S


def is_flag(value: object) -> TypeGuard[bool]:
    """Whether this is true or false, for which SQLite has 1 and 0."""
    return isinstance(value, int) and value in {0, 1}


class CheckResult(NamedTuple):
    """The result of one check."""

    check: str
    sound: bool
    said: str
    """What was found, or what is wrong with it, in one line."""
    ours: bool = True
    """False: it is no database of beanlite's, or one of a newer version, and can't be checked."""
