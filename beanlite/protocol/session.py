"""The state of a session: its client, its replies, and why it may be blocked.

This is what the commands see and change. ``framing`` turns bytes into commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from beanlite.core.access import Rights
from beanlite.core.engine import Engine
from beanlite.core.heap import KeyHeap
from beanlite.core.job import Job
from beanlite.core.tube import Client
from beanlite.protocol.arguments import Put
from beanlite.protocol.blocked import FETCHING, LOOKING, REPLETE, Blocked
from beanlite.protocol.replies import BAD_FORMAT, OK, RESERVED, with_job
from beanlite.protocol.stats import Facts

# Bytes of bodies in replies that are not sent yet; beyond that the client has to read some first.
REPLIES_MAX: Final = 1 << 20
# Every error reply is shorter than this.
ERROR_BYTES: Final = 20
# What a reply takes in memory in addition to the bodies in it, at most.
REPLY_BYTES: Final = 120


_Given = TypeVar("_Given")


class Command:
    """A command of a server: its word, how its arguments are read, what carries it out, and how often it was given.

    ``read`` is None if the command takes no arguments. It returns None if they are malformed; otherwise the command is
    counted and carried out. ``in_stats``: the statistics report the count.
    """

    __slots__ = ("carry_out", "count", "in_stats", "read", "word")

    def __init__(
        self,
        word: bytes,
        read: Callable[[bytes], _Given | None] | None,
        carry_out: Callable[[Session, _Given, int], bytes | None],
        *,
        in_stats: bool = True,
    ) -> None:
        self.word = word
        self.read: Callable[[bytes], Any] | None = read
        self.carry_out: Callable[[Session, Any, int], bytes | None] = carry_out
        self.in_stats = in_stats
        self.count = 0

    def give(self, session: Session, args: bytes, now_ns: int) -> bytes | None:
        """Read the arguments, and carry out the command unless they are malformed."""
        read = self.read
        given: Any = args if read is None else read(args)
        if given is None:
            return BAD_FORMAT
        self.count += 1
        return self.carry_out(session, given, now_ns)


def at_leisure(
    carry_out: Callable[[Session, _Given, int], bytes | None], kind: Blocked = LOOKING
) -> Callable[[Session, _Given, int], bytes | None]:
    """Make a command that takes long: where it is read it is only set aside, until its turn has come."""

    def set_aside(session: Session, given: _Given, _now_ns: int) -> None:
        session.set_aside(carry_out, given, kind)

    return set_aside


class Words:
    """The words that a session knows, with their commands."""

    __slots__ = ("_delete", "_put", "_reserve", "bare", "operators", "with_arguments")

    def __init__(self, commands: list[Command], operator_commands: list[Command]) -> None:
        self.operators = {command.word: command for command in operator_commands}
        self.bare = {command.word: command for command in commands if command.read is None}
        self.with_arguments = {command.word: command for command in commands if command.read is not None}
        self._put = self.with_arguments[b"put"]
        self._reserve = self.bare[b"reserve"]
        self._delete = self.with_arguments[b"delete"]

    def find(self, word: bytes, *, bare: bool) -> Command | None:
        """Return the command with this word; ``bare``: no blank follows.

        The three that every job needs are compared first: when this is compiled, that costs a part of a lookup.
        """
        if bare:
            return self._reserve if word == b"reserve" else self.bare.get(word)
        if word == b"put":
            return self._put
        return self._delete if word == b"delete" else self.with_arguments.get(word)


class Service:
    """What the sessions of a server share."""

    __slots__ = (
        "act_for",
        "buffered",
        "commands",
        "contact_of",
        "engine",
        "errors",
        "facts",
        "journaled",
        "max_job_size",
        "policies_changed",
        "policies_file",
        "refused",
        "relay_for",
        "unauthorized",
        "utc_s",
        "watch",
        "words",
    )

    def __init__(
        self,
        engine: Engine,
        *,
        max_job_size: int,
        facts: Callable[[], Facts],
        commands: list[Command],
        operator_commands: list[Command],
        refused: Callable[[str], None],
        buffered: Callable[[Client], int],
        watch: Callable[[Client, bytes | None, list[str] | None, int], None],
        utc_s: Callable[[int], float],
        journaled: bool,
    ) -> None:
        """``refused`` is called with the limit that refuses a client.

        ``buffered`` returns how many bytes are buffered for a client; ``watch`` has a client sent events. ``utc_s``
        converts a time of the clock to UTC.
        """
        self.engine = engine
        self.max_job_size = max_job_size
        self.journaled = journaled
        self.facts = facts
        self.refused = refused
        self.buffered = buffered
        self.watch = watch
        self.utc_s = utc_s
        self.commands = commands
        self.errors: dict[bytes, int] | None = None
        """How often each of these error replies was given; None unless they are to be counted."""
        self.policies_file: str | None = None
        """The file that policies come from; None: operators set them."""
        self.policies_changed: Callable[[str, dict[bytes, str]], None] = _untold
        """Called with who has changed policies, and with what was changed, by pattern."""
        self.unauthorized: Callable[[str, str], None] = _untold
        """Called with the client and the word that it is refused."""
        self.act_for: Callable[[Client, str], None] = _untold
        """Called with a client and the person for whom it acts from now on; gives it the rights of that person."""
        self.relay_for: Callable[[Client, str, list[str], bool], bool] | None = None
        """As ``ClientGate.relay_for``."""
        self.contact_of: Callable[[Client], tuple[int, int, str | None] | None] = _unknown
        """Returns when a client connected, when it last sent something, and its last word; None: that is not known."""
        self.words = Words(commands, operator_commands)
        """The commands of clients that may do everything."""


def _untold(_who: object, _what: object) -> None:
    """Hear of something that a client or an operator has done, and do nothing."""


def _unknown(_client: Client) -> None:
    """Know nothing of a client."""


class Gathering:
    """Bodies that are being fetched from the journal for one reply."""

    __slots__ = ("bodies", "jobs", "kind", "then")

    def __init__(
        self, jobs: list[Job], then: Callable[[dict[Job, bytes | None], int], bytes | None], kind: Blocked
    ) -> None:
        self.jobs = jobs
        self.then = then
        self.kind = kind
        """LOOKING or WORKING if making the reply takes long, otherwise FETCHING."""
        self.bodies: dict[Job, bytes | None] = {}
        """The bodies that have come so far; None for a job that is gone."""


class Session:
    """One client's side of the protocol."""

    __slots__ = (
        "_body_bytes",
        "_held_body_bytes",
        "aside",
        "aside_bytes",
        "authenticate",
        "blocked",
        "client",
        "engine",
        "gathering",
        "half_closed",
        "is_known",
        "kick",
        "last",
        "operator",
        "person",
        "put",
        "refusal",
        "refused_bytes",
        "replies",
        "rights",
        "service",
        "unknown",
        "wait_form",
        "waits",
        "words",
    )

    def __init__(self, service: Service, address: str) -> None:
        """``address`` is the client's, recorded with what it does."""
        self.service = service
        self.engine = service.engine
        self.client = service.engine.clients.connect(address)
        self.is_known = False
        """The client has given a command other than auth, so that its lines need not be examined any more."""
        self.last: Command | None = None
        """The command that the client has given last."""
        self.unknown = 0
        """How many lines have come before the first that begins with a word of the protocol."""
        self.replies: list[bytes] = []
        """Replies that have not been taken yet."""
        self.waits = False
        """Some of these replies may leave only when the batch being gathered is stored."""
        self.blocked: Blocked | None = None
        """Why the next command is not carried out."""
        self.operator = False
        """The client may give operators' commands."""
        self.words = service.words
        """The commands of the client."""
        self.rights: Rights | None = None
        """What the client may do; None: everything that ``operator`` permits."""
        self.authenticate: Callable[[bytes], bool] | None = None
        """Gives the client the rights of a token, and returns whether there is such a token; None: there are none."""
        self.person = ""
        """The person for whom the client acts; empty if it has named none."""
        self.half_closed = False
        """The client sends no more."""
        self.put: Put | None = None
        """The put, or the request, whose body comes next."""
        self.refused_bytes = 0
        """How many bytes are still to come of a refused body."""
        self.refusal = b""
        """The reply to be given when all of that body has come."""
        self.kick: tuple[KeyHeap, int, int, int] | None = None
        """A kick under way: the queue, how many jobs are left to kick, the last key, and how many have been kicked."""
        self.gathering: Gathering | None = None
        """The bodies that are being fetched for a reply."""
        self.wait_form = RESERVED
        """How the reply begins if a job ends the client's wait."""
        self._body_bytes = 0
        """Bytes of bodies in replies that are not sent yet."""
        self._held_body_bytes = 0
        """How many of them are in replies that have been taken, to be held."""
        self.aside: Callable[[int], bytes | None] | None = None
        """What carries out the command that has been set aside."""
        self.aside_bytes = 0
        """The size of that command, if it is a request, with the bodies that have come for it or for another one."""

    def set_aside(
        self, carry_out: Callable[[Session, _Given, int], bytes | None], given: _Given, kind: Blocked, size: int = 0
    ) -> None:
        """Have a command carried out when its turn has come, because it takes long; ``kind``: LOOKING or WORKING."""
        self.aside = lambda now_ns: carry_out(self, given, now_ns)
        self.aside_bytes += size
        self.blocked = kind

    def carry_out_aside(self, now_ns: int) -> None:
        """Carry out the command that was set aside."""
        assert self.aside is not None
        carry_out, self.aside, self.blocked = self.aside, None, None
        self._finish(carry_out(now_ns))

    def _finish(self, answer: bytes | None) -> None:
        """Take the answer to a command that was set aside, or waited for bodies, unless it goes on to do so."""
        if self.gathering is None and self.aside is None:
            self.aside_bytes = 0
        if answer is not None:
            self.replies.append(answer)

    def drop_aside(self) -> None:
        """Do without the command that was set aside, and without the bodies that are being fetched."""
        self.aside = self.gathering = None
        self.aside_bytes = 0

    def refuse(self, put: Put, refusal: bytes) -> None:
        """Skip the body of a put or a request, and then answer with this refusal."""
        self.refused_bytes = put.size + 2
        self.refusal = refusal

    def job_reply(self, words: bytes, job: Job, body: bytes) -> bytes:
        """Make a reply that begins with ``words``, and has a job and its body."""
        if job.id > self.engine.ledger.stored_id:  # as in ``show``, without a call in each reserve
            self.waits = True
        if self.engine.bodies.ahead:
            self.engine.bodies.note_delivery(job)
        size = len(body)
        self._body_bytes += size
        if self._body_bytes > REPLIES_MAX:
            self.blocked = REPLETE
        return with_job(words, job.id, body)

    def show(self, job: Job) -> None:
        """Have the replies wait if they show a job that is not stored yet: no client sees what a crash could undo."""
        if job.id > self.engine.ledger.stored_id:
            self.waits = True

    def may_with(self, role: str, job: Job) -> bool:
        """Whether the client has a role on the tube in which a job is."""
        return self.rights is None or self.rights.may(role, job.tube.name)

    def still_has(self, job: Job, body: bytes) -> bool:
        """Whether the client still has a job that it reserved, now that the body has been fetched.

        If its ttr has ended and it is ready, the body is kept in memory, so that it need not be fetched once more.
        """
        self.engine.bodies.load(job, body)
        return job.holder is self.client

    def ok_reply(self, body: bytes) -> bytes:
        """Make an OK reply with statistics or a list."""
        self.count_bytes(len(body))
        return OK % (len(body), body)

    def count_bytes(self, size: int) -> None:
        """Count bytes of bodies that are to be sent, and block the client if it has to read some first."""
        self._body_bytes += size
        if self._body_bytes > REPLIES_MAX:
            self.blocked = REPLETE

    def gather(
        self,
        jobs: list[Job],
        then: Callable[[dict[Job, bytes | None], int], bytes | None],
        kind: Blocked = FETCHING,
    ) -> None:
        """Have the bodies of jobs fetched; ``then`` is called with them and the time, and returns the reply.

        It returns None if the reply comes later, like a command. ``kind``: LOOKING or WORKING if it takes long.
        """
        self.blocked = FETCHING
        self.gathering = Gathering(jobs, then, kind)

    def bring(self, job: Job, body: bytes | None) -> Blocked | None:
        """Take one of the bodies, or None if its job is gone; returns None until it was the last, then the kind."""
        gathering = self.gathering
        if gathering is None:  # the client has met a bug since
            return None
        gathering.bodies[job] = body
        self.aside_bytes += len(body or b"")
        return gathering.kind if len(gathering.bodies) == len(gathering.jobs) else None

    def answer_with_bodies(self, now_ns: int) -> None:
        """Make the reply for which bodies were gathered; to be called when all have come."""
        assert self.gathering is not None
        gathering, self.gathering, self.blocked = self.gathering, None, None
        self._finish(gathering.then(gathering.bodies, now_ns))

    @property
    def unsent_bytes(self) -> int:
        """About how many bytes the replies take that have not been taken yet."""
        return self._body_bytes - self._held_body_bytes + len(self.replies) * REPLY_BYTES

    def _count_errors(self, errors: dict[bytes, int]) -> None:
        for reply in self.replies:
            if len(reply) < ERROR_BYTES and reply in errors:  # looking up a long reply would take long
                errors[reply] += 1

    def take_replies(self, *, hold: bool = False) -> bytes:
        """Take all replies so far, to be sent now or, with ``hold``, later; then ``replies_sent`` is to be called."""
        replies = self.replies
        if self.service.errors is not None:
            self._count_errors(self.service.errors)
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        replies.clear()
        self.waits = False
        if not hold:
            self._body_bytes = 0
        self._held_body_bytes = self._body_bytes
        return data

    def replies_sent(self) -> None:
        """Note that no reply is held any more: the client may be given more bodies again."""
        self._body_bytes -= self._held_body_bytes
        self._held_body_bytes = 0
