"""Operators' commands, which ``docs/protocol.md`` describes: how a request is received, and the table of commands.

Most of them take a JSON object, which follows the command line as a put's body does.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from beanlite.core.operator_find import TooDeep
from beanlite.protocol import arguments, replies
from beanlite.protocol.arguments import Put
from beanlite.protocol.batches import put_jobs
from beanlite.protocol.blocked import LOOKING, WORKING, Blocked
from beanlite.protocol.operators.changes import change_jobs, set_pause
from beanlite.protocol.operators.diagnosing import diagnose
from beanlite.protocol.operators.flowing import show_flow
from beanlite.protocol.operators.lists import group_jobs, list_clients, list_jobs, list_tube_stats, show_job
from beanlite.protocol.operators.policies import list_policies, set_policy
from beanlite.protocol.operators.replies import as_json, refusal
from beanlite.protocol.operators.requests import (
    ChangeJobs,
    Diagnose,
    GroupJobs,
    ListClients,
    ListJobs,
    ListPolicies,
    ListRights,
    ListSchedules,
    ListTubeStats,
    OneSchedule,
    PutJobs,
    Refused,
    RelayFor,
    Request,
    SetPause,
    SetPolicy,
    SetSchedule,
    ShowFlow,
    WatchEvents,
    read,
)
from beanlite.protocol.operators.scheduling import list_schedules, run_schedule, set_schedule, unset_schedule
from beanlite.protocol.session import Command, Session, at_leisure

REQUEST_MAX: Final = 1 << 20  # bytes in the body of a request

_Model = TypeVar("_Model", bound=Request)


class RequestLine(Put):
    """The line of a command that takes an object, which comes next as its body."""

    __slots__ = ("carry_out", "kind", "model")

    def __init__(
        self,
        size: int,
        model: type[Request],
        carry_out: Callable[[Session, Any, int], bytes | None],
        kind: Blocked,
    ) -> None:
        super().__init__(0, 0, 0, size, ends_well=True, is_request=True)
        self.model = model
        self.carry_out = carry_out
        self.kind = kind
        """LOOKING or WORKING."""


def finish_request(session: Session, line: Put, body: bytes | None) -> bytes | None:
    """Set a request aside whose body has come. ``body`` is None if CR LF does not follow it."""
    assert isinstance(line, RequestLine)
    if body is None:
        return replies.EXPECTED_CRLF
    session.set_aside(_carry_out_request, (line, body), line.kind, len(body))
    return None


def _carry_out_request(session: Session, item: tuple[RequestLine, bytes], now_ns: int) -> bytes | None:
    line, body = item
    try:
        request = read(line.model, body)
        return replies.BAD_FORMAT if request is None else line.carry_out(session, request, now_ns)
    except Refused as why:
        reply = refusal(str(why))
    except TooDeep:
        reply = refusal("the order of a queue is not known so far from its head; ask for the order of ids")
    session.count_bytes(len(reply))
    return reply


def watch_events(session: Session, request: WatchEvents, now_ns: int) -> bytes:
    """Send the client the events of jobs from now on."""
    session.service.watch(session.client, request.tube, request.what, now_ns)
    return session.ok_reply(as_json({}))


def act_for(session: Session, person: str, _now_ns: int) -> bytes:
    """Have the client act for a person, and with the rights of that person, from its first command on."""
    if session.is_known:  # it may watch tubes, or hold jobs, to which the person has no right
        session.service.unauthorized(session.client.peer.address, "act-for")
        return replies.UNAUTHORIZED
    session.person = person
    session.service.act_for(session.client, person)
    return replies.ACTING


def relay_for_client(session: Session, request: RelayFor, _now_ns: int) -> bytes:
    """Have a router's connection be that of its client, whose first line comes next."""
    relay_for, names = session.service.relay_for, request.names or []
    if relay_for is None or not relay_for(session.client, request.address, names, request.private is True):
        session.service.unauthorized(session.client.peer.address, "relay-for")
        return replies.UNAUTHORIZED
    session.is_known = False
    session.unknown = 0
    return session.ok_reply(as_json({}))


def list_rights(session: Session, _request: ListRights, _now_ns: int) -> bytes:
    """Tell the client what it may do."""
    rights = session.rights
    grants = [] if rights is None else sorted(rights.grants)
    return session.ok_reply(
        as_json(
            {
                "everything": rights is None or rights.everything,
                "rights": [{"role": role, "tubes": pattern.decode()} for role, pattern in grants],
            }
        )
    )


class RequestCommand(Command):
    """A command that takes an object, and what carries out the request when that has come."""

    __slots__ = ("kind", "model", "request")

    def __init__(
        self,
        word: bytes,
        model: type[Request],
        request: Callable[[Session, Any, int], bytes | None],
        kind: Blocked,
    ) -> None:
        super().__init__(word, arguments.parse_size, self.receive, in_stats=False)
        self.model = model
        self.request = request
        self.kind = kind

    def receive(self, session: Session, size: int, _now_ns: int) -> bytes | None:
        """Carry out the line: have the object received that comes next."""
        receive_request(session, RequestLine(size, self.model, self.request, self.kind))
        return None


class FirstRequestCommand(RequestCommand):
    """A command that takes an object, and has to be the first that the client gives."""

    __slots__ = ()

    def receive(self, session: Session, size: int, now_ns: int) -> bytes | None:
        """Carry out the line, or refuse it if the client may hold or watch something already."""
        if not session.is_known:
            return super().receive(session, size, now_ns)
        session.service.unauthorized(session.client.peer.address, self.word.decode())
        session.refuse(RequestLine(size, self.model, self.request, self.kind), replies.UNAUTHORIZED)
        return None


def receive_request(session: Session, line: RequestLine) -> None:
    """Have the object received that follows a line."""
    if line.size > REQUEST_MAX:
        session.refuse(line, refusal(f"the body of a request has at most {REQUEST_MAX} bytes"))
    else:
        session.put = line


def _taking(
    word: bytes,
    model: type[_Model],
    carry_out: Callable[[Session, _Model, int], bytes | None],
    kind: Blocked = LOOKING,
) -> Command:
    """Make a command that takes an object described by ``model``; ``kind``: WORKING if it may change jobs."""
    return RequestCommand(word, model, carry_out, kind)


def new_operator_commands() -> list[Command]:
    """Return all operators' commands, with counts of 0."""
    return [
        _taking(b"list-jobs", ListJobs, list_jobs),
        _taking(b"group-jobs", GroupJobs, group_jobs),
        Command(b"show-job", arguments.parse_id, at_leisure(show_job), in_stats=False),
        _taking(b"list-tube-stats", ListTubeStats, list_tube_stats),
        _taking(b"list-clients", ListClients, list_clients),
        _taking(b"diagnose", Diagnose, diagnose),
        _taking(b"show-flow", ShowFlow, show_flow),
        _taking(b"change-jobs", ChangeJobs, change_jobs, WORKING),
        _taking(b"set-pause", SetPause, set_pause, WORKING),
        _taking(b"put-jobs", PutJobs, put_jobs, WORKING),
        _taking(b"set-schedule", SetSchedule, set_schedule, WORKING),
        _taking(b"unset-schedule", OneSchedule, unset_schedule, WORKING),
        _taking(b"run-schedule", OneSchedule, run_schedule, WORKING),
        _taking(b"list-schedules", ListSchedules, list_schedules),
        _taking(b"watch-events", WatchEvents, watch_events),
        _taking(b"set-policy", SetPolicy, set_policy, WORKING),
        _taking(b"list-policies", ListPolicies, list_policies),
        _taking(b"list-rights", ListRights, list_rights),
        FirstRequestCommand(b"relay-for", RelayFor, relay_for_client, LOOKING),
        Command(b"act-for", arguments.parse_person, act_for, in_stats=False),
    ]
