"""What ``beanlite top`` changes."""

from beanlite.beanstalk.client import Server
from beanlite.console import units
from beanlite.console.changes import Result, slices
from beanlite.console.filters import filter_by
from beanlite.console.live import Live, login_name, on_behalf_of
from beanlite.core.job import U32_MAX
from beanlite.errors import BeanliteError


def kick(address: Server, tube: str) -> str:
    """Kick all buried jobs of a tube; return what has become of it. BeanliteError: that fails."""
    outcome = Result()
    with Live(address) as server:
        what = {"do": "kick", **on_behalf_of(login_name())}
        for _ in slices(server, what, filter_by(tube=tube, state="buried"), outcome):
            pass
    return f"{units.jobs(outcome.done)} kicked in tube {tube}"


def pause(address: Server, tube: str, time: str) -> str:
    """Pause a tube, or end its pause; return what has become of it. BeanliteError: that fails."""
    try:
        pause_s = units.whole_seconds(units.parse_age(time))
    except ValueError as error:
        raise BeanliteError(str(error)) from None
    if pause_s > U32_MAX:
        raise BeanliteError(f"{time} is more than {units.age(U32_MAX)}")
    with Live(address) as server:
        server.pause(tube, pause_s, on_behalf_of(login_name()))
    return f"tube {tube} is paused for {units.age(pause_s)}" if pause_s else f"tube {tube} is not paused"
