"""No reply before it is true: the real server and journal in this process, with a disk that does what a test says."""

import asyncio
import contextlib
import errno
import os
import sqlite3
import sys

import pytest

from beanlite import barrier as barrier_module
from beanlite.commands import REPLETE
from beanlite.config import Settings
from beanlite.engine import SLICE
from beanlite.errors import JournalFailed
from beanlite.job import SECOND_NS
from beanlite.journal import sync, writer
from beanlite.journal.fileformat import PAGE_SIZE
from beanlite.listen import open_listener
from beanlite.protocol import REPLIES_MAX, STEPS_MAX, UNSENT_MAX
from beanlite.server import TURN_BYTES, Server

PUT = b"put 0 0 10 1\r\nx\r\n"


class Disk:
    """Stands for fdatasync: counts, and waits or fails when told to."""

    def __init__(self):
        self.free = asyncio.Event()
        self.free.set()
        self.error = None
        self.syncs = 0
        self.under_way = []

    def __call__(self, _descriptor, done):
        self.under_way.append(done)
        asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self):
        await self.free.wait()
        self.see_ends()

    def see_ends(self):
        while self.free.is_set() and self.under_way:
            done = self.under_way.pop(0)
            if self.error is not None:
                done(OSError(self.error, os.strerror(self.error)))
            else:
                self.syncs += 1
                done(None)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(writer, "best_sync", lambda: disk)
    yield disk
    disk.free.set()


@contextlib.asynccontextmanager
async def serving(path, fsync="always"):
    settings = Settings(port=0, db=path, fsync=fsync)
    server = Server(settings, open_listener(settings))
    task = asyncio.create_task(server.serve())
    try:
        while not hasattr(server, "barrier"):
            await asyncio.sleep(0)
            if task.done():
                task.result()
        yield server, task
    finally:
        server._stopped.set()
        with contextlib.suppress(JournalFailed):
            await task
        # After a failure the real process ends at once; here it has to be tidied up.
        for connection in list(server._connections.values()):
            connection.stop()
        await server._journal._thread.close()
        for _, writer in CLIENTS:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        CLIENTS.clear()


CLIENTS = []  # of the server that is being tested


async def connect(server):
    host, port = server._listener.address.split(":")
    CLIENTS.append(await asyncio.open_connection(host, int(port)))
    return CLIENTS[-1]


async def until(condition):
    """Poll: what is waited for happens in a thread, or on a timer of the server's."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


async def ask(client, data):
    client[1].write(data)
    return await asyncio.wait_for(client[0].readline(), 10)


async def is_silent(client, beside):
    """Nothing comes, while another client is answered a few times."""
    for _ in range(5):
        assert await ask(beside, b"list-tube-used\r\n") == b"USING default\r\n"
    return not client[0]._buffer


async def test_an_acknowledgement_comes_after_its_sync(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        assert disk.syncs == 1
        assert await ask(client, b"list-tube-used\r\n") == b"USING default\r\n"
        assert disk.syncs == 1
        assert await ask(client, b"delete 1\r\n") == b"DELETED\r\n"
        assert disk.syncs == 2


async def test_while_a_slow_sync_goes_on_others_are_served_and_replies_keep_their_order(tmp_path, disk):
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


async def test_the_end_of_a_sync_is_seen_while_the_loop_is_busy_with_others(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await connect(server)
        await until(lambda: len(server._connections) == 2)
        client, other = server._connections.values()
        disk.free.clear()
        client.data_received(PUT)
        await until(lambda: server.barrier.syncing)
        disk.free.set()
        for _ in range(barrier_module.WAY_EVERY):
            assert server.barrier.syncing
            other.data_received(b"list-tube-used\r\n")
        assert not server.barrier.syncing
        assert await asyncio.wait_for(CLIENTS[0][0].readline(), 10) == b"INSERTED 1\r\n"


async def test_a_waiting_worker_gets_a_job_only_when_its_put_is_stored(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        worker, producer, other = [await connect(server) for _ in range(3)]
        worker[1].write(b"reserve\r\n")
        disk.free.clear()
        producer[1].write(PUT)
        assert await is_silent(worker, other)
        disk.free.set()
        assert await asyncio.wait_for(worker[0].readline(), 10) == b"RESERVED 1 1\r\n"


async def test_what_is_held_for_a_client_while_a_sync_goes_on_has_its_limit(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        disk.free.clear()
        other[1].write((b"put 0 0 10 60000\r\n" + b"y" * 60000 + b"\r\n") * 40)
        await until(lambda: server.engine.last_id == 40)
        for number in range(1, 41):
            client[1].write(b"peek %d\r\n" % number)
            await client[1].drain()
            await asyncio.sleep(0)
        await until(lambda: any(each.session.blocked for each in server._connections.values()))
        held = sum(len(replies) for _, replies in server.barrier._held)
        assert held < REPLIES_MAX + 100_000
        disk.free.set()
        for _ in range(40):
            assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"FOUND ")
            await client[0].readline()


@pytest.mark.parametrize(
    ("job", "most"),
    [(PUT, barrier_module.BATCH_JOBS + 2 * STEPS_MAX), (b"put 0 0 10 60000\r\n" + b"y" * 60000 + b"\r\n", 80)],
)
async def test_who_does_not_wait_for_replies_is_held_back_when_the_batch_is_full_and_others_are_not(
    tmp_path, disk, job, most
):
    jobs = 3 * most
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        disk.free.clear()
        assert await is_silent(client, other)
        client[1].write(job)
        await until(lambda: server.barrier.syncing)
        client[1].write(job * (jobs - 1))
        await until(lambda: server.barrier.full)
        assert await is_silent(client, other)
        assert server.engine.last_id < most
        other[1].write(PUT)
        assert await is_silent(other, await connect(server))
        (stored,) = [job for job in server.engine.changed.values() if job.body == b"x" and job.id > 1][-1:]
        disk.free.set()
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED %d\r\n" % stored.id
        ids = [int((await asyncio.wait_for(client[0].readline(), 10)).split()[1]) for _ in range(jobs)]
        assert ids == [number for number in range(1, jobs + 2) if number != stored.id]


async def test_how_many_replies_are_held_for_a_client_has_its_limit(tmp_path, disk):
    looks = 3 * UNSENT_MAX
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        await until(lambda: server._connections)
        (session,) = [each.session for each in server._connections.values()]
        other = await connect(server)
        disk.free.clear()
        client[1].write(PUT + b"list-tube-used\r\n" * looks)
        await until(lambda: session.blocked is REPLETE)
        assert await is_silent(client, other)
        assert len(session.replies) <= UNSENT_MAX + STEPS_MAX
        disk.free.set()
        lines = [await asyncio.wait_for(client[0].readline(), 10) for _ in range(looks + 1)]
        assert lines == [b"INSERTED 1\r\n"] + [b"USING default\r\n"] * looks


async def test_a_batch_that_nobody_waits_for_is_not_full(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        server.engine.room_bytes -= barrier_module.BATCH_BYTES + 1  # others have used it
        client[1].write(b"list-tube-used\r\n" * 2 * STEPS_MAX)
        for _ in range(2 * STEPS_MAX):
            assert await asyncio.wait_for(client[0].readline(), 10) == b"USING default\r\n"


async def test_who_comes_when_the_server_stops_is_not_served(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await until(lambda: server._connections)
        (connection,) = server._connections.values()
        assert server.admit(connection)
        server._stopped.set()
        assert not server.admit(connection)


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


async def test_after_a_failed_sync_nothing_is_acknowledged_and_the_server_ends(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, task):
        client, second = await connect(server), await connect(server)
        disk.error = errno.EIO
        client[1].write(PUT)
        second[1].write(PUT)
        with pytest.raises(JournalFailed, match="sync"):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert not client[0]._buffer
        assert not second[0]._buffer


async def test_an_interval_syncs_when_nothing_more_comes(tmp_path, disk):
    async with serving(tmp_path / "q.db", fsync="1ms") as (server, _):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        await until(lambda: disk.syncs == 1)
        assert await ask(client, PUT) == b"INSERTED 2\r\n"
        await until(lambda: disk.syncs == 2)


@pytest.mark.parametrize("error", [None, errno.EIO])
async def test_a_stop_waits_for_the_sync_of_an_interval_and_hears_of_its_failure(tmp_path, disk, monkeypatch, error):
    async with serving(tmp_path / "q.db", fsync="1ms") as (server, task):
        client = await connect(server)
        disk.free.clear()
        monkeypatch.setattr(barrier_module, "DRAIN_S", 0)  # not for this
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        await until(lambda: server.barrier._syncing_by_time)
        server._stopped.set()
        await until(lambda: server.barrier._draining)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        disk.error = error
        disk.free.set()
        with contextlib.nullcontext() if error is None else pytest.raises(JournalFailed, match="sync"):
            await asyncio.wait_for(asyncio.shield(task), 10)


async def test_the_file_of_a_drained_backlog_shrinks_by_itself_a_little_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(barrier_module, "LOOSE_LOOK_S", 0.01)
    monkeypatch.setattr(barrier_module, "SHRINK_EVERY_S", 0)
    given = []
    give_back = writer.Journal.give_back

    def pages(journal):
        return journal._db.execute("PRAGMA page_count").fetchone()[0]

    def note(journal):
        before = pages(journal)
        give_back(journal)
        given.append(before - pages(journal))

    monkeypatch.setattr(writer.Journal, "give_back", note)
    file = tmp_path / "q.db"
    async with serving(file) as (server, _):
        client = await connect(server)
        size = 60_000
        jobs = 4 * writer.SPARE_PAGES * PAGE_SIZE // size
        client[1].write((b"put 0 0 10 %d\r\n%b\r\n" % (size, b"x" * size)) * jobs)
        for _ in range(jobs):
            assert (await client[0].readline()).startswith(b"INSERTED")
        assert file.stat().st_size > jobs * size / 2
        assert not given
        client[1].write(b"".join(b"delete %d\r\n" % job_id for job_id in range(1, jobs + 1)))
        await until(lambda: file.stat().st_size <= (writer.SPARE_PAGES + 50) * PAGE_SIZE)
        assert max(given) <= writer.LOOSE_PAGES + 2  # and what had told where they belong
        assert not server._journal.loose  # what is left is kept for the next backlog


@pytest.mark.parametrize("kernel", [True, False])
async def test_the_real_sync_works_with_and_without_the_kernels_own(tmp_path, monkeypatch, kernel):
    if not kernel:
        monkeypatch.setitem(sys.modules, "caio", None)
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        assert isinstance(server._journal._sync, sync.KernelSync) is kernel
        os.close(server._journal._wal)  # the next sync fails, and so does what waits for it
        client[1].write(PUT)
        await until(lambda: server._failure is not None)
        assert isinstance(server._failure, JournalFailed)
        assert not client[0]._buffer


async def test_a_long_kick_waits_for_each_of_its_slices_to_be_stored(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        jobs = 3 * SLICE
        client[1].write(b"put 0 1000 10 1\r\nx\r\n" * jobs)
        for _ in range(jobs):
            await client[0].readline()
        disk.free.clear()
        client[1].write(b"kick %d\r\nlist-tube-used\r\n" % jobs)
        assert await is_silent(client, other)
        assert server.engine.delayed == jobs - SLICE
        disk.free.set()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"KICKED %d\r\n" % jobs
        assert await asyncio.wait_for(client[0].readline(), 10) == b"USING default\r\n"


@pytest.mark.parametrize("fsync", ["always", "never"])
async def test_what_lags_is_written_in_slices_to_its_end_though_nobody_asks(tmp_path, monkeypatch, fsync):
    sizes = []
    write = writer.Journal.write

    def note(journal, batch):
        sizes.append(batch.jobs)
        write(journal, batch)

    monkeypatch.setattr(writer.Journal, "write", note)
    async with serving(tmp_path / "q.db", fsync) as (server, _):
        client = await connect(server)
        client[1].write(PUT * 3 * SLICE)
        for _ in range(3 * SLICE):
            await client[0].readline()
        sizes.clear()
        client[1].write(b"reserve\r\n" * 3 * SLICE)
        await until(lambda: server.engine.reserved == 3 * SLICE)
        await until(lambda: not server.engine.lagging)
        assert sum(sizes) == 3 * SLICE
        assert max(sizes) == SLICE
        left = []
        sync = server._journal.sync

        async def last_sync():
            left.append(len(server.engine.lagging))
            await sync()

        monkeypatch.setattr(server._journal, "sync", last_sync)
        server.engine.lagging.update(server.engine.jobs)
        await server.barrier.drain()
        assert left == [0]
        assert max(sizes) == SLICE


async def test_more_due_than_a_slice_is_done_once_a_turn_whoever_comes(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        client = server.engine.connect()
        for _ in range(3 * SLICE):
            server.engine.put(client, 0, 1, 10, b"", server._clock() - SECOND_NS)
        for _ in range(5):
            server.now()
        assert server.engine.delayed == 2 * SLICE
        server.follow_up(server.now())
        await until(lambda: not server.engine.delayed)


async def test_the_clock_is_read_once_a_turn_and_never_goes_back(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await connect(server)
        await until(lambda: len(server._connections) == 2)
        ticks = iter(range(1 << 50, 1 << 51))
        monkeypatch.setattr(server, "_clock", lambda: next(ticks))
        created_ns = []
        monkeypatch.setattr(
            server.engine, "put", lambda *args, put=server.engine.put: created_ns.append(args[-1]) or put(*args)
        )
        first, second = server._connections.values()
        first.data_received(PUT)
        second.data_received(PUT)
        assert created_ns == [1 << 50] * 2
        first.data_received(PUT * (TURN_BYTES // len(PUT) + 1))
        assert created_ns[-1] > 1 << 50  # a turn may be long
        seen_ns = server.now()
        second.data_received(PUT)
        assert created_ns[-1] == seen_ns > created_ns[0]
        await asyncio.sleep(0)
        second.data_received(PUT)
        assert created_ns[-1] > seen_ns


async def test_a_timer_counts_from_the_end_of_a_long_turn(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await until(lambda: server._connections)
        now_ns = server._clock()
        monkeypatch.setattr(server, "_clock", lambda: now_ns)
        next(iter(server._connections.values())).data_received(b"reserve-with-timeout 60\r\n")
        now_ns += 50 * SECOND_NS
        await until(lambda: server._timer)
        assert server._timer.when() - server.loop.time() < 15


async def test_a_job_for_a_waiting_client_is_stored_with_its_put_though_the_batch_is_due_already(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        worker = await connect(server)
        worker[1].write(b"reserve\r\n")
        await until(lambda: server.engine.waiting)
        await connect(server)
        await until(lambda: len(server._connections) == 2)
        server.loop.call_soon(server.barrier._turn)
        list(server._connections.values())[1].data_received(PUT)
        assert await asyncio.wait_for(worker[0].readline(), 10) == b"RESERVED 1 1\r\n"
        assert disk.syncs == 1


async def test_never_does_not_sync(tmp_path, disk):
    async with serving(tmp_path / "q.db", fsync="never") as (server, _):
        client = await connect(server)
        for number in range(1, 20):
            assert await ask(client, PUT) == b"INSERTED %d\r\n" % number
        assert disk.syncs == 0


async def test_a_write_lock_held_by_another_program_delays_acknowledgements_and_nothing_else(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        outsider = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
        outsider.execute("BEGIN IMMEDIATE")
        client[1].write(PUT)
        assert await is_silent(client, other)
        outsider.execute("ROLLBACK")
        outsider.close()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 1\r\n"


async def test_an_outside_change_ends_the_server_before_it_acknowledges_more(tmp_path):
    async with serving(tmp_path / "q.db") as (server, task):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        with contextlib.closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as outsider:
            outsider.execute("CREATE TABLE mine (x)")
        client[1].write(PUT)
        with pytest.raises(JournalFailed, match="another program has changed"):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert not client[0]._buffer


async def test_a_full_disk_refuses_puts_and_goes_on_when_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(barrier_module, "FULL_RETRY_S", 0.01)
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        journal = server._journal
        monkeypatch.setattr(journal, "take_reserve", lambda: False)
        (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
        journal._db.execute(f"PRAGMA max_page_count = {pages}")
        client[1].write(b"put 0 0 10 60000\r\n" + b"y" * 60000 + b"\r\n")
        await until(lambda: server.engine.full)
        assert await ask(other, PUT) == b"OUT_OF_MEMORY\r\n"
        assert not client[0]._buffer
        assert not (tmp_path / "q.db-reserve").exists()
        journal._db.execute("PRAGMA max_page_count = 1000000")
        assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 2\r\n"
        assert await ask(other, b"delete 1\r\n") == b"DELETED\r\n"
        assert await ask(other, PUT) == b"OUT_OF_MEMORY\r\n"
        monkeypatch.undo()
        await until(lambda: not server.engine.full)
        assert await ask(other, PUT) == b"INSERTED 3\r\n"
