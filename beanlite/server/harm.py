"""Whether a bug that one client has met can have harmed the others."""

from typing import Final

from beanlite import commit, core, server
from beanlite.core import operator_find, snapshot
from beanlite.net import turns
from beanlite.server import facts

# The code of the state that all clients share: an error raised in it or below may have left that state half changed.
_SHARED: Final = tuple(module.__name__ for module in (core, commit, turns, server))
# Code in there that only reads this state, for the statistics and for operators.
_READING: Final = tuple(module.__name__ for module in (snapshot, operator_find, facts))


def spares_others(bug: Exception) -> bool:
    """Whether a bug met by one client can't have harmed the state that all clients share, by its traceback."""
    if bug.__context__ is not None:  # without memory for the whole traceback, a part of it is in there
        return False
    trace = bug.__traceback__
    while trace is not None:
        module = f"{trace.tb_frame.f_globals.get('__name__')}."
        if any(module.startswith(f"{name}.") for name in _READING):
            return True
        if any(module.startswith(f"{name}.") for name in _SHARED):
            return False
        trace = trace.tb_next
    return True
