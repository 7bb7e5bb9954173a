"""What ``beanlite top`` changes."""

import time

from beanlite.console import units
from beanlite.console.changes import change_all
from beanlite.console.filters import filter_by, settled
from beanlite.console.live import by_me
from beanlite.console.several import Place, reach
from beanlite.core.job import U32_MAX
from beanlite.errors import BeanliteError


def kick(place: Place, tube: str, seen_s: float) -> str:
    """Kick the jobs of a tube that were buried at this moment of the monotonic clock, and still are.

    Returns what has become of it. BeanliteError: that fails.
    """
    with reach(place) as server:
        which = settled(filter_by(tube=tube, state="buried"), time.monotonic() - seen_s)
        outcome = change_all(server, {"do": "kick", **by_me()}, which)
    return f"{units.jobs(outcome.done)} kicked in tube {tube}{_of(place)}"


def pause(place: Place, tube: str, time: str) -> str:
    """Pause a tube, or end its pause; return what has become of it. BeanliteError: that fails."""
    try:
        pause_s = units.whole_seconds(units.parse_age(time))
    except ValueError as error:
        raise BeanliteError(str(error)) from None
    if pause_s > U32_MAX:
        raise BeanliteError(f"{time} is more than {units.age(U32_MAX)}")
    with reach(place) as server:
        server.pause(tube, pause_s, by_me())
    name = f"tube {tube}{_of(place)}"
    return f"{name} is paused for {units.age(pause_s)}" if pause_s else f"{name} is not paused"


def _of(place: Place) -> str:
    return f" of {place.name}" if place.name else ""
