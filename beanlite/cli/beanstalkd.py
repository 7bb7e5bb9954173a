"""Values that beanstalkd takes for its flags and our settings do not: a unit made for it starts this server, too."""

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from beanlite.settings.values import MAX_JOB_SIZE_LIMIT

# The longest interval that the setting fsync takes, in milliseconds.
_INTERVAL_MAX_MS: Final = 999_999_999


def as_settings_take_them(given: Mapping[str, Any], warn: Callable[[str], None]) -> dict[str, Any]:
    """Return the options of ``serve`` with beanstalkd's values in the range of the settings.

    ``warn`` is called with a line for each value that is not what was asked for.
    """
    taken = dict(given)
    taken["max_job_size"] = _within("-z", given["max_job_size"], 1, MAX_JOB_SIZE_LIMIT, MAX_JOB_SIZE_LIMIT, warn)
    taken["fsync_ms"] = _within("-f", given["fsync_ms"], 0, _INTERVAL_MAX_MS, 0, warn)
    if given["fsync_ms"] is not None and given["fsync_never"]:
        warn("-F is without effect beside -f")  # of the two, what is safe
        taken["fsync_never"] = False
    if given["port"] is not None and not given["port"].isdecimal():
        with suppress(OSError):  # it is no service, and reported as any other wrong port
            taken["port"] = str(socket.getservbyname(given["port"], "tcp"))
    return taken


def _within(
    flag: str, given: str | None, least: int, most: int, if_negative: int, warn: Callable[[str], None]
) -> str | None:
    """Return a whole number as near to what is given as the setting takes; all else as it is."""
    if given is None or not given.removeprefix("-").isdecimal():
        return given
    asked = int(given) if len(given) < 30 else most + 1
    taken = if_negative if given.startswith("-") else min(max(asked, least), most)
    if taken == asked:
        return given
    warn(f"{flag} {given[:30]} is not possible; it is {taken}")
    return str(taken)
