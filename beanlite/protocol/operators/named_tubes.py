"""What the requests of a client that may not do everything concern, and whether it may."""

from collections.abc import Callable
from typing import Any, Final

from beanlite.core.access import ALL_TUBES, OPERATOR, PRODUCER, READER
from beanlite.protocol.operators.requests import (
    ChangeJobs,
    Diagnose,
    GroupJobs,
    ListJobs,
    ListPolicies,
    PutJobs,
    Request,
    SetPause,
    SetPolicy,
    SetSchedule,
    ShowFlow,
    WatchEvents,
)
from beanlite.protocol.session import Session

_MOVE: Final = "move:"

_Names = tuple[str, list[bytes | None]]
"""A role, and patterns or names of tubes."""


def permits_request(session: Session, request: Request) -> bool:
    """Whether the client has its role on all tubes that a request names. What it does not name is left out of lists."""
    rights, names_of = session.rights, _NAMES_OF.get(type(request))
    if rights is None or names_of is None:
        return True
    role, names = names_of(session, request)
    return all(rights.may(role, name) for name in names if name is not None)


def _of_put_jobs(session: Session, request: Any) -> _Names:  # noqa: ANN401 - one of the requests, as for the others
    used = session.client.use.name
    return PRODUCER, [job.tube or used for job in request.jobs]


def _of_list_jobs(_session: Session, request: Any) -> _Names:  # noqa: ANN401
    return READER, [None if request.tube is None else request.tube.encode()]


def _of_looks(_session: Session, request: Any) -> _Names:  # noqa: ANN401
    return READER, [request.tube]


def _of_change_jobs(_session: Session, request: Any) -> _Names:  # noqa: ANN401
    return OPERATOR, [None if request.tube is None else request.tube.encode(), request.to]


def _of_set_pause(_session: Session, request: Any) -> _Names:  # noqa: ANN401
    return OPERATOR, [request.tube]


def _of_set_schedule(session: Session, request: Any) -> _Names:  # noqa: ANN401
    before = session.engine.schedules.get(request.name)
    return OPERATOR, [request.tube, None if before is None else before.tube]


def _of_set_policy(_session: Session, request: Any) -> _Names:  # noqa: ANN401
    """Return the patterns, and the tubes to which they move jobs."""
    names: list[bytes | None] = [ALL_TUBES] if request.prune else []
    for change in request.changes():
        names.append(change.pattern)
        values: list[str] = list((change.set or {}).values())
        names += [value.removeprefix(_MOVE).encode() for value in values if value.startswith(_MOVE)]
    return OPERATOR, names


# What each request names, and the role that it takes there; those that are not here are only lists, or name a schedule.
_NAMES_OF: Final[dict[type[Request], Callable[[Session, Any], _Names]]] = {
    PutJobs: _of_put_jobs,
    ListJobs: _of_list_jobs,
    GroupJobs: _of_list_jobs,
    Diagnose: _of_looks,
    ShowFlow: _of_looks,
    WatchEvents: _of_looks,
    ListPolicies: _of_looks,
    ChangeJobs: _of_change_jobs,
    SetPause: _of_set_pause,
    SetSchedule: _of_set_schedule,
    SetPolicy: _of_set_policy,
}
