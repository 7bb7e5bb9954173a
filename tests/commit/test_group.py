"""No reply before it is true: the real server and journal in this process, with a disk that does what a test says."""

import asyncio
import contextlib
import errno
import math
import os
import sqlite3
import sys
from types import SimpleNamespace

import pytest

from beanlite.commit import group
from beanlite.commit.group import BATCH_JOBS
from beanlite.core.job import SLICE
from beanlite.core.ledger import TALLIES
from beanlite.errors import JournalBusy, JournalFailed
from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE
from beanlite.journal.sqlite.served import awake, leisure, sync, upkeep, writer
from beanlite.journal.sqlite.served.frames import CHECKPOINT_FRAMES
from beanlite.journal.sqlite.served.upkeep import APART_BYTES
from beanlite.protocol.framing import STEPS_MAX
from tests.support.inside import PUT, ask, connect, is_silent, serving, until


@pytest.fixture(autouse=True)
def _totals_wait(monkeypatch):
    """On a busy machine they might be due amid a test, and have a sync of their own."""
    monkeypatch.setattr(group, "TOTALS_S", 3600.0)


async def test_an_acknowledgement_comes_after_its_sync(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        assert disk.syncs == 1
        assert await ask(client, b"list-tube-used\r\n") == b"USING default\r\n"
        assert disk.syncs == 1
        assert await ask(client, b"delete 1\r\n") == b"DELETED\r\n"
        assert disk.syncs == 2


async def test_slow_sync_holds_up_no_others_and_replies_keep_their_order(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client, second, other = [await connect(server) for _ in range(3)]
        disk.free.clear()
        client[1].write(PUT)
        assert await is_silent(client, other)
        client[1].write(b"list-tube-used\r\n" + PUT + b"list-tube-used\r\n")
        second[1].write(PUT)
        assert await is_silent(client, other)
        assert await is_silent(second, other)
        disk.free.set()
        lines = [await asyncio.wait_for(client[0].readline(), 10) for _ in range(4)]
        assert lines == [b"INSERTED 1\r\n", b"USING default\r\n", b"INSERTED 2\r\n", b"USING default\r\n"]
        assert await asyncio.wait_for(second[0].readline(), 10) == b"INSERTED 3\r\n"
        assert disk.syncs == 2  # the puts that came during the first sync shared the second


async def test_a_stop_that_is_halted_for_long_is_still_one_in_order(tmp_path, monkeypatch, disk):
    async with serving(tmp_path / "q.db") as (server, task):
        client, other = await connect(server), await connect(server)
        disk.free.clear()
        client[1].write(PUT)
        assert await is_silent(client, other)
        server._stopped.set()
        await until(lambda: server.parts.journal._upkeep.stopping)
        now_s = server.loop.time
        monkeypatch.setattr(server.loop, "time", lambda: now_s() + 3600.0)
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert not task.done()
        disk.free.set()
        disk.poll()
        assert await asyncio.wait_for(client[0].read(), 10) == b"INSERTED 1\r\n"
        await task


async def test_a_stop_stores_the_totals_of_more_tubes_than_fit_in_a_batch(tmp_path):
    tubes = 2 * TALLIES + 1
    async with serving(tmp_path / "q.db") as (server, _):
        reader, writer = await connect(server)
        writer.write(b"".join(b"use t%d\r\n%b" % (number, PUT) for number in range(tubes)))
        for _ in range(2 * tubes):
            await asyncio.wait_for(reader.readline(), 10)
    with contextlib.closing(sqlite3.connect(tmp_path / "q.db")) as file:
        assert file.execute("SELECT sum(put) FROM totals WHERE span_s = 3600").fetchone() == (tubes,)


async def test_totals_of_tubes_that_are_gone_do_not_pile_up(tmp_path, monkeypatch, disk):
    monkeypatch.setattr(group, "TOTALS_S", 3600.0)
    tubes, most = 3 * BATCH_JOBS, BATCH_JOBS + 2 * STEPS_MAX
    async with serving(tmp_path / "q.db") as (server, _):
        reader, writer = await connect(server)
        ledger = server.parts.engine.ledger
        disk.free.clear()
        writer.write(b"".join(b"use t%d\r\n%bdelete %d\r\n" % (each, PUT, each) for each in range(1, tubes + 1)))
        await until(lambda: server.wiring.group_commit.full)
        assert BATCH_JOBS < len(ledger.tallied) < most
        disk.free.set()
        for _ in range(3 * tubes):
            await asyncio.wait_for(reader.readline(), 10)
            assert len(ledger.tallied) < most
        assert len(ledger.tallied) <= BATCH_JOBS + 1


async def test_a_stop_does_not_wait_for_ever(tmp_path, monkeypatch, disk):
    monkeypatch.setattr(group, "FLUSH_S", 3 * group.LOOK_S)
    async with serving(tmp_path / "q.db") as (server, task):
        client, other = await connect(server), await connect(server)
        disk.free.clear()
        client[1].write(PUT)
        assert await is_silent(client, other)
        server._stopped.set()
        with pytest.raises(JournalFailed, match="could not be stored within"):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert not client[0]._buffer


@pytest.mark.parametrize(
    ("work", "body"), [("checkpoint", b"x"), ("write_apart", b"x" * (APART_BYTES + 1))], ids=["checkpoint", "large"]
)
async def test_a_stop_waits_for_the_journal_to_do_its_work(tmp_path, monkeypatch, work, body):
    monkeypatch.setattr(group, "LOOK_S", 0.01)
    monkeypatch.setattr(group, "FLUSH_S", 0.2)
    async with serving(tmp_path / "q.db", max_job_size=2 * APART_BYTES) as (server, task):
        client = await connect(server)
        writer, free = server.parts.journal._writer, asyncio.Event()
        do = getattr(writer, work)

        async def do_when_free(*given):
            await free.wait()
            await do(*given)

        monkeypatch.setattr(writer, work, do_when_free)
        writer.frames.added = CHECKPOINT_FRAMES
        client[1].write(b"put 0 0 10 %d\r\n%b\r\n" % (len(body), body))
        await until(lambda: server.parts.journal.working)
        server._stopped.set()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.5)
        free.set()
        await asyncio.wait_for(task, 10)
        assert await client[0].readline() == b"INSERTED 1\r\n"


async def test_a_stop_gives_up_what_nobody_waits_for_if_the_file_is_locked(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(group, "FLUSH_S", 3 * group.LOOK_S)
    async with serving(tmp_path / "q.db") as (server, task):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        with contextlib.closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as outsider:
            outsider.execute("BEGIN IMMEDIATE")
            server._stopped.set()
            await asyncio.wait_for(task, 10)
    assert "what no client waited for was not stored" in caplog.text
    async with serving(tmp_path / "q.db") as (server, _):
        assert await ask(await connect(server), b"delete 1\r\n") == b"DELETED\r\n"


async def test_a_stop_does_not_pause_between_slices_of_deferred_changes(tmp_path, monkeypatch):
    jobs = 2 * SLICE * group.FLUSH_SLICES + 1
    async with serving(tmp_path / "q.db", fsync="never") as (server, task):
        client = await connect(server)
        client[1].write(PUT * jobs)
        for _ in range(jobs):
            await asyncio.wait_for(client[0].readline(), 10)
        monkeypatch.setattr(group, "DEFER_S", 3600.0)
        client[1].write(b"reserve\r\n" * jobs)
        for _ in range(2 * jobs):
            await asyncio.wait_for(client[0].readline(), 10)
        server._stopped.set()
        await asyncio.wait_for(task, 60)


async def test_a_waiting_worker_gets_a_job_only_when_its_put_is_stored(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        worker, producer, other = [await connect(server) for _ in range(3)]
        worker[1].write(b"reserve\r\n")
        disk.free.clear()
        producer[1].write(PUT)
        assert await is_silent(worker, other)
        disk.free.set()
        assert await asyncio.wait_for(worker[0].readline(), 10) == b"RESERVED 1 1\r\n"


async def test_a_client_that_goes_while_its_batch_is_synced_hinders_nobody(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client, second, other = [await connect(server) for _ in range(3)]
        disk.free.clear()
        client[1].write(PUT)
        second[1].write(PUT)
        assert await is_silent(second, other)
        client[1].transport.abort()
        assert await is_silent(second, other)
        disk.free.set()
        assert await asyncio.wait_for(second[0].readline(), 10) == b"INSERTED 2\r\n"


async def test_an_interval_syncs_when_nothing_more_comes(tmp_path, disk):
    async with serving(tmp_path / "q.db", fsync="1ms") as (server, _):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        await until(lambda: disk.syncs == 1)
        assert await ask(client, PUT) == b"INSERTED 2\r\n"
        await until(lambda: disk.syncs == 2)


async def test_time_that_an_interval_sync_takes_is_part_of_the_interval(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db", fsync="never") as (server, _):
        upkeep_ = server.parts.journal._upkeep
        now_s, syncs_s, rests_s = 1.0, [0.01, 0.07, 0.05], []

        async def sync():
            nonlocal now_s
            now_s += syncs_s.pop(0)

        async def sleep(rest_s):
            rests_s.append(round(rest_s, 6))
            if len(rests_s) == 3:
                return  # nothing is committed meanwhile
            if not syncs_s:
                raise asyncio.CancelledError
            upkeep_.note_unsynced()

        with monkeypatch.context() as patch, contextlib.suppress(asyncio.CancelledError):
            patch.setattr(upkeep_._writer, "sync", sync)
            patch.setattr(upkeep, "time", SimpleNamespace(monotonic=lambda: now_s))
            patch.setattr(upkeep, "asyncio", SimpleNamespace(sleep=sleep))
            await upkeep_._sync_by_time(0.05)
        assert rests_s == [0.05, 0.04, 0.0, 0.05, 0.0]


@pytest.mark.parametrize("error", [None, errno.EIO])
async def test_stop_waits_for_an_interval_sync_and_hears_of_its_failure(tmp_path, disk, monkeypatch, error):
    async with serving(tmp_path / "q.db", fsync="1ms") as (server, task):
        client = await connect(server)
        disk.free.clear()
        monkeypatch.setattr(group, "FLUSH_S", 0)  # not for this
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        await until(lambda: not server.parts.journal._upkeep._no_timed_sync.is_set())
        server._stopped.set()
        await until(lambda: server.parts.journal._upkeep.stopping)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        disk.error = error
        disk.free.set()
        with contextlib.nullcontext() if error is None else pytest.raises(JournalFailed, match="sync"):
            await asyncio.wait_for(asyncio.shield(task), 10)


@pytest.fixture
def slices(monkeypatch):
    """How many pages are to be given back at a time, and how many less the file has then; no rest in between."""
    monkeypatch.setattr(leisure, "LOOSE_LOOK_S", 0.01)
    monkeypatch.setattr(leisure, "SHRINK_REST_S", 0)
    monkeypatch.setattr(leisure, "SHRINK_REST_TIMES", 0)
    seen = []
    give_back = writer.Writer.give_back

    def note(journal, pages):
        (before,) = journal._db.execute("PRAGMA page_count").fetchone()
        give_back(journal, pages)
        (after,) = journal._db.execute("PRAGMA page_count").fetchone()
        seen.append((pages, before - after))

    monkeypatch.setattr(writer.Writer, "give_back", note)
    return seen


async def fill_and_drain(server, jobs, size, first=1):
    client = await connect(server)
    client[1].write((b"put 0 0 10 %d\r\n%b\r\n" % (size, b"x" * size)) * jobs)
    for _ in range(jobs):
        assert (await client[0].readline()).startswith(b"INSERTED")
    filled = server._settings.db.stat().st_size
    client[1].write(b"".join(b"delete %d\r\n" % job_id for job_id in range(first, first + jobs)))
    return filled


async def test_file_of_a_drained_backlog_shrinks_by_itself_in_small_slices(tmp_path, slices, monkeypatch):
    monkeypatch.setattr(leisure, "SHRINK_S", 60.0)
    monkeypatch.setattr(writer, "SPARE_PAGES", 500)
    file = tmp_path / "q.db"
    async with serving(file) as (server, _):
        size = 60_000
        jobs = 4 * writer.SPARE_PAGES * PAGE_SIZE // size
        assert await fill_and_drain(server, jobs, size) > jobs * size / 4  # the rest may be in the -wal
        await until(lambda: file.stat().st_size <= (writer.SPARE_PAGES + 50) * PAGE_SIZE)
        assert [pages for pages, _ in slices[:9]] == [1, 2, 4, 8, 16, 32, 64, 100, 100]
        assert all(given <= pages + 2 for pages, given in slices)  # and what had told where they belong
        assert not server.parts.journal._writer.loose  # what is left is kept for the next backlog
        slices.clear()
        await fill_and_drain(server, jobs, size, first=jobs + 1)
        await until(lambda: len(slices) > 1)
        assert [pages for pages, _ in slices[:2]] == [1, 2]


async def test_slice_that_meets_a_lock_makes_the_next_no_larger(tmp_path, slices, monkeypatch):
    monkeypatch.setattr(leisure, "SHRINK_S", 60.0)
    monkeypatch.setattr(writer, "SPARE_PAGES", 10)
    give_back, tries = writer.Writer.give_back, []

    def locked_for_a_while(journal, pages):
        tries.append(pages)
        if 3 <= len(tries) <= 5:
            raise JournalBusy("locked")
        give_back(journal, pages)

    monkeypatch.setattr(writer.Writer, "give_back", locked_for_a_while)
    async with serving(tmp_path / "q.db") as (server, _):
        await fill_and_drain(server, 20, 60_000)
        await until(lambda: len(slices) > 3)
        assert [pages for pages, _ in slices[:4]] == [1, 2, 4, 8]


async def test_pages_that_take_long_to_give_back_go_one_at_a_time(tmp_path, slices, monkeypatch):
    monkeypatch.setattr(leisure, "SHRINK_S", 0.0)
    monkeypatch.setattr(writer, "SPARE_PAGES", 10)
    async with serving(tmp_path / "q.db") as (server, _):
        await fill_and_drain(server, 20, 60_000)
        await until(lambda: len(slices) > 20)
        assert {pages for pages, _ in slices} == {1}


@pytest.mark.parametrize("way", ["the kernel's", "a thread", "on the spot"])
async def test_the_real_sync_works_in_each_way(tmp_path, monkeypatch, way):
    if way == "a thread":
        monkeypatch.setitem(sys.modules, "caio.linux_aio", None)
    async with serving(tmp_path / "q.db") as (server, _):
        writer = server.parts.journal._writer
        assert isinstance(writer._sync.background, sync.ThreadSync) is (way == "a thread")
        if way == "on the spot":
            writer._sync.choice.inline = True
            writer._sync.choice.retry_at_s = math.inf
            monkeypatch.setattr(writer._sync, "background", None)
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        os.close(server.parts.journal._writer._wal)  # the next sync fails, and so does what waits for it
        client[1].write(PUT)
        await until(lambda: server._failure is not None)
        assert isinstance(server._failure, JournalFailed)
        assert not client[0]._buffer


async def test_never_does_not_sync(tmp_path, disk):
    async with serving(tmp_path / "q.db", fsync="never") as (server, _):
        client = await connect(server)
        for number in range(1, 20):
            assert await ask(client, PUT) == b"INSERTED %d\r\n" % number
        assert disk.syncs == 0


async def test_write_lock_of_another_program_delays_only_acknowledgements(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        outsider = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
        outsider.execute("BEGIN IMMEDIATE")
        client[1].write(PUT)
        assert await is_silent(client, other)
        outsider.execute("ROLLBACK")
        outsider.close()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 1\r\n"


async def test_outside_change_ends_the_server_before_it_acknowledges_more(tmp_path):
    async with serving(tmp_path / "q.db") as (server, task):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        with contextlib.closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as outsider:
            outsider.execute("DROP TRIGGER jobs_insert")
        client[1].write(PUT)
        with pytest.raises(JournalFailed, match="another program has changed"):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert not client[0]._buffer


async def test_loop_stays_awake_only_for_the_end_of_a_short_sync(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(awake, "AWAKE_S", 60.0)
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        under_way, stay_awake = server.parts.journal._under_way, server.parts.journal._awake
        disk.free.clear()
        client[1].write(PUT)
        await until(lambda: under_way.syncing)
        assert stay_awake._turning
        stay_awake._until_s = 0.0
        await until(lambda: not stay_awake._turning)
        assert under_way.syncing
        disk.free.set()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 1\r\n"
        stay_awake._last_s = 60.0
        disk.free.clear()
        client[1].write(PUT)
        await until(lambda: under_way.syncing)
        assert not stay_awake._turning
        disk.free.set()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 2\r\n"
