"""What requests share: the options, the connections to the server, and the users."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic

from starlette.requests import Request

from beanlite.beanstalk.client import TIMEOUT_S, Unauthorized
from beanlite.console.live import Live
from beanlite.console.stored import Location
from beanlite.core.access import ALL_TUBES, NOTHING, OPERATOR, Rights
from beanlite.errors import BeanliteError
from beanlite.web.backups import Folder
from beanlite.web.counting import GroupCounts
from beanlite.web.guesses import Guesses
from beanlite.web.moments import Moments
from beanlite.web.notices import Notices
from beanlite.web.once import Forms
from beanlite.web.questions import Questions, Server_co
from beanlite.web.recent import Recent
from beanlite.web.running import Ongoing
from beanlite.web.safety import Passwords, User
from beanlite.web.undoing import Undos

# What a user may do as long as the server does not say: it decides in any case.
UNKNOWN: Final = Rights([(OPERATOR, ALL_TUBES)])
# How long a page waits for the server to say what its user may do.
RIGHTS_S: Final = 0.5
# How many threads read all of the history at the same time, and how many do what takes moments.
SCANS: Final = 2
LOOKS: Final = 4


@dataclass(kw_only=True)
class Visitors:
    """Who may visit a page, and what they may do there."""

    passwords: Passwords | None = None
    user_header: str | None = None
    """The header in which a proxy passes the user's name."""
    hosts: frozenset[str] = frozenset()
    """The host names that browsers may use; any if this is empty."""
    read_only: bool = False
    guesses: Guesses | None = field(init=False, default=None)
    """Checks the passwords; None if there are none."""

    def __post_init__(self) -> None:
        if self.passwords is not None:
            self.guesses = Guesses(self.passwords)

    async def user(self, request: Request) -> User | None:
        """Return the user who makes a request; None if they have to log in first. TooMany: not with a password now."""
        if self.guesses is not None:
            header = request.headers.get("authorization", "")
            address = "unix" if request.client is None else request.client.host
            user = await self.guesses.check(header, address)
        elif self.user_header is not None:
            name = _only_name(request.headers.getlist(self.user_header))
            user = User(name, may_change=True) if name else None
        else:
            user = User("", may_change=True)
        return user and User(user.name, user.may_change and not self.read_only)


@dataclass(kw_only=True)
class Site(Generic[Server_co]):
    """What the pages of a server show, and what is kept while they are served."""

    name: str
    """The server's name, or its address as text."""
    connect: Callable[[str, float], Server_co]
    visitors: Visitors = field(default_factory=Visitors)
    db: Location | None = None
    """The database to read history and totals from, or None."""
    backups: Folder | None = None
    """The folder of the server's backups; None if it is not known."""
    hide_bodies: bool = False
    members: tuple[str, ...] = ()
    """The names of all servers that are shown beside each other, if there are several."""
    options: str = ""
    """The options by which a command asks this server."""
    questions: Questions[Server_co] = field(init=False)
    changes: Ongoing = field(init=False, default_factory=Ongoing)
    counts: GroupCounts = field(init=False)
    notices: Notices = field(init=False, default_factory=Notices)
    forms: Forms = field(init=False, default_factory=Forms)
    undos: Undos = field(init=False, default_factory=Undos)
    recent: Recent = field(init=False, default_factory=Recent)
    moments: Moments = field(init=False, default_factory=Moments)
    scans: asyncio.Semaphore = field(init=False, default_factory=partial(asyncio.Semaphore, SCANS))
    looks: asyncio.Semaphore = field(init=False, default_factory=partial(asyncio.Semaphore, LOOKS))

    def __post_init__(self) -> None:
        self.questions = Questions(self.open)
        self.counts = GroupCounts(self.open)

    async def close(self) -> None:
        """End what is under way."""
        await self.changes.close()
        await self.counts.close()
        if self.backups is not None:
            await self.backups.close()
        self.questions.close()

    async def rights(self: "Site[Live]", user: User) -> Rights:
        """Return what the server's rules allow to a user; UNKNOWN if it does not say."""
        if not user.may_change:
            return NOTHING
        try:
            async with asyncio.timeout(RIGHTS_S):
                return await self.questions.ask_seldom(user.name, "rights", Live.rights)
        except Unauthorized:
            return NOTHING
        except (BeanliteError, TimeoutError):
            return UNKNOWN

    def open(self, person: str, within_s: float = TIMEOUT_S) -> Server_co:
        """Connect to the server, for a person; replies have to come within a time. BeanliteError: that fails."""
        return self.connect(person, within_s)


def _only_name(values: list[str]) -> str:
    """Return the name that a header has; empty if it has none or several, or one that could be that of several people.

    Starlette reads headers as Latin-1; names are UTF-8.
    """
    if len(values) != 1:
        return ""
    try:
        return values[0].encode("latin-1").decode()
    except UnicodeDecodeError:
        return ""


def person_of(request: Request) -> str:
    """Return the name of the user who makes a request; empty if users are not asked to log in."""
    user: User = request.state.user
    return user.name


def rights_of(request: Request) -> Rights:
    """Return what the user who makes a request may change; nothing, if that user may only look."""
    rights: Rights = request.state.rights
    return rights


def root_of(request: Request) -> str:
    """Return what the paths of the pages of this server begin with: of one of several servers, that server."""
    root: str = request.scope.get("root_path", "")
    return root


def has_gone(request: Request) -> bool:
    """Whether the browser does not wait for the response any more; starlette does not tell that below a middleware."""
    gone: Callable[[], bool] = request.scope["state"].get("has_gone", bool)
    return gone()


def path_of(request: Request) -> str:
    """Return the path of a request as it was sent: browsers take a/../b for b, but not a%2F..%2Fb."""
    path: bytes = request.scope["raw_path"]
    return path.decode()


def site_of(request: Request) -> Site[Live]:
    """Return the site that a request is for."""
    site: Site[Live] = request.app.state.site
    return site
