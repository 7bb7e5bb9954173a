"""The lease: a row in the database that decides which server may write; one server holds it at a time.

The active server locks the row and appends a row to the table of batches with each batch, and at intervals when it is
idle (a beat). A standby polls both, and takes the lease over when nothing has changed for the time of the lease (its
own setting or that of the active server, whichever is longer) although the database answered throughout. The standby
measures that time by its own clock alone: no two clocks are compared. An outage of the database starts the measurement
anew.

An active server that has been cut off for a while may still be alive. So it relies on its lease only for a part of
the lease's time, counted from when it sent the statement that was last confirmed (``Sender.sure_until_ns``). Anything
that it still tries to store later names the epoch of its lease, which the new active server has raised.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

import asyncpg

from beanlite import __version__
from beanlite.core.job import SECOND_NS
from beanlite.errors import BeanliteError, JournalFailed, JournalRefused
from beanlite.host import log, systemd
from beanlite.journal.postgres.ahead import Ahead, Reign
from beanlite.journal.postgres.beats import CATCH_UP, SAY
from beanlite.journal.postgres.link import (
    LOOK_AFTER_S,
    NO_LOCKS,
    PATIENTLY,
    TROUBLE,
    Link,
    Timeline,
    beside,
    close,
    connect,
    expect_newest,
    name_of,
    text_of,
)
from beanlite.journal.postgres.primaries import why_not_here
from beanlite.journal.postgres.schema import NOW, check, expect_keys, expect_session, has_batches, heed_fsync, migrate
from beanlite.journal.postgres.waits import CROWDED, NO_STANDBY, why_it_waits

# A standby polls the lease _LOOKS times in the time of the lease, and at least every _LOOK_S, so that a lease that is
# given back is soon taken.
_LOOKS: Final = 10
_LOOK_S: Final = 0.1
# The pause between attempts to reach the database.
_AGAIN_S: Final = 0.5
# The shortest time between two status messages to systemd.
_TELL_NS: Final = SECOND_NS

_LOOK: Final = """
    SELECT epoch, batch, beat, node, address, started_at, stopped_at IS NOT NULL AS is_free, lease_s FROM lease_now
"""
_TAKE: Final = "SELECT epoch, batch, last_id, started_at FROM take_lease($1, $2, $3, $4, $5, $6)"
# The same for a database without the table of batches: the schema is brought up to date by the server that has the
# lease. The column lease_s may not exist yet either.
_LOOK_BEFORE: Final = """
    SELECT epoch, batch, beat, node, address, started_at, stopped_at IS NOT NULL AS is_free,
           (to_jsonb(lease) ->> 'lease_s')::float8 AS lease_s
    FROM lease
"""
_TAKE_BEFORE: Final = f"""
    UPDATE lease
    SET epoch = epoch + 1, beat = beat + 1, node = $4, address = $5, version = $6, started_at = {NOW}, seen_at = {NOW},
        stopped_at = NULL
    WHERE epoch = $1 AND batch = $2 AND beat = $3
    RETURNING epoch, batch, last_id, started_at
"""
GIVE_BACK: Final = f"""
    UPDATE lease SET seen_at = {NOW}, stopped_at = {NOW}, last_id = $2 WHERE epoch = $1 RETURNING epoch
"""
_T = TypeVar("_T")
# The epoch, the last batch and the last beat: what changes as long as the active server is there.
_Sign = tuple[int, int, int]


class Lease(NamedTuple):
    """A lease that has been taken, and the state of the queue according to its row."""

    link: Link
    reign: Reign
    ended: Reign
    """That of the server which had it before."""
    batch: int
    last_id: int
    sent_ns: int
    """When the statement that took it was sent."""

    @property
    def epoch(self) -> int:
        """The epoch of the reign, which each batch names."""
        return self.reign.epoch


class Applicant(NamedTuple):
    """A server that wants the lease."""

    url: str
    """The URL of the database."""
    node: str
    address: str
    """Where other servers reach this one."""
    lease_s: float
    require_sync: bool
    name: str
    """The name of the database, for people: the URL without its password."""
    clock_ns: Callable[[], int]
    """A monotonic clock that also counts the time for which the machine is suspended."""
    stand_by: Callable[[str | None], None]
    """Called with the address of the server that is found to be active, and with None once the lease is ours."""


class _Stopped(Exception):
    """The server has been asked to stop."""


async def take(applicant: Applicant, stopped: asyncio.Event, ahead: Ahead) -> Lease | None:
    """Wait until the lease can be taken, and take it; None: the server is to stop. JournalRefused: it can't be had.

    While another server is active, jobs are read ahead.
    """
    waiting = _Waiting(applicant, stopped, ahead)
    try:
        while True:
            try:
                lease = await waiting.run()
            except (*TROUBLE, asyncpg.PostgresError, JournalRefused) as error:
                waiting.note_loss(error)
                await waiting.pause(_AGAIN_S)
            else:
                try:
                    applicant.stand_by(None)
                except BeanliteError:  # another program listens at our address: a server that can serve is to have it
                    with contextlib.suppress(JournalFailed):
                        await give_back(lease.link, lease.epoch, lease.last_id)
                    raise
                return lease
    except _Stopped:
        return None


async def give_back(link: Link, epoch: int, last_id: int) -> None:
    """Give the lease back, so that another server can take it at once, and close the connection.

    JournalFailed: that can't be done now.
    """
    try:
        await link.row(GIVE_BACK, epoch, last_id, within_s=LOOK_AFTER_S)
        await close(link)
    except (*TROUBLE, asyncpg.PostgresError) as error:
        link.drop()
        raise JournalFailed(f"the lease could not be given back: {text_of(error)}") from error


class _Waiting:
    """Waits for the lease, over one connection after another."""

    def __init__(self, applicant: Applicant, stopped: asyncio.Event, ahead: Ahead) -> None:
        self._applicant = applicant
        self._ahead = ahead
        self._stopped = stopped
        self._oddities = log.Seldom()
        self._stands_by = False
        self._history: Timeline | None = None
        """That of the host on which something was last seen to be stored: one whose history ends before it is an old
        primary, and passed over. A promotion after which nothing was stored may be taken back."""
        self._active: tuple[str, str] | None = None
        """The active server that was last found: its name and its address."""
        self._renewals: Counter[int] = Counter()
        """How often a lease in our name, by its epoch, was seen to be renewed."""
        self._status: tuple[str, int] | None = None
        """The last status that was sent to systemd, and when."""

    def note_loss(self, error: BaseException) -> None:
        """Log that the database can't be used for now. _Stopped: the server is to stop.

        JournalRefused: that will not change by itself. It may, if the server has stood by: databases are restored,
        renamed and set up anew, and the standby is needed afterwards.
        """
        if self._stopped.is_set():
            raise _Stopped
        if not (self._stands_by or isinstance(error, TROUBLE)):
            if isinstance(error, JournalRefused):
                raise error
            raise JournalRefused(f"{self._applicant.name} can't be used: {text_of(error)}") from error
        self._oddities.warning("could not connect to the database", database=self._applicant.name, error=text_of(error))

    async def pause(self, seconds: float) -> None:
        """Wait for this time. _Stopped: the server is to stop."""
        self._tell("Standing by" if self._stands_by else "Waiting for the database")
        await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return
        raise _Stopped

    def _tell(self, what: str) -> None:
        now_ns = self._applicant.clock_ns()
        if self._status is None or self._status[0] != what or now_ns - self._status[1] >= _TELL_NS:
            self._status = what, now_ns
            systemd.waiting(what)

    async def run(self) -> Lease:
        """Connect, and wait for the lease. Raises one of TROUBLE if the connection is lost."""
        applicant = self._applicant
        link = await connect(applicant.url, name_of(applicant.node), self._expect_successor)
        stopping = asyncio.ensure_future(self._stopped.wait())
        stopping.add_done_callback(lambda task: None if task.cancelled() else link.drop())  # nothing else is waited for
        try:
            await check(link, applicant.name, require_sync=applicant.require_sync)
            await expect_session(link, applicant.name)
            await expect_keys(link)
            await heed_fsync(link, applicant.name)
            if not self._stands_by:  # otherwise the tables are missing only while somebody restores them
                await self._patiently(link, migrate(link, applicant.name, only_from=0))
            try:
                lease = await self._watch(link)
            finally:
                await self._ahead.stop()
            try:
                await self._patiently(link, migrate(link, applicant.name))
                await self._patiently(link, self._say(link, lease.epoch))
            except (asyncpg.PostgresError, JournalRefused):  # a server that can serve is to have it
                with contextlib.suppress(JournalFailed):
                    await give_back(link, lease.epoch, lease.last_id)
                raise
        except BaseException:
            link.drop()
            raise
        finally:
            stopping.cancel()
        return lease

    async def _expect_successor(self, link: Link) -> None:
        link.expect_successor(self._history)

    async def _watch(self, link: Link) -> Lease:
        """Poll the lease until it can be taken, and take it."""
        look_s = min(_LOOK_S, self._applicant.lease_s / _LOOKS)
        sign: _Sign | None = None
        since_ns = 0
        is_older = not await has_batches(link, self._applicant.name)
        look = _LOOK_BEFORE if is_older else _LOOK
        await link.row(NO_LOCKS, within_s=self._applicant.lease_s)
        now_ns = self._applicant.clock_ns()
        while True:
            before_ns = now_ns
            try:
                row = await link.row(look, within_s=self._applicant.lease_s)
            except asyncpg.LockNotAvailableError:
                self._oddities.warning("another program has locked the table lease", database=self._applicant.name)
                sign = None  # its server can't store anything either
                await self.pause(look_s)
                now_ns = self._applicant.clock_ns()
                continue
            now_ns = self._applicant.clock_ns()
            if row is None:
                raise JournalRefused(f"{self._applicant.name}: its table lease is empty")
            lease_ns = round(max(self._applicant.lease_s, row["lease_s"] or 0) * SECOND_NS)
            if now_ns - before_ns > lease_ns // 2:
                # The database took so long to answer that the active server may have been cut off or halted as well.
                sign = None
            if sign != (row["epoch"], row["batch"], row["beat"]):
                if sign is not None:  # others see a commit only once it was confirmed
                    self._history = link.history or self._history
                    self._note_life(row)
                sign = row["epoch"], row["batch"], row["beat"]
                since_ns = now_ns
            self._ahead.is_takeover_near = now_ns - since_ns >= lease_ns // 2
            if row["is_free"] or now_ns - since_ns >= lease_ns:
                if await self._is_used_elsewhere(link, sign):
                    sign = None
                    await self.pause(_AGAIN_S)
                    now_ns = self._applicant.clock_ns()
                    continue
                statement = _TAKE_BEFORE if is_older else _TAKE
                await expect_keys(link)
                ended = Reign(row["epoch"], row["started_at"])
                lease = await self._patiently(link, self._take(link, statement, sign, ended))
                if lease is not None:
                    self._stands_by = False
                    log.info("lease acquired", database=self._applicant.name, epoch=lease.epoch)
                    return lease
                sign = None  # another server was faster: the next look shows which one
                await link.row(NO_LOCKS, within_s=self._applicant.lease_s)
            else:
                self._stand_by(row["node"], row["address"])
                self._ahead.begin(link)
            await self.pause(look_s)

    async def _is_used_elsewhere(self, link: Link, sign: _Sign) -> bool:
        """Whether the queue has gone on at another host: warn of it. Raises as ``why_not_here`` does."""
        epoch, batch, _ = sign
        why = await why_not_here(self._applicant.url, link, epoch, batch)
        if why is not None:
            event, fields = why
            self._oddities.warning(event, **fields)
        return why is not None

    async def _take(self, link: Link, statement: str, sign: _Sign, ended: Reign) -> Lease | None:
        """Take the lease, unless it has changed since it was last seen; then return None."""
        applicant = self._applicant
        await link.row(PATIENTLY)
        if statement == _TAKE:
            await link.row(CATCH_UP)
        sent_ns = applicant.clock_ns()
        row = await link.row(statement, *sign, applicant.node, applicant.address, __version__)
        if row is None:
            return None
        reign = Reign(row["epoch"], row["started_at"])
        return Lease(link, reign, ended, row["batch"], row["last_id"], sent_ns)

    async def _say(self, link: Link, epoch: int) -> None:
        """Store how long this lease is, and whose. ConnectionError: another server has taken over already."""
        row = None
        for is_again in (False, True):
            try:
                row = await link.row(SAY, epoch, self._applicant.lease_s, os.getpid())
                break
            except asyncpg.UniqueViolationError:  # CATCH_UP of another candidate has set the sequence back
                if is_again:
                    raise
        if row is None:
            raise ConnectionError("another server has taken over already")

    async def _patiently(self, link: Link, work: Awaitable[_T]) -> _T:
        """Await a change, which may have to wait for the synchronous standby, or for a lock that others hold."""
        looking = asyncio.ensure_future(self._look_after(link))
        try:
            return await work
        finally:
            looking.cancel()

    async def _look_after(self, link: Link) -> None:
        """Log why a change waits.

        Drop the connection if the server is to stop, if the database does not know it, or if the standby that it waits
        for was promoted.
        """
        why: str | None = ""
        try:
            while why is not None:
                await self._sleep(LOOK_AFTER_S)
                self._tell("Waiting for the database")
                try:
                    async with beside(link) as other:
                        why = await why_it_waits(other, name_of(self._applicant.node), link.pid)
                except asyncpg.TooManyConnectionsError:  # it answers all the same
                    why = CROWDED
                if why == NO_STANDBY:
                    await expect_newest(link, self._applicant.url)
                if why is not None:
                    self._oddities.warning(f"start is waiting: {why}", database=self._applicant.name)
        except (_Stopped, *TROUBLE, asyncpg.PostgresError, JournalRefused):
            pass  # the change fails with the connection, and is tried again unless the server is to stop
        link.drop()

    def _note_life(self, row: asyncpg.Record) -> None:
        """Warn if a lease in our name is renewed: only once may that be a late commit of our own earlier process."""
        if (row["node"], row["address"]) == (self._applicant.node, self._applicant.address):
            self._renewals[row["epoch"]] += 1
            if self._renewals[row["epoch"]] > 1:
                self._oddities.warning(
                    "another server has this server's name and address: give each one its own",
                    node=row["node"],
                    address=row["address"],
                )

    def _stand_by(self, node: str, address: str) -> None:
        if not self._stands_by:
            self._stands_by = True
            systemd.tell("READY=1")
        if self._active != (node, address):
            self._active = node, address
            ours = self._active == (self._applicant.node, self._applicant.address)
            why = "this server's earlier lease has to run out" if ours else "another server is active"
            log.info(f"standing by: {why}", node=node, address=address)
            self._applicant.stand_by(address)
