"""The policies of a file take effect, and changes of policies are logged."""

import os
import time
from pathlib import Path
from typing import Final

from beanlite.core.policy_changes import changes_of, warnings
from beanlite.core.tube import Peer
from beanlite.errors import ConfigError
from beanlite.host import log
from beanlite.protocol.operators.policies import carry_out, check_memory, values_of
from beanlite.protocol.session import Service
from beanlite.server.policy_file import Values, read_policies

# The most lines about policies in the time below.
_LINES_MAX: Final = 20
_NOT_APPLIED: Final = "file of policies not applied: policies unchanged"


def begin_with(file: Path | None, service: Service, now_ns: int) -> None:
    """Have the policies of the file take effect in a server that becomes active.

    The file was right when the process began. If it is wrong by now, that is logged: a standby server that did not take
    over would be worse than one with the policies that the database has.
    """
    try:
        values = None if file is None else read_policies(file)
    except ConfigError as error:
        assert file is not None
        log.error(_NOT_APPLIED, error=error)
        service.policies_file = _name(file)
    else:
        apply(file, values, service, now_ns)


def apply(file: Path | None, values: Values | None, service: Service, now_ns: int) -> None:
    """Have the policies of the file, and no others, take effect; without a file, leave them to operators.

    If there is no memory for what tubes would have to know, that is logged, and policies stay as they are.
    """
    service.policies_file = None if file is None else _name(file)
    if file is None or values is None:
        return
    before = values_of(service)
    changes = changes_of(before, {**dict.fromkeys(before), **values})
    try:
        check_memory(service, changes)
    except ValueError as error:
        log.error(_NOT_APPLIED, error=error, file=file)
        return
    carry_out(service, changes, Peer(_name(file), 0), now_ns)
    for why in warnings(values, [pattern for pattern, _ in values]):
        log.warning("policy may not be what is meant", why=why, file=file)


def _name(file: Path) -> str:
    """Return the path as text for JSON and for the database, which take UTF-8 only."""
    return os.fsencode(file).decode(errors="replace")


class PolicyLog:
    """Logs changes of policies, a line for each pattern, but not a flood of them."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self._lines = 0
        """How many lines there were in the time that ends then."""
        self._dropped = 0

    def note(self, by: str, changes: dict[bytes, str]) -> None:
        """Log who has changed policies, and what was changed by pattern."""
        now_s = time.monotonic()
        if now_s >= self._until_s:
            self._until_s = now_s + log.SELDOM_S
            self._lines = 0
        floods = self._lines >= _LINES_MAX
        for pattern, change in changes.items():
            self._lines += 1
            if self._lines > _LINES_MAX:
                self._dropped += 1
                continue
            fields = {"dropped": self._dropped} if self._dropped else {}
            self._dropped = 0
            log.info("policy changed", pattern=pattern.decode(), change=change, by=by, **fields)
        if self._dropped and not floods:  # nothing may follow that would tell
            log.info("policies changed", dropped=self._dropped, by=by)
            self._dropped = 0
