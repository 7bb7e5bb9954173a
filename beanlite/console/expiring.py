"""Which jobs a move would have expire: they keep their ages, and may be too old for the tube that they come to."""

import math
from typing import Final

from beanlite.console.changes import count
from beanlite.console.filters import Record
from beanlite.console.live import Live
from beanlite.core.policies import OFF, duration_s
from beanlite.errors import BeanliteError
from beanlite.protocol.operators.filters import Filter

# Jobs that expire so soon could hardly be moved back before.
_SOON_S: Final = 60.0
# Buried jobs do not expire, and reserved ones only when they come back.
_STATES: Final = ("ready", "delayed", "reserved")
_FATES: Final = {"bury": "buried", "delete": "deleted"}


def expiring(live: Live, what: Record, which: Filter, until_s: float = math.inf) -> tuple[int, str]:
    """Return how many jobs a change would have expire soon, and what becomes of them; 0 if it is no move.

    They are counted as ``count`` does.
    """
    if what["do"] != "move":
        return 0, ""
    try:
        policies = live.list_policies({"tube": what["to"]})["policies"]
    except BeanliteError:  # the server is too old for policies, or will refuse the move as well
        return 0, ""
    values = {policy["key"]: policy["value"] for policy in policies if policy["value"] != OFF}
    if "ttl" not in values:
        return 0, ""
    older_s = max(which.older_s or 0.0, duration_s(values["ttl"]) - _SOON_S)
    states = _STATES if which.state is None else {which.state}.intersection(_STATES)
    parts = [which.model_copy(update={"state": state, "older_s": older_s}) for state in states]
    number = sum(count(live, what, part, until_s).done for part in parts)
    expired = values.get("expired", "bury")
    fate = _FATES.get(expired, f"moved on to {expired.removeprefix('move:')}")
    to = f"{what['to']} has ttl={values['ttl']}"
    they = "job is" if number == 1 else "jobs are"
    return number, f"{to}: {number:,} {they} too old for it, or will be within a minute, and then {fate}"
