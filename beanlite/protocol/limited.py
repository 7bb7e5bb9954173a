"""The commands of a client that may not do everything: what role each word takes, and on which tubes.

Such a client has a table of words of its own, in which a word stands for a guard, unless the client may use it on all
tubes. So other clients pay nothing for that. ``operators/named_tubes.py`` says what is examined in requests.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Any, Final

from beanlite.core.access import ALL_TUBES, ANY, OPERATOR, PRODUCER, READER, WORKER, WORKER_OR_READER, Rights
from beanlite.protocol import replies
from beanlite.protocol.arguments import Put
from beanlite.protocol.blocked import LOOKING
from beanlite.protocol.noting import WORD as NOTE_WORD
from beanlite.protocol.operators.commands import RequestCommand, RequestLine, receive_request
from beanlite.protocol.operators.lists import TUBES_LOOKED_AT
from beanlite.protocol.operators.named_tubes import permits_request
from beanlite.protocol.operators.requests import Request
from beanlite.protocol.session import Command, Service, Session, Words
from beanlite.protocol.stats import tube_list

# The tube that a client uses and watches from the start.
_DEFAULT: Final = b"default"
# What the name of a tube takes in a list that is not complete.
_NAME_BYTES: Final = 8
_serial: Final = attrgetter("serial")

# What a role is needed on: the tube that the client uses, the one that is named, all that it watches, that of the job,
# or any; where any will do, lists show no other tubes, and requests are examined further. What takes a role on all is
# for clients that may do everything.
USED: Final = "used"
NAMED: Final = "named"
WATCHED: Final = "watched"
BY_ID: Final = "by id"
SOME: Final = "some"
ALL: Final = "all"

# The role that each word takes, and on what.
ROLE_OF: Final[dict[bytes, tuple[str, str]]] = {
    b"put": (PRODUCER, USED),
    b"use": (ANY, NAMED),
    b"reserve": (WORKER, WATCHED),
    b"reserve-with-timeout": (WORKER, WATCHED),
    b"reserve-batch": (WORKER, WATCHED),
    b"reserve-job": (WORKER, BY_ID),
    b"offer": (WORKER, WATCHED),
    b"take": (WORKER, BY_ID),
    b"decline": (WORKER, BY_ID),
    b"delete": (WORKER, BY_ID),
    b"release": (WORKER, BY_ID),
    b"bury": (WORKER, BY_ID),
    b"touch": (WORKER, BY_ID),
    b"kick": (WORKER, USED),
    b"kick-job": (WORKER, BY_ID),
    b"note": (WORKER, SOME),  # which tube it concerns is known when its text has come
    b"watch": (WORKER, NAMED),
    b"ignore": (WORKER, SOME),
    b"peek": (READER, BY_ID),
    b"peek-ready": (READER, USED),
    b"peek-delayed": (READER, USED),
    b"peek-buried": (READER, USED),
    b"stats-job": (WORKER_OR_READER, BY_ID),
    b"stats-tube": (WORKER_OR_READER, NAMED),
    b"list-tubes": (READER, SOME),
    b"pause-tube": (OPERATOR, NAMED),
    b"put-jobs": (PRODUCER, SOME),
    b"list-jobs": (READER, SOME),
    b"group-jobs": (READER, SOME),
    b"show-job": (READER, BY_ID),
    b"list-tube-stats": (READER, SOME),
    b"list-clients": (READER, SOME),
    b"diagnose": (READER, SOME),
    b"show-flow": (READER, SOME),
    b"watch-events": (READER, SOME),
    b"list-policies": (READER, SOME),
    b"list-schedules": (READER, SOME),
    b"change-jobs": (OPERATOR, SOME),
    b"set-pause": (OPERATOR, SOME),
    b"set-policy": (OPERATOR, SOME),
    b"set-schedule": (OPERATOR, SOME),
    b"unset-schedule": (OPERATOR, SOME),
    b"run-schedule": (OPERATOR, SOME),
    b"act-for": (OPERATOR, ALL),
    b"relay-for": (OPERATOR, ALL),
}
# The words of everybody.
EVERYBODY: Final = frozenset({b"stats", b"list-tube-used", b"list-tubes-watched", b"name", b"list-rights"})
# Words that are in no table, and that everybody has.
IN_NO_TABLE: Final = frozenset({b"auth", b"quit"})


def limited_words(service: Service, rights: Rights) -> Words:
    """Return the words of a client with these rights."""
    every = service.words
    commands = [*every.bare.values(), *every.with_arguments.values()]
    return Words(
        [_limited(command, rights) for command in commands],
        [_limited(command, rights) for command in every.operators.values()],
    )


def _limited(command: Command, rights: Rights) -> Command:
    """Return a command, or what stands for it if these rights do not include it for all tubes."""
    word = command.word
    if word in EVERYBODY:
        return command
    role, on = ROLE_OF[word]
    if rights.may(role, ALL_TUBES) or (on == WATCHED and rights.may(role, _DEFAULT)):
        return command
    if not rights.has(role) or on == ALL:
        return Denial(command)
    if isinstance(command, RequestCommand):
        return GuardedRequest(command)
    if word == b"list-tubes":
        return TubesList(command)
    return command if on == SOME else Guard(command, role, on)


class Denial(Command):
    """A command that the client may not give."""

    __slots__ = ("_takes_body",)

    def __init__(self, command: Command) -> None:
        super().__init__(command.word, command.read, command.carry_out)
        self._takes_body = isinstance(command, RequestCommand) or command.word == NOTE_WORD

    def give(self, session: Session, args: bytes, now_ns: int) -> bytes | None:  # noqa: ARG002 - as for any command
        """Refuse it, and skip its body, if it has one."""
        given: Any = args if self.read is None else self.read(args)
        if given is None:
            return replies.BAD_FORMAT
        if self._takes_body:
            size = given[1] if isinstance(given, tuple) else given
            given = Put(0, 0, 0, size, ends_well=True, is_request=True)
        return deny(session, self.word, given)


class Guard(Command):
    """A command that the client may give for some tubes only."""

    __slots__ = ("_command", "_on", "_role")

    def __init__(self, command: Command, role: str, on: str) -> None:
        super().__init__(command.word, command.read, command.carry_out)
        self._command = command
        self._role = role
        self._on = on

    def give(self, session: Session, args: bytes, now_ns: int) -> bytes | None:
        """Give the command, if it concerns a tube of the client."""
        given: Any = args if self.read is None else self.read(args)
        if given is None:
            return replies.BAD_FORMAT
        rights, on = session.rights, self._on
        assert rights is not None
        if on == BY_ID:
            return self._give_by_id(session, given[0] if isinstance(given, tuple) else given, args, now_ns)
        if on == WATCHED:  # the client could not have begun to watch another tube that is not its own
            is_permitted = session.engine.tubes.get(_DEFAULT) not in session.client.watched
        elif on == USED:
            is_permitted = rights.may(self._role, session.client.use.name)
        else:
            is_permitted = rights.may(self._role, given[0] if isinstance(given, tuple) else given)
        return self._command.give(session, args, now_ns) if is_permitted else deny(session, self.word, given)

    def _give_by_id(self, session: Session, job_id: int, args: bytes, now_ns: int) -> bytes | None:
        if not self._has(session, job_id):
            return replies.NOT_FOUND
        answer = self._command.give(session, args, now_ns)
        aside = session.aside
        if aside is not None:
            # Until its turn comes the job may have been moved.
            session.aside = lambda then_ns: aside(then_ns) if self._has(session, job_id) else replies.NOT_FOUND
        return answer

    def _has(self, session: Session, job_id: int) -> bool:
        job = session.engine.jobs.find(job_id)
        return job is not None and session.may_with(self._role, job)


class GuardedRequest(Command):
    """A command that takes an object, which is examined before the request is carried out."""

    __slots__ = ("_command",)

    def __init__(self, command: RequestCommand) -> None:
        super().__init__(command.word, command.read, command.carry_out, in_stats=False)
        self._command = command

    def give(self, session: Session, args: bytes, now_ns: int) -> bytes | None:  # noqa: ARG002 - as for any command
        """Have the object received."""
        command = self._command
        size = None if command.read is None else command.read(args)
        if size is None:
            return replies.BAD_FORMAT
        command.count += 1
        receive_request(session, RequestLine(size, command.model, self._carry_out, command.kind))
        return None

    def _carry_out(self, session: Session, request: Request, now_ns: int) -> bytes | None:
        if not permits_request(session, request):
            return deny(session, self.word, request)
        return self._command.request(session, request, now_ns)


class TubesList(Command):
    """The list of the tubes that the client may look at."""

    __slots__ = ("_command",)

    def __init__(self, command: Command) -> None:
        super().__init__(command.word, command.read, command.carry_out)
        self._command = command

    def give(self, session: Session, args: bytes, now_ns: int) -> bytes | None:  # noqa: ARG002 - as for any command
        """Count the command, and set it aside as the command itself is."""
        self._command.count += 1
        session.set_aside(_list_tubes, args, LOOKING)
        return None


def _list_tubes(session: Session, _none: bytes, now_ns: int) -> bytes | None:
    return _list_more(session, (-1, []), now_ns)


def _list_more(session: Session, so_far: tuple[int, list[bytes]], _now_ns: int) -> bytes | None:
    """Look at the tubes behind the last one, as many as a slice has, and set the rest aside; there may be very many."""
    last, found = so_far
    rights, tubes = session.rights, session.engine.tubes_in_order()
    first = bisect_right(tubes, last, key=_serial)
    stop = first + (TUBES_LOOKED_AT if rights is None else max(1, TUBES_LOOKED_AT // rights.looks(READER)))
    more = [tube.name for tube in tubes[first:stop] if rights is None or rights.may(READER, tube.name)]
    found += more
    if stop >= len(tubes):
        return session.ok_reply(tube_list(list(dict.fromkeys(found))))  # one may have gone and come again meanwhile
    session.set_aside(_list_more, (tubes[stop - 1].serial, found), LOOKING, len(more) * _NAME_BYTES)
    return None


def deny(session: Session, word: bytes, given: object) -> bytes | None:
    """Answer that the client may not give this command; the body of a put or a request is skipped first."""
    session.service.unauthorized(session.client.peer.address, word.decode())
    if isinstance(given, Put):
        if not given.ends_well and given.size <= session.service.max_job_size:
            return replies.BAD_FORMAT  # as of a put that is permitted, whose body is not skipped, either
        session.refuse(given, replies.UNAUTHORIZED)
        return None
    return replies.UNAUTHORIZED
