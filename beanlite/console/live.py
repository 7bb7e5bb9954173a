"""A connection to a running server, for the operators' commands that are described in docs/protocol.md."""

import base64
import getpass
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Self, TypeVar

from beanlite.beanstalk.client import TIMEOUT_S, Client, Server, Unauthorized, Unreachable
from beanlite.client import calls, errors
from beanlite.client.calls import Call, Shape
from beanlite.client.errors import Declined, NotFound, UnknownCommand
from beanlite.console.filters import Record, encode_tube
from beanlite.console.names import Names
from beanlite.core.access import EVERYTHING, Rights
from beanlite.core.tube import PERSON_BYTES_MAX, is_person
from beanlite.errors import BeanliteError, ConfigError
from beanlite.settings.defaults import PAGE_TOKEN, TOKEN

Answer = TypeVar("Answer")

# What the protocol's words for a refusal leave open.
_REFUSALS: Final = {
    "OUT_OF_MEMORY": "the disk is full, max_memory is used up, there are max_tubes tubes, or max_jobs jobs in the tube",
    "JOB_TOO_BIG": "the body is larger than max_job_size",
    "UNAUTHORIZED": (
        "no rule of the server allows it (see `beanlite access list`);"
        f" {TOKEN} is sent over tls:// and to a Unix socket only"
    ),
    "INTERNAL_ERROR": "a bug of the server's or, behind a router, a server that is away",
    "DRAINING": "no more jobs are taken until the server is restarted",
    "UNKNOWN_COMMAND": "it is older than this program",
}
_ACTING: Final[Shape[None]] = Shape(b"ACTING", lambda _words, _body: None)
_UNKNOWN_KEY: Final = ": unknown key"
# Where to continue in a list of a server's.
_CURSOR: Final = re.compile("[0-9]{1,40}-[0-9]{1,20}")
# The end of a person's name that the server can't take.
_DIGESTED: Final = re.compile("…[0-9a-f]{16}$")


@contextmanager
def telling_doubt(whether: str) -> Iterator[None]:
    """Add to the error of a connection that ends in this block what is not known, such as whether "the job was put"."""
    try:
        yield
    except Unreachable as error:
        raise Unreachable(f"{error}; it is not known whether {whether}") from error


def by_me() -> Record:
    """Return the person who runs the command as a part of a request."""
    return on_behalf_of(login_name())


def login_name() -> str:
    """Return the login name of the person who runs the command; empty if the system has none."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # Python 3.13 raises the latter
        return ""


def on_behalf_of(person: str) -> Record:
    """Return the person as a part of a request, with the name as the server accepts it; empty without a name."""
    name = _printable(person, PERSON_BYTES_MAX)
    return {"by": name} if name else {}


def _printable(person: str, max_bytes: int) -> str:
    printable = "".join(character if character.isprintable() else "·" for character in person)
    return printable.encode()[:max_bytes].decode(errors="ignore")


def identity_for(person: str) -> str:
    """Return the name by which a person has rights: what the server can't take is told apart by a digest.

    So is a name that looks as if it had been, since people may choose their names.
    """
    if is_person(person) and _DIGESTED.search(person) is None:
        return person
    end = f"…{sha256(person.encode()).hexdigest()[:16]}"
    return _printable(person, PERSON_BYTES_MAX - len(end.encode())) + end


class Live(Names):
    """A connection to a server. BeanliteError: it can't be reached, or refuses or does not know a command."""

    def __init__(self, address: Server, person: str = "", within_s: float = TIMEOUT_S) -> None:
        """Connect, and act for a person, if one is named; replies have to come within a time.

        ConfigError: a file for TLS can't be used.
        """
        self.client = Client(address, within_s)
        self.name = self.client.name
        self.person = person
        self._understands = False
        if person:
            try:
                self._act_for(person)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    # A single server is asked as several are. It is shown without a name, but ids may have the one that it was given.
    server = ""
    fleet = None
    away: Mapping[str, str] = MappingProxyType({})

    @property
    def lives(self) -> dict[str, Self]:
        """The server by its name."""
        return {"": self}

    def each(self, question: Callable[[Self], Answer]) -> dict[str, Answer]:
        """Return the answer of each server."""
        return {"": question(self)}

    def _act_for(self, person: str) -> None:
        try:
            self.client.ask((b"act-for %b\r\n" % identity_for(person).encode(), _ACTING))
        except errors.Unauthorized:
            why = "may not act for others; give it the role operator on all tubes"
            raise Unauthorized(f"By the rules of the server at {self.name} this page {why}") from None
        except Declined:
            raise self._misunderstood() from None

    def stats(self) -> Record:
        """Return the reply to ``stats``, its numbers as numbers."""
        return self._answer("stats", calls.stats())

    def list_jobs(self, request: Record) -> Record:
        """Return a slice of the jobs. ConfigError: the cursor is none, or is a file's."""
        after = request.get("after")
        if after is not None and _CURSOR.fullmatch(after) is None:
            raise ConfigError(f"--after: {after!r} is not from a list of a server's jobs")
        return self.ask("list-jobs", request)

    def group_jobs(self, request: Record) -> Record:
        """Return how many jobs of a slice have each value."""
        return self.ask("group-jobs", request)

    def list_tubes(self, request: Record) -> Record:
        """Return a slice of the tubes."""
        return self.ask("list-tube-stats", request)

    def list_clients(self, request: Record) -> Record:
        """Return a slice of the clients."""
        return self.ask("list-clients", request)

    def diagnose(self, request: Record) -> Record:
        """Return what is wrong with the tubes that a request names, and with the server."""
        return self.ask("diagnose", request)

    def list_policies(self, request: Record) -> Record:
        """Return all policies or, with ``tube``, those that hold for that tube."""
        return self.ask("list-policies", request)

    def list_schedules(self, request: Record) -> Record:
        """Return a slice of the schedules."""
        return self.ask("list-schedules", request)

    def show_job(self, job_id: int) -> Record | None:
        """Return all facts about a job, its body as bytes; None if there is no such job."""
        self.check()
        job = self._read("show-job", (b"show-job %d\r\n" % job_id, calls.OBJECT))
        return None if job is None else {**job, "body": base64.b64decode(job["body"])}

    def ask(self, word: str, request: Record) -> Record:
        """Return the reply to a command that takes a JSON object. ConfigError: something in it is no text."""
        reply = self._ask(word, request)
        if reply is None:
            raise BeanliteError(f"{self.name} answered NOT_FOUND to {word}")
        return reply

    def _ask(self, word: str, request: Record) -> Record | None:
        """Return the reply, or None if it is NOT_FOUND."""
        self.check()
        return self._read(word, self._call(word, request))

    def _call(self, word: str, request: Record) -> Call[Record]:
        try:
            return calls.request(word, request)
        except UnicodeEncodeError as error:  # bytes of the command line, in Python's notation for them
            raise ConfigError(
                f"{self.name} can be asked for UTF-8 only, and not for {error.object[error.start]!r}"
            ) from None

    def rights(self) -> Rights:
        """Return what the rules of the server, if any, allow to this client."""
        reply = self.ask("list-rights", {})
        grants = [(each["role"], each["tubes"].encode()) for each in reply["rights"]]
        return EVERYTHING if reply["everything"] else Rights(grants)

    def use(self, tube: str) -> None:
        """Use a tube, which exists from then on, and until the connection ends."""
        self._answer("use", calls.list_tube_used(), tube)

    def do_nothing(self) -> None:
        """Wait for the answer to a command that does nothing."""
        self._answer("list-tube-used", calls.list_tube_used())

    def pause(self, tube: str, pause_s: int, by: Record) -> None:
        """Pause a tube: nothing is reserved from it for ``pause_s`` seconds. ConfigError: no tube has such a name.

        ``by``: the person as a part of a request, of whom a server that is not beanlite is not told.
        """
        encode_tube(tube)
        if self._understands_us():
            if self._ask("set-pause", {"tube": tube, "pause_s": pause_s, **by}) is None:
                raise self.no_tube(tube)
            return
        try:
            self.client.ask(calls.pause_tube(tube, pause_s))
        except NotFound:
            raise self.no_tube(tube) from None
        except Declined as error:
            raise self._refusal("pause-tube", error) from error

    def watch(self, request: Record) -> Iterator[Record]:
        """Yield events as they happen, until the connection is lost, which raises BeanliteError."""
        self.check()
        try:
            replies = self.client.follow(self._call("watch-events", request), b"EVENT")
            next(replies)
            yield from replies
        except Declined as error:
            raise self._refusal("watch-events", error) from error

    def check(self) -> None:
        """Check that the server knows beanlite's own commands."""
        if not self._understands_us():
            raise self._misunderstood()

    def _understands_us(self) -> bool:
        """Whether the server knows beanlite's own commands, by one that is harmless to other servers."""
        if not self._understands:
            try:
                self.client.ask((b"show-job 0\r\n", calls.OBJECT))
            except UnknownCommand:
                return False
            except Declined:
                self._understands = True
        return self._understands

    def _misunderstood(self) -> BeanliteError:
        why = "it is another server, an older one, or its setting operators does not have this address"
        with suppress(BeanliteError):
            if "router-servers" in self.stats():
                why = "it is a router; name its servers by --servers, or one of them by --connect"
        return BeanliteError(f"{self.name} does not understand the commands of operators: {why}")

    def _refusal(self, word: str, error: Declined) -> BeanliteError:
        """Return the error of a command that the server has refused."""
        text = f"{self.name} refused {word}: {explanation(str(error))}"
        if not isinstance(error, errors.Unauthorized):
            return BeanliteError(text)
        who = f"person:{identity_for(self.person)}" if self.person else "page" if PAGE_TOKEN in os.environ else ""
        return Unauthorized(f"No rule of the server at {self.name} allows {word} to {who}" if who else text)

    def _read(self, word: str, call: Call[Record]) -> Record | None:
        try:
            return self.client.ask(call)
        except NotFound:
            return None
        except Declined as error:
            raise self._refusal(word, error) from error

    def _answer(self, word: str, call: Call[Answer], tube: str | None = None) -> Answer:
        try:
            return self.client.ask(call, tube)
        except Declined as error:
            raise self._refusal(word, error) from error


def explanation(word: str) -> str:
    """Return what a server has answered, with what it means if it is a word for a refusal."""
    if word.endswith(_UNKNOWN_KEY):
        return f"{word}; {_REFUSALS['UNKNOWN_COMMAND']}"
    return f"{word} ({_REFUSALS[word]})" if word in _REFUSALS else word
