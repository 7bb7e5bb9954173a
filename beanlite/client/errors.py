"""What can go wrong for a client.

::

    ClientError
    ├── CannotConnect       no server can be reached, the first time
    ├── ConnectionLost      the connection ended before the answer came
    │   ├── PutUnknown      of a put: the job may be stored, or may not
    │   └── JobLost         the job is not this client's any more
    ├── Declined            the server's answer is a refusal
    │   ├── TimedOut, DeadlineSoon, NotFound, NotIgnored, Buried
    │   ├── JobTooBig, Draining, OutOfMemory
    │   └── Unauthorized, UnknownCommand, BadFormat, InternalError
    ├── SomePutsFailed      of several puts at once
    └── UnexpectedReply     the other end does not speak the protocol

What a program gets wrong, such as a name that no tube can have, is a ValueError.
"""

from typing import Final, Self

from beanlite.client.plain import in_plain_words


class ClientError(Exception):
    """Any error of the client."""


class CannotConnect(ClientError):
    """No server can be reached: it does not run, the address is another one, TLS fails, or it can't do anything now."""


class ConnectionLost(ClientError):
    """The connection ended before the answer came: the command may have been carried out, or may not.

    The client connects again by itself. Commands that change nothing, such as ``stats``, are repeated by it and never
    raise this.
    """


class PutUnknown(ConnectionLost):
    """The connection ended before a put was answered: the job may be stored, or may not.

    The client does not repeat the put. If you do, the job may be there twice, unless the tube has the policy ``unique``
    of beanlite's, with which the same body is not stored again.
    """


class JobLost(ConnectionLost):
    """The connection on which the job was reserved is gone, and the job is not this client's any more.

    The server gives it to another client. If the connection ended while the command was under way, the command may
    have been carried out all the same.
    """


class Declined(ClientError):
    """The server's answer is a refusal; nothing has changed, unless stated otherwise."""


class TimedOut(Declined):
    """No job became ready within the time that ``reserve`` was to wait."""


class DeadlineSoon(Declined):
    """A job that this connection has reserved is in the last second of its ttr: touch it or finish it.

    Only the blocking client gets this: the other one never waits on a connection that has jobs.
    """


class NotFound(Declined):
    """There is no such job or tube, or the job is not this client's, as when its ttr has ended."""


class NotIgnored(Declined):
    """The only tube that is watched can't be ignored."""


class Buried(Declined):
    """The server had no memory to take the job into the queue, and has buried it instead; ``job_id`` is its id.

    A released job is buried as well; then ``job_id`` is 0.
    """

    job_id: int = 0


class JobTooBig(Declined):
    """The body is larger than the server accepts."""


class Draining(Declined):
    """The server takes no more jobs until it is restarted."""


class OutOfMemory(Declined):
    """The server has no room: its memory or disk is full, or there are as many tubes, or jobs in one, as may be."""


class Unauthorized(Declined):
    """The server does not accept the token, or no rule of it allows the command."""


class UnknownCommand(Declined):
    """The server does not know the command: it is another one, or older than this client."""


class BadFormat(Declined):
    """The server does not understand the command, or says that its body has the wrong size."""


class InternalError(Declined):
    """The server has met with a bug of its own."""


class SomePutsFailed(ClientError):
    """Of several puts, some have failed: ``ids`` has the id of each job or None, ``errors`` the errors by position."""

    def __init__(self, ids: list[int | None], errors: dict[int, ClientError]) -> None:
        first = next(iter(errors.values()))
        super().__init__(f"{len(errors)} of {len(ids)} puts failed, the first with: {type(first).__name__}: {first}")
        self.ids = ids
        self.errors = errors

    def __reduce__(self) -> tuple[type[Self], tuple[list[int | None], dict[int, ClientError]]]:
        """Let it be pickled, for a pool of processes: otherwise it would be made anew from its text alone."""
        return type(self), (self.ids, self.errors)


class UnexpectedReply(ClientError):
    """What came is no reply of the protocol, or not to what was asked; the connection is closed."""


class NotSent(ConnectionLost):
    """The connection ended before the command was sent, or the command changes nothing: it can be repeated."""


DECLINED: Final[dict[bytes, type[Declined]]] = {
    b"TIMED_OUT": TimedOut,
    b"DEADLINE_SOON": DeadlineSoon,
    b"NOT_FOUND": NotFound,
    b"NOT_IGNORED": NotIgnored,
    b"BURIED": Buried,
    b"JOB_TOO_BIG": JobTooBig,
    b"DRAINING": Draining,
    b"OUT_OF_MEMORY": OutOfMemory,
    b"UNAUTHORIZED": Unauthorized,
    b"UNKNOWN_COMMAND": UnknownCommand,
    b"BAD_FORMAT": BadFormat,
    b"EXPECTED_CRLF": BadFormat,
    b"INTERNAL_ERROR": InternalError,
}
"""What each of the protocol's refusals is raised as."""


UNFIT: Final = (ConnectionLost, UnexpectedReply, InternalError, OutOfMemory)
"""What ends a connection before it can be used; a router says INTERNAL_ERROR while the server behind it is away."""


def cannot_connect(where: object, error: Exception) -> CannotConnect:
    """Return the error for what has kept a client from a server."""
    return CannotConnect(f"no server can be reached at {where}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return the words of what tells more: the error of a connection that has ended, or its cause."""
    cause = error.__cause__
    told = error if cause is None or isinstance(cause, ConnectionError) else cause
    return in_plain_words(told) if isinstance(told, OSError) else str(told)


def declined(line: bytes) -> Declined | None:
    """Return the error for a line of the server's; None if it is no refusal."""
    word, _, rest = line.partition(b" ")
    kind = DECLINED.get(word)
    if kind is None:
        return None
    error = kind(line.decode(errors="replace"))
    if isinstance(error, Buried) and rest.isdigit():
        error.job_id = int(rest)
    return error
