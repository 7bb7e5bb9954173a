"""Sends one statement after another to the database, and finds out the outcome of a statement whose answer was lost.

After a lost connection the outcome is found by *writing*: a new connection raises the beat of the lease, and so waits,
as the lost commit does, until the synchronous standby has everything up to that point. A read could show a commit that
the standby has not confirmed, and that would be lost if the standby is promoted.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Final

import asyncpg

from beanlite.core.job import SECOND_NS
from beanlite.errors import JournalFailed, JournalFull, JournalRefused
from beanlite.host import log
from beanlite.journal.postgres.address import public_url
from beanlite.journal.postgres.batch import Batch
from beanlite.journal.postgres.beats import BEAT
from beanlite.journal.postgres.lease import Applicant, Lease, give_back
from beanlite.journal.postgres.link import (
    LOOK_AFTER_S,
    TROUBLE,
    Link,
    beside,
    connect,
    name_of,
    text_of,
)
from beanlite.journal.postgres.primaries import lease_on, other_primaries
from beanlite.journal.postgres.standing import (
    Patience,
    Standing,
    beat_beside,
    change_error,
    expect_all,
    has_successor,
    mistake,
)
from beanlite.journal.postgres.waits import CROWDED, NO_STANDBY, why_it_waits

# The active server raises its beat _BEATS times in the time of the lease while nothing else is confirmed, and at least
# every _BEAT_S, lest it pass for one that is halted. It relies on the lease for the share _SURE of that time, counted
# from when the last confirmed statement was sent.
_BEATS: Final = 5
_BEAT_S: Final = 5.0
_SURE: Final = 0.9
# The errors after which nothing was stored, and the same statement can be sent again.
_FULL: Final = (asyncpg.DiskFullError, asyncpg.OutOfMemoryError, asyncpg.ConfigurationLimitExceededError)
# The pause between attempts to reach the database, or to store a batch for which there was no room or no memory.
AGAIN_S: Final = 0.2


class Sender:
    """Keeps the lease, and a connection to the database, which is made anew when it is lost."""

    def __init__(
        self,
        applicant: Applicant,
        lease: Lease,
        tell_failure: Callable[[Exception], None],
        tell_quiet: Callable[[], None],
        tell_move: Callable[[], None],
        tell_full: Callable[[JournalFull], None],
    ) -> None:
        """``tell_failure`` is called when the lease or more is lost; ``tell_move`` after a reconnection.

        That may be one to another host. ``tell_quiet`` is called after a beat, when nothing is under way, and
        ``tell_full`` when there was no room for one.
        """
        self._applicant = applicant
        self._link: Link | None = lease.link
        self._name = name_of(applicant.node)
        self.standing = Standing(lease.reign, lease.ended, lease.batch, lease.link.history, lease.link.host)
        """The database as this server has left it, with the history of a host on which something was stored."""
        self.totals = 0, 0.0
        """How many rows of totals the last batch had, and how many seconds they took."""
        self._unanswered = 0
        """The last batch whose answer was lost. The database may still store that copy while a later one is sent."""
        self._tell_failure = tell_failure
        self._tell_quiet = tell_quiet
        self._tell_move = tell_move
        self._tell_full = tell_full
        self._clock_ns = applicant.clock_ns
        self._lease_ns = round(applicant.lease_s * SECOND_NS)
        self._beat_ns = round(min(applicant.lease_s / _BEATS, _BEAT_S) * SECOND_NS)
        self.sure_until_ns = lease.sent_ns + round(self._lease_ns * _SURE)
        """Until then no other server can have the lease."""
        self.sent_ns: int | None = None
        """When the statement that is under way was sent; None if there is none."""
        self._one_at_a_time = asyncio.Lock()
        """A batch and a beat may begin in the same turn of the loop, and share one connection."""
        self._oddities = log.Seldom()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking = False
        self._ended = False
        self._look_s = min(applicant.lease_s / _BEATS, LOOK_AFTER_S)
        self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)

    @property
    def busy(self) -> bool:
        """Whether a statement is under way."""
        return self._one_at_a_time.locked()

    # -- what is sent

    async def store(self, batch: Batch) -> None:
        """Store a batch. JournalFull: the database has no room or no memory for it, and the call can be repeated.

        LeaseLost: another server has the lease. JournalFailed: the batch can't be stored, or earlier ones are lost.
        """
        async with self._one_at_a_time:
            self.sent_ns = self._clock_ns()
            try:
                is_again = False
                while not await self._stored(batch):
                    if is_again:  # it may be the batch itself that brings the trouble
                        await asyncio.sleep(AGAIN_S)
                    is_again = True
                self.standing = self.standing._replace(batch=batch.number)
            finally:
                self.sent_ns = None

    async def _stored(self, batch: Batch) -> bool:
        """Send a batch; return False if it was not stored and has to be sent again."""
        try:
            if self._link is None:
                raise ConnectionError("there is no connection")
            sent_ns = self._clock_ns()
            row = await self._link.row(batch.statement, self.standing.epoch, self.standing.batch, *batch.parameters)
            if row is None:
                sent_ns = self._clock_ns()
                # An earlier copy may have waited for a lock: the database does not notice that its connection is lost.
                if self._unanswered != batch.number or await self._last_stored(self._link) != batch.number:
                    raise await self._mistake(self._link)
            self.totals = (0, 0.0) if row is None else (row["totals"], row["totals_s"])
        except _FULL as error:
            raise self._full(error) from error
        except (asyncpg.IntegrityConstraintViolationError, asyncpg.DivisionByZeroError) as error:
            raise change_error(self._applicant.name, error) from error
        except TROUBLE as error:
            trouble = error
        except asyncpg.PostgresError as error:
            raise JournalFailed(f"{self._applicant.name} refused a batch: {text_of(error)}") from error
        else:
            self._confirm(sent_ns)
            return True
        self._unanswered = batch.number
        last_batch = await self._resolve(trouble)
        if last_batch > batch.number:  # by whoever has edited or restored the database
            raise change_error(self._applicant.name)
        return last_batch == batch.number

    def _full(self, error: Exception) -> JournalFull:
        return JournalFull(f"{self._applicant.name}: {text_of(error)}")

    def _confirm(self, sent_ns: int) -> None:
        self.sure_until_ns = max(self.sure_until_ns, sent_ns + round(self._lease_ns * _SURE))

    async def _resolve(self, trouble: BaseException) -> int:
        """Replace a lost connection, and return the number of the last batch that is stored.

        LeaseLost, JournalFailed: as for ``store``.
        """
        patience = Patience(self._applicant)
        while True:
            if self._ended:
                raise JournalFailed(f"{self._applicant.name}: {text_of(trouble)}")
            self._oddities.warning(
                "connection to the database lost; reconnecting",
                database=self._applicant.name,
                error=text_of(trouble),
            )
            self._drop()
            try:
                return await self._again()
            except (*TROUBLE, asyncpg.PostgresError, JournalRefused) as error:
                patience.use(error)
                trouble = error
                if isinstance(error, _FULL):
                    self._tell_full(self._full(error))
            await asyncio.sleep(AGAIN_S)

    async def _again(self) -> int:
        link = await connect(self._applicant.url, self._name, partial(expect_all, self._applicant, self.standing))
        if self._ended:  # meanwhile
            link.drop()
            raise ConnectionError("it is closed")
        self._link = link
        sent_ns = self._clock_ns()
        batch = await self._last_stored(link)
        if batch < self.standing.batch:
            raise await self._mistake(link)
        self.standing = self.standing._replace(history=link.history or self.standing.history, host=link.host)
        self._confirm(sent_ns)
        self._tell_move()
        log.info("reconnected to the database", database=self._applicant.name, batch=batch)
        return batch

    async def _last_stored(self, link: Link) -> int:
        """Raise the beat, and return the last batch stored; -1 if the lease is not ours. Raises as a batch does."""
        row = await link.row(BEAT, self.standing.epoch)
        return -1 if row is None else int(row["batch"])

    async def _mistake(self, link: Link) -> JournalFailed:
        return await mistake(link, self.standing, self._applicant.name)

    # -- the beat, and checks on unanswered statements

    def _look(self) -> None:
        """Run by a timer: raise the beat if it is due, or check on a statement that has gone unanswered."""
        if self._ended:
            return
        self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)
        now_ns = self._clock_ns()
        is_due = self.sure_until_ns - now_ns < self._lease_ns * _SURE - self._beat_ns
        if self.sent_ns is None:
            if is_due:
                self._start(self._keep_lease())
        elif (is_due or self._is_late(self.sent_ns)) and self._link is not None and not self._looking:
            self._looking = True
            self._start(self._look_after(self._link))

    def _is_late(self, sent_ns: int) -> bool:
        return self._clock_ns() - sent_ns > LOOK_AFTER_S * SECOND_NS

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_lease(self) -> None:
        """Raise the beat, so that standbys see that this server is alive."""
        if self.busy:
            return  # the statement that is under way does as well
        try:
            async with self._one_at_a_time:
                await self._raise_beat()
        except JournalFull as error:
            self._tell_full(error)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing more may be acknowledged
            self._tell_failure(error)
            return
        self._tell_quiet()

    async def _raise_beat(self) -> None:
        self.sent_ns = sent_ns = self._clock_ns()
        try:
            if self._link is None:
                raise ConnectionError("there is no connection")
            # An unanswered copy of the next batch may have been stored after a later one was refused for want of room.
            right = self.standing.batch, max(self.standing.batch, self._unanswered)
            if await self._last_stored(self._link) not in right:
                raise await self._mistake(self._link)
        except _FULL as error:
            raise self._full(error) from error
        except (*TROUBLE, asyncpg.PostgresError) as error:
            await self._resolve(error)
        else:
            self._confirm(sent_ns)
        finally:
            self.sent_ns = None

    async def _look_after(self, link: Link) -> None:
        """Drop the connection if the database does not know it, or if the database can't be reached otherwise either.

        A statement that waits for a lock, or for a standby that was not promoted, is rightly unanswered, and keeps
        waiting. So does one that takes long to be sent. Meanwhile the beat is raised over another connection.
        """
        why = None
        try:
            async with beside(link) as other:
                why = await why_it_waits(other, self._name, link.pid)
                sent_ns = self._clock_ns()
                # It is the database that has the lease, since the process of our connection was found there.
                if why not in {None, NO_STANDBY} and await beat_beside(other, self.standing.epoch):
                    self._confirm(sent_ns)
            if why == NO_STANDBY and await has_successor(self._applicant, self.standing, link):
                why = None
        except asyncpg.TooManyConnectionsError:  # it answers all the same
            why = why or CROWDED
        except (*TROUBLE, asyncpg.PostgresError, JournalRefused) as error:
            self._oddities.warning("the database does not answer", database=self._applicant.name, error=text_of(error))
        self._looking = False
        if self.sent_ns is not None and self._link is link and self._is_late(self.sent_ns):
            if why is None:
                link.drop()
            else:
                self._oddities.warning(f"commit is waiting: {why}", database=self._applicant.name)

    async def warn_of_promotion(self) -> None:
        """Warn if another host of the same database accepts writes, too."""
        with suppress(JournalRefused):
            await self._warn_of_promotion()

    async def _warn_of_promotion(self) -> None:
        link = self._link
        if link is None:
            return
        async with other_primaries(self._applicant.url, link) as links:
            for other in links if link is self._link else ():  # another connection may have been made meanwhile
                if not other.is_of_the_system(link.history):
                    continue
                event = "another host still accepts writes, too: stop one of them"
                if link.is_older(other.history):
                    event = "another host was promoted, but the one in use still accepts writes: stop one of them"
                lease = await lease_on(other)
                self._oddities.warning(
                    event,
                    database=public_url(link.url),
                    batch=self.standing.batch,
                    its_database=public_url(other.url),
                    its_batch=None if lease is None else lease["batch"],
                    its_node=None if lease is None else lease["node"],
                )

    def _drop(self) -> None:
        if self._link is not None:
            self._link.drop()
            self._link = None

    # -- the end

    async def until_quiet(self) -> None:
        """Stop the timer, and wait for a beat or a check that is under way, but not for long."""
        self._end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LOOK_AFTER_S)

    async def give_back(self, last_id: int) -> None:
        """Give the lease back, so that another server can take it at once. JournalFailed: that can't be done now."""
        self._end()
        if self._link is None or self.busy:
            self._drop()
            raise JournalFailed("the lease could not be given back: the database does not answer")
        await give_back(self._link, self.standing.epoch, last_id)

    def end(self) -> None:
        """Send nothing more, and drop the connection; a statement that is under way is abandoned."""
        self._end()
        self._drop()

    def _end(self) -> None:
        self._ended = True
        self._timer.cancel()
