"""The commands: what is sent for each, and the shape of the reply to it."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from beanlite.client.errors import ClientError, ConnectionLost, Declined, NotSent, PutUnknown

T = TypeVar("T")
Statistics = dict[str, int | float | str]
"""The reply to a ``stats`` command; a value that reads as a number is one."""

PRI: Final = 1024
TTR_S: Final = 60
# The most that the protocol has room for.
_NUMBER_MAX: Final = (1 << 32) - 1
_ID_MAX: Final = (1 << 64) - 1
AHEAD_MAX: Final = 1000
NOTE_BYTES_MAX: Final = 4096
BATCH_MAX: Final = 500
# How long a reserve waits at most, in seconds: beanlite refuses more, and beanstalkd takes it for no limit.
_WAIT_MAX_S: Final = (1 << 31) - 1
_TUBE: Final = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")
_FRACTION: Final = re.compile(r"-?[0-9]+\.[0-9]+")
_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]*)")
# These are text, even if all of their characters are digits.
_TEXTS: Final = frozenset({"hostname", "name", "os", "platform", "tube", "version"})


class Shape(Generic[T]):
    """How the reply to a command begins if it is carried out, what to make of it, and what a lost reply means."""

    __slots__ = ("has_body", "lost", "read", "refusal", "returns_body", "word")

    def __init__(
        self,
        word: bytes,
        read: Callable[[list[bytes], bytes], T | Declined],
        lost: type[ConnectionLost] = ConnectionLost,
        *,
        has_body: bool = False,
        returns_body: bool = False,
        refusal: bytes | None = None,
    ) -> None:
        """``read`` gets the words of the line, and the body if the reply has one.

        ``has_body``: the command has a body, and not all servers know it. ``refusal``: how a refusal begins that has a
        body; ``read`` makes a Declined of it.
        """
        self.word = word
        self.refusal = refusal
        self.read = read
        self.lost = lost
        self.has_body = has_body
        self.returns_body = returns_body


def _as_json(words: list[bytes], body: bytes) -> Any | Declined:  # noqa: ANN401 - whatever a request is answered with
    reply = json.loads(body)
    return Declined(str(reply["error"])) if words[0] == REFUSED else reply


REFUSED: Final = b"REFUSED"
_REQUEST: Final[Shape[Any]] = Shape(b"OK", _as_json, has_body=True, returns_body=True, refusal=REFUSED)
OBJECT: Final[Shape[Any]] = Shape(b"OK", _as_json, returns_body=True)
"""The reply of a command without a body that is answered with an object."""

Call = tuple[bytes, Shape[T]]
"""A command as it is sent, and the shape of its reply."""


class PeekedJob(NamedTuple):
    """A job as ``peek`` shows it, with its ``id`` and ``body``: nobody has it reserved by that."""

    id: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


def _nothing(_words: list[bytes], _body: bytes) -> None:
    return None


def _number(words: list[bytes], _body: bytes) -> int:
    return int(words[1])


def _job(words: list[bytes], body: bytes) -> tuple[int, bytes]:
    return int(words[1]), body


def _seen(words: list[bytes], body: bytes) -> PeekedJob:
    return PeekedJob(int(words[1]), body)


def _statistics(_words: list[bytes], body: bytes) -> Statistics:
    pairs = (line.partition(": ") for line in body.decode(errors="replace").splitlines())
    return {key: _value(key, text) for key, colon, text in pairs if colon}


def _value(key: str, text: str) -> int | float | str:
    if text.startswith('"'):
        return text.strip('"')
    if key not in _TEXTS:
        if _WHOLE.fullmatch(text):
            return int(text)
        if _FRACTION.fullmatch(text):
            return float(text)
    return text


def _names(_words: list[bytes], body: bytes) -> list[str]:
    lines = body.decode(errors="replace").splitlines()
    return [line[2:].strip('"') for line in lines if line.startswith("- ")]


_PUT: Final = Shape(b"INSERTED", _number, PutUnknown)
_USE: Final = Shape(b"USING", _nothing, NotSent)
_WATCHING: Final = Shape(b"WATCHING", _number, NotSent)
_RESERVE: Final = Shape(b"RESERVED", _job, NotSent, returns_body=True)
BATCH: Final = Shape(b"RESERVED", _job, NotSent, returns_body=True)
"""The reply to a reserve of several jobs, if it is a single one; otherwise their number comes before them."""
_DELETE: Final = Shape(b"DELETED", _nothing)
_RELEASE: Final = Shape(b"RELEASED", _nothing)
_BURY: Final = Shape(b"BURIED", _nothing)
_TOUCH: Final = Shape(b"TOUCHED", _nothing)
_KICK: Final = Shape(b"KICKED", _number)
_KICK_JOB: Final = Shape(b"KICKED", _nothing)
_PEEK: Final = Shape(b"FOUND", _seen, NotSent, returns_body=True)
_STATS: Final = Shape(b"OK", _statistics, NotSent, returns_body=True)
_LIST: Final = Shape(b"OK", _names, NotSent, returns_body=True)
_PAUSE: Final = Shape(b"PAUSED", _nothing)
_AUTH: Final = Shape(b"AUTHENTICATED", _nothing, NotSent)
_NAME: Final = Shape(b"NAMED", _nothing, NotSent)
_NOTE: Final = Shape(b"NOTED", _nothing, has_body=True)


def encoded(tube: str) -> bytes:
    """Return the name of a tube as it is sent. ValueError: no tube can have it."""
    if _TUBE.fullmatch(tube) is None:
        raise ValueError(f"no tube can have the name {tube!r}: it has 1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( )")
    return tube.encode()


def tubes(watch: str | Iterable[str]) -> frozenset[str]:
    """Return the tubes to be watched. ValueError: there is none, or no tube can have such a name."""
    names = frozenset([watch] if isinstance(watch, str) else watch)
    if not names:
        raise ValueError("a client watches one tube at least")
    for name in names:
        encoded(name)
    return names


def in_range(what: str, number: int, most: int = _NUMBER_MAX) -> None:
    """ValueError: the number is out of range. TypeError: it is none, or has a fraction, which would be cut off."""
    if not isinstance(number, int):
        raise TypeError(f"{what} is a whole number, not {number!r}")
    if not 0 <= number <= most:
        raise ValueError(f"{what} is from 0 to {most}, not {number}")


def check_wait(timeout_s: float) -> None:
    """ValueError: no reserve can wait so long."""
    if not -1 < timeout_s <= _WAIT_MAX_S:  # a little less than 0 is what is left of a time that is over
        raise ValueError(f"timeout_s is from 0 to {_WAIT_MAX_S}, not {timeout_s}")


def _id(number: int) -> int:
    in_range("the id of a job", number, _ID_MAX)
    return number


def put(body: bytes | str, pri: int, delay_s: int, ttr_s: int) -> Call[int]:
    """Return a put. ValueError: a number is out of range; TypeError: the body is neither bytes nor a text."""
    if isinstance(body, str):
        body = body.encode()
    elif not isinstance(body, bytes):
        body = _bytes_of(body)
    if pri is not PRI or delay_s != 0 or ttr_s is not TTR_S:  # what most puts have is right
        in_range("pri", pri)
        in_range("delay_s", delay_s)
        in_range("ttr_s", ttr_s)
    return b"put %d %d %d %d\r\n%b\r\n" % (pri, delay_s, ttr_s, len(body), body), _PUT


def _bytes_of(body: object) -> bytes:
    """Return what is in a buffer, whose len() counts items that may be wider than a byte. TypeError: it is none."""
    try:
        return bytes(memoryview(body))  # type: ignore[arg-type]
    except TypeError:
        kind = type(body).__name__
        raise TypeError(f"a body is bytes or a text, not {kind}; json.dumps makes a text of most objects") from None


def puts(bodies: Iterable[bytes | str], pri: int, delay_s: int, ttr_s: int) -> list[Call[int]]:
    """Return a put of each body. TypeError: it is a single one, whose parts would be jobs; ValueError: as ``put``."""
    if isinstance(bodies, bytes | str):
        raise TypeError("several bodies are a list, or another iterable of them")
    return [put(body, pri, delay_s, ttr_s) for body in bodies]


def use(tube: str) -> Call[None]:
    """Return a use."""
    return b"use %b\r\n" % encoded(tube), _USE


def watch(tube: str) -> Call[int]:
    """Return a watch."""
    return b"watch %b\r\n" % encoded(tube), _WATCHING


def ignore(tube: str) -> Call[int]:
    """Return an ignore."""
    return b"ignore %b\r\n" % encoded(tube), _WATCHING


RESERVE: Final = (b"reserve\r\n", _RESERVE)
"""A reserve that waits as long as it takes."""


def reserve(timeout_s: int) -> Call[tuple[int, bytes]]:
    """Return a reserve that waits so long. ValueError: the number is out of range."""
    in_range("timeout_s", timeout_s, _WAIT_MAX_S)
    return b"reserve-with-timeout %d\r\n" % timeout_s, _RESERVE


def reserve_batch(most: int) -> Call[tuple[int, bytes]]:
    """Return a reserve of so many jobs if they are ready, and otherwise of one, however long it takes."""
    return b"reserve-batch %d %d\r\n" % (min(most, BATCH_MAX), _WAIT_MAX_S), BATCH


def reserve_job(job_id: int) -> Call[tuple[int, bytes]]:
    """Return a reserve of a job that is named. ValueError: no job can have the id."""
    return b"reserve-job %d\r\n" % _id(job_id), _RESERVE


def delete(job_id: int) -> Call[None]:
    """Return a delete. ValueError: no job can have the id."""
    return b"delete %d\r\n" % _id(job_id), _DELETE


def release(job_id: int, pri: int, delay_s: int) -> Call[None]:
    """Return a release. ValueError: a number is out of range."""
    in_range("pri", pri)
    in_range("delay_s", delay_s)
    return b"release %d %d %d\r\n" % (job_id, pri, delay_s), _RELEASE


def bury(job_id: int, pri: int) -> Call[None]:
    """Return a bury. ValueError: a number is out of range."""
    in_range("pri", pri)
    return b"bury %d %d\r\n" % (job_id, pri), _BURY


def touch(job_id: int) -> Call[None]:
    """Return a touch. ValueError: no job can have the id."""
    return b"touch %d\r\n" % _id(job_id), _TOUCH


def kick(bound: int) -> Call[int]:
    """Return a kick. ValueError: the number is out of range."""
    in_range("bound", bound)
    return b"kick %d\r\n" % bound, _KICK


def kick_job(job_id: int) -> Call[None]:
    """Return a kick of one job. ValueError: no job can have the id."""
    return b"kick-job %d\r\n" % _id(job_id), _KICK_JOB


def peek(job_id: int) -> Call[PeekedJob]:
    """Return a peek at a job. ValueError: no job can have the id."""
    return b"peek %d\r\n" % _id(job_id), _PEEK


PEEK_READY: Final = (b"peek-ready\r\n", _PEEK)
PEEK_DELAYED: Final = (b"peek-delayed\r\n", _PEEK)
PEEK_BURIED: Final = (b"peek-buried\r\n", _PEEK)


def stats() -> Call[Statistics]:
    """Return a request for the server's statistics."""
    return b"stats\r\n", _STATS


def stats_job(job_id: int) -> Call[Statistics]:
    """Return a request for the statistics of a job. ValueError: no job can have the id."""
    return b"stats-job %d\r\n" % _id(job_id), _STATS


def stats_tube(tube: str) -> Call[Statistics]:
    """Return a request for the statistics of a tube."""
    return b"stats-tube %b\r\n" % encoded(tube), _STATS


def pause_tube(tube: str, pause_s: int) -> Call[None]:
    """Return a pause of a tube. ValueError: the number is out of range."""
    in_range("pause_s", pause_s)
    return b"pause-tube %b %d\r\n" % (encoded(tube), pause_s), _PAUSE


def list_tube_used() -> Call[None]:
    """Return a command that every server answers, and that changes nothing."""
    return b"list-tube-used\r\n", _USE


def list_tubes() -> Call[list[str]]:
    """Return a request for the names of all tubes."""
    return b"list-tubes\r\n", _LIST


def auth(token: str) -> Call[None]:
    """Return the token, as the first line. ValueError: it is none."""
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise ValueError("the token is empty, or has a space, or a character that is not ASCII")
    return b"auth %b\r\n" % token.encode(), _AUTH


def call_itself(text: str) -> Call[None]:
    """Return what the client calls itself. ValueError: it has a blank or a quote, is not ASCII, empty or too long."""
    if re.fullmatch("[!#-~]{1,100}", text) is None:
        raise ValueError(f"a name has 1 to 100 characters of ASCII without blanks and quotes, not {text!r}")
    return b"name %b\r\n" % text.encode(), _NAME


def note(job_id: int, text: str) -> Call[None]:
    """Return a note for a job; of a text that is too long the end."""
    data = text.replace("\0", "").encode(errors="replace")
    if len(data) > NOTE_BYTES_MAX:
        data = data[-NOTE_BYTES_MAX:].decode(errors="ignore").encode()
    return b"note %d %d\r\n%b\r\n" % (job_id, len(data), data), _NOTE


def request(word: str, wanted: dict[str, Any]) -> Call[Any]:
    """Return a command that takes an object. UnicodeEncodeError: there is no UTF-8 for a text in it."""
    body = json.dumps(wanted, ensure_ascii=False).encode()
    return b"%b %d\r\n%b\r\n" % (word.encode(), len(body), body), _REQUEST


def outcome(results: Iterable[int | ClientError]) -> tuple[list[int | None], dict[int, ClientError]]:
    """Return the ids of several puts, and the errors of those that failed by their positions."""
    ids: list[int | None] = []
    errors: dict[int, ClientError] = {}
    for at, result in enumerate(results):
        if isinstance(result, ClientError):
            errors[at] = result
            ids.append(None)
        else:
            ids.append(result)
    return ids, errors
