"""The journal in PostgreSQL: stores batches in the database and its standby, and recovers the queue at the start."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS
from beanlite.core.ledger import Changes
from beanlite.core.memory import NO_BOUND
from beanlite.errors import JournalFailed, JournalFull, JournalRefused
from beanlite.host import log, systemd
from beanlite.host.clock import Clock, utc_s
from beanlite.journal.base import DatabaseFigures, Journal, JournalFacts, Observer, Tenure
from beanlite.journal.event_rows import DEEDS_ONLY, EventRows, HistoryBounds
from beanlite.journal.postgres.address import Entry, public_url, warn_of_exposure
from beanlite.journal.postgres.ahead import Ahead
from beanlite.journal.postgres.batch import Batch, batch_of
from beanlite.journal.postgres.housekeeping import Housekeeping
from beanlite.journal.postgres.lease import Applicant, Lease, take
from beanlite.journal.postgres.link import LOOK_AFTER_S, name_of
from beanlite.journal.postgres.postponed import PostponedTotals
from beanlite.journal.postgres.recovery import Reader
from beanlite.journal.postgres.restoration import Restoration
from beanlite.journal.postgres.sender import AGAIN_S, Sender
from beanlite.journal.totals import HOUR_S

# How often old rows are deleted; sooner after so many batches, or if these have changed so many jobs, or if the disk is
# full. Tests change the numbers, which compiled code would have built in if they were Final.
_PRUNES_EVERY_S = 1.0 * HOUR_S
_MANY = 50_000
_MANY_JOBS = 2_000_000
# How often the database is asked how it is doing, and old history deleted; and for how long an answer is told. Tests
# change these likewise.
_LOOKS_EVERY_S = 15.0
_TOLD_S = 60.0


class PostgresJournal(Journal):
    """Stores each batch with one statement; the batch is durable once the database has confirmed it."""

    fetches = True

    def __init__(
        self,
        place: Entry,
        since_boot_ns: Callable[[], int],
        stand_by: Callable[[str | None], None],
        history: HistoryBounds = DEEDS_ONLY,
    ) -> None:
        """``since_boot_ns`` is a monotonic clock; ``stand_by`` is called as documented in ``Applicant``."""
        self._name = public_url(place.url)
        self._since_boot_ns = since_boot_ns
        self._tell_standing_by = stand_by
        self._applicant = Applicant(*place, self._name, since_boot_ns, self._stand_by)
        self._totals = PostponedTotals()
        self._history = EventRows(history, utc_s)
        self._records = 0
        self._unpruned = 0
        """How many jobs have been changed by the batches since rows were last deleted."""
        self._many: asyncio.Future[None] | None = None
        """Done when the rows of many batches can be deleted."""
        self._tenure: Tenure | None = None
        self._database: DatabaseFigures | None = None
        self._asked_ns = 0
        """When the database was last asked how it is doing, and answered."""
        self._failure: Exception | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    # -- the start

    def _stand_by(self, active: str | None) -> None:
        self.stands_by = active is not None
        self._tell_standing_by(active)

    async def recover(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:
        """Wait for the lease, then fill the engine with the jobs; see ``Journal.recover``."""
        return await systemd.be_patient_with(self._recover(engine, clock, stopped))

    async def _recover(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:
        warn_of_exposure(self._applicant.url)
        self._ahead = Ahead(engine.memory, self._name)
        lease = await take(self._applicant, stopped, self._ahead)
        if lease is None:
            return False
        systemd.waiting("Recovering")
        self._engine = engine
        self._clock = clock
        self._stopped = stopped
        self._sender = sender = Sender(self._applicant, lease, self._fails, self._quiet, self._follow, self._lacks_room)
        self._reader = Reader(self._applicant.url, self._name, name_of(self._applicant.node), lambda: sender.standing)
        self._upkeep = Housekeeping(self._name, self._reader.connect)
        is_whole = False
        stopping = asyncio.ensure_future(stopped.wait())
        stopping.add_done_callback(lambda task: None if task.cancelled() else self._reader.close())
        try:
            is_whole = await self._restore(engine, clock, lease) and not stopped.is_set()
        except (JournalFailed, JournalRefused, MemoryError) as error:
            self._reader.close()
            if self._failure is None and not (stopped.is_set() and isinstance(error, JournalFailed)):
                self._refuse(error)
        finally:
            stopping.cancel()
        if is_whole and self._failure is None:
            engine.recovered(lease.last_id, lease.batch)
            if self._history.bounds.kept_s is not None:
                is_whole = await self._record_restart(engine)
        if self._failure is not None:
            raise self._failure
        if not is_whole:
            await self._sender.until_quiet()
            trouble = await self._give_back(lease.last_id)
            if trouble is not None:
                log.warning(trouble)
        return is_whole

    def _refuse(self, error: Exception) -> NoReturn:
        """Raise JournalRefused: the queue can't be restored."""
        self._sender.end()
        if isinstance(error, MemoryError):
            self._engine.forget_jobs()  # to have memory for the orderly end
            raise JournalRefused(f"there is not enough memory for what {self._name} holds") from error
        raise JournalRefused(str(error)) from error

    async def _restore(self, engine: Engine, clock: Clock, lease: Lease) -> bool:
        """Restore everything; return False if that was cut short by a request to stop or a failure."""
        began_s = time.monotonic()
        # Stored times are by the database's clock: the clocks of two nodes may differ by hours.
        clock.set(await self._reader.now_ns())
        node, address = self._applicant.node, self._applicant.address
        takeovers, unchecked_id = await self._reader.tenure()
        self._tenure = Tenure(self._name, node, address, self._sender.standing.epoch, takeovers)
        engine.restore_policies(await self._reader.policies())
        restoration = Restoration(
            self._name, self._reader, engine, clock, lambda: self._stopped.is_set() or self._failure is not None
        )
        if not await restoration.run(self._ahead, lease, unchecked_id):
            return False
        await self._reader.check_ids(lease.last_id)
        await restoration.finish()
        for schedule in await self._reader.schedules():
            engine.restore_schedule(schedule)
        self._history.last = await self._reader.last_event()
        await self._reader.resume_totals(self._totals, utc_s(clock()))
        seconds = round(time.monotonic() - began_s, 3)
        log.info("recovered", database=self._name, jobs=len(engine.jobs), seconds=seconds)
        return True

    async def _record_restart(self, engine: Engine) -> bool:
        """Write what the start itself changed, and its history, in slices; return False if the server is to stop."""
        ledger = engine.ledger
        ending = asyncio.ensure_future(self._end_soon_after_stop())
        try:
            while ledger.has_deferred and not self._stopped.is_set():
                changes = ledger.take_restarted(self._clock())
                await self._sender.store(self._batch_of(changes))
                engine.stored(changes.batch, changes.last_id)
        except JournalFull:  # the first batch says so
            ledger.deferred.update((job.id, job) for job in changes.jobs)
            log.warning("database disk full: jobs made ready by the restart are missing in the history")
        except JournalFailed:
            if self._failure is None and not self._stopped.is_set():
                raise
        finally:
            ending.cancel()
        return not self._stopped.is_set()

    async def _end_soon_after_stop(self) -> None:
        """Abandon what can't be stored for now, once the server is to stop."""
        await self._stopped.wait()
        await asyncio.sleep(LOOK_AFTER_S)
        self._sender.end()

    def _batch_of(self, changes: Changes) -> Batch:
        return batch_of(changes, self._totals, utc_s(self._clock()), self._history)

    def attach(self, listener: Observer) -> None:
        """Begin to commit for the listener."""
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._measures = self._engine.ledger.measures
        self._pruning = self._loop.create_task(self._prune())
        self._looking_after = self._loop.create_task(self._look_after())

    async def _prune(self) -> None:
        """Delete totals and rows of batches that are too old, now, every hour, after many batches, and for room."""
        try:
            while True:
                self._many = self._loop.create_future()
                self._unpruned = 0
                await self._reader.prune(utc_s(self._clock()), is_full=self._engine.admission.disk_full)
                is_full = self._engine.admission.disk_full
                await asyncio.wait([self._many], timeout=_LOOKS_EVERY_S if is_full else _PRUNES_EVERY_S)
        except Exception as error:  # noqa: BLE001 - a bug of ours, which must not pass in silence
            self._fails(error)

    async def _look_after(self) -> None:
        """Ask how the database is doing, and delete old history, again and again."""
        forgot_ns = None
        try:
            while True:
                now_ns = self._since_boot_ns()
                await self._sender.warn_of_promotion()
                if self._measures is not None:
                    database = await self._upkeep.database()
                    if database is not None:
                        self._database, self._asked_ns = database, now_ns
                # Of what operators do there is little.
                is_rare = self._history.bounds.kept_s is None
                if not is_rare or forgot_ns is None or now_ns - forgot_ns > _PRUNES_EVERY_S * SECOND_NS:
                    forgot_ns = now_ns
                    await self._forget(now_ns + round(_LOOKS_EVERY_S * SECOND_NS))
                if is_rare and self._measures is None:
                    self._upkeep.drop()
                await asyncio.sleep(max(0.0, _LOOKS_EVERY_S - (self._since_boot_ns() - now_ns) / SECOND_NS))
        except Exception as error:  # noqa: BLE001 - as above
            self._fails(error)

    async def _forget(self, until_ns: int) -> None:
        """Delete what exceeds the bounds of the history, slice by slice, until it is time for something else."""
        history, more = self._history, True
        while more and self._since_boot_ns() < until_ns:
            now_s = utc_s(self._clock())
            more = await self._upkeep.forget(history.kept_from, now_s - history.kept_s, now_s)

    def reconfigure(self, history_s: int | None, history_bytes: int, *, history_bodies: bool) -> None:
        """Keep this much of the history from now on; what is too old is deleted within seconds, or an hour."""
        self._history.bound(HistoryBounds(history_s, history_bytes, history_bodies))

    def _prune_soon(self) -> None:
        if self._many is not None and not self._many.done():
            self._many.set_result(None)

    # -- batch by batch

    @property
    def busy(self) -> bool:
        """Whether a batch is under way, or another statement, such as one that keeps the lease.

        A stop waits for batches alone: with nothing to store, it does not matter whether the database answers.
        """
        return self._task is not None or (self._sender.busy and not self._stopping)

    @property
    def syncing(self) -> bool:
        """Always False: a batch can't be hurried on."""
        return False

    @property
    def in_doubt(self) -> bool:
        """Whether another server may have taken over since the lease was last confirmed."""
        return self._since_boot_ns() > self._sender.sure_until_ns

    @property
    def is_elsewhere(self) -> bool:
        """Always True: the database can be out of reach without any fault of this process."""
        return True

    def commit(self, changes: Changes) -> None:
        """Send a batch; see ``Journal.commit``."""
        self._task = self._loop.create_task(self._store(self._batch_of(changes)))

    async def _store(self, batch: Batch) -> None:
        try:
            began_ns = self._since_boot_ns()
            await self._store_when_there_is_room(batch)
            self._totals.note(*self._sender.totals)
            self._records += batch.jobs
            self._unpruned += batch.jobs
            if not batch.number % _MANY or self._unpruned > _MANY_JOBS:
                self._prune_soon()
            if self._measures is not None:
                self._measures.batch_jobs.note(batch.jobs)
                self._measures.commits.note(self._since_boot_ns() - began_ns)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing more may be acknowledged
            self._fails(error)
            return
        self._task = None
        self._listener.durable(batch.number, batch.last_id)
        self._listener.ready()

    async def _store_when_there_is_room(self, batch: Batch) -> None:
        while True:
            try:
                await self._sender.store(batch)
            except JournalFull as error:
                self._refuse_puts(error)
            else:
                break
            await asyncio.sleep(AGAIN_S)
        self._accept_puts()

    def _refuse_puts(self, error: JournalFull) -> None:
        if not self._engine.admission.disk_full:
            log.error("database disk full: puts are refused until there is room again", error=error)
            self._engine.admission.refuse_puts()
            self._prune_soon()

    def _accept_puts(self) -> None:
        if self._engine.admission.disk_full:
            log.info("database disk has room again: puts are accepted")
            self._engine.admission.accept_puts(NO_BOUND)

    def _fails(self, error: Exception) -> None:
        """End after an error: nothing more becomes durable."""
        self._sender.end()
        self._reader.close()
        self._upkeep.close()
        if self._failure is None:
            self._failure = error
            if hasattr(self, "_listener"):
                self._listener.failed(error)

    def _quiet(self) -> None:
        if self._task is None:  # otherwise a batch waits for more room than a beat takes
            self._accept_puts()
        self._tell_ready()

    def _lacks_room(self, error: JournalFull) -> None:
        self._refuse_puts(error)
        self._tell_ready()

    def _tell_ready(self) -> None:
        if hasattr(self, "_listener"):
            self._listener.ready()

    def _follow(self) -> None:
        """Have the reader connect again: another host may be the primary now, and the old one may return stale rows."""
        self._reader.drop()
        self._upkeep.drop()

    async def fetch(self, job_ids: Sequence[int]) -> list[bytes | None]:
        """Read bodies while other clients are served; see ``Journal.fetch``."""
        try:
            return await self._reader.bodies(job_ids, self._engine.jobs.find)
        except JournalFailed:
            if not self._stopping:
                raise
        return [None] * len(job_ids)

    def poll(self) -> None:
        """Do nothing: a batch reports its own end."""

    # -- the end

    def begin_stop(self) -> None:
        """Wait for batches alone from now on: no client gets bodies any more, and the database may not answer."""
        self._stopping = True
        self._totals.end()
        self._reader.close()

    async def flush(self) -> None:
        """Do nothing: all batches that were reported durable are stored."""

    def facts(self) -> JournalFacts:
        """Return what the statistics say of it; see ``Journal.facts``."""
        sent_ns = self._sender.sent_ns
        unsynced_s = 0.0 if sent_ns is None else (self._since_boot_ns() - sent_ns) / SECOND_NS
        is_fresh = self._since_boot_ns() - self._asked_ns < _TOLD_S * SECOND_NS
        return JournalFacts(
            keeps_jobs=True,
            records=self._records,
            log_bytes=0,
            log_bytes_max=0,
            unsynced_s=unsynced_s,
            history_bodies_max=self._history.bodies_max,
            tenure=self._tenure,
            database=self._database if is_fresh else None,
        )

    async def close(self) -> str | None:
        """Give the lease back; see ``Journal.close``."""
        self._reader.close()
        self._upkeep.close()
        upkeep = {self._pruning, self._looking_after}
        for task in upkeep:
            task.cancel()
        await asyncio.wait(upkeep)
        await self._sender.until_quiet()
        await self._store_totals()
        return await self._give_back(self._engine.last_id)

    async def _store_totals(self) -> None:
        """Store totals that were postponed, if that succeeds soon. No batch comes after it, as it may be cut off."""
        try:
            async with asyncio.timeout(LOOK_AFTER_S):
                while self._totals.waiting:
                    await self._sender.store(self._batch_of(self._engine.take_changes(deferred=False)))
        except (TimeoutError, JournalFailed) as error:
            log.warning("totals of the last minute may not be stored", why=str(error) or "they take too long")

    async def _give_back(self, last_id: int) -> str | None:
        self._reader.close()
        try:
            await self._sender.give_back(last_id)
        except JournalFailed as error:
            return str(error)
        return None
