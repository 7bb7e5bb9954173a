"""Much to do, in slices: a turn of the loop and a batch have something for everybody, and the clock is read once."""

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from beanlite.commit import group
from beanlite.core import ledger as ledger_module
from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS, SLICE
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served import writer
from beanlite.net import turns
from beanlite.net.connection import ONE_BY_ONE_MAX
from beanlite.net.turns import RESUMED_NS, RESUMED_STEPS, TURN_BYTES, TURN_NS, Turns
from beanlite.protocol.blocked import REPLETE, YIELDING
from beanlite.protocol.framing import STEPS_MAX, UNSENT_MAX
from beanlite.protocol.session import REPLIES_MAX
from tests.support.inside import CLIENTS, PUT, connect, is_silent, serving, until
from tests.support.journal_files import put as stored_before
from tests.support.step_by_step import StepByStep


async def test_the_end_of_a_sync_is_seen_while_the_loop_is_busy_with_others(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await connect(server)
        await until(lambda: len(server.parts.roster.connections) == 2)
        client, other = server.parts.roster.connections.values()
        disk.free.clear()
        client.data_received(PUT)
        await until(lambda: server.wiring.group_commit.syncing)
        disk.free.set()
        for _ in range(turns.POLL_EVERY):
            assert server.wiring.group_commit.syncing
            other.data_received(b"list-tube-used\r\n")
        assert not server.wiring.group_commit.syncing
        assert await asyncio.wait_for(CLIENTS[0][0].readline(), 10) == b"INSERTED 1\r\n"


async def test_what_is_held_for_a_client_while_a_sync_goes_on_has_its_limit(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        disk.free.clear()
        other[1].write((b"put 0 0 10 60000\r\n" + b"y" * 60000 + b"\r\n") * 40)
        await until(lambda: server.parts.engine.last_id == 40)
        for number in range(1, 41):
            client[1].write(b"peek %d\r\n" % number)
            await client[1].drain()
            await asyncio.sleep(0)
        await until(lambda: any(each.session.blocked for each in server.parts.roster.connections.values()))
        held = sum(len(replies) for _, replies in server.wiring.group_commit._held)
        assert held < REPLIES_MAX + 100_000
        disk.free.set()
        for _ in range(40):
            assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"FOUND ")
            await client[0].readline()


async def test_short_connections_are_held_back_when_too_many_events_wait(tmp_path, disk):
    jobs = 300  # carried out in one go
    async with serving(tmp_path / "q.db", history="1d") as (server, _):
        putter = await connect(server)
        putter[1].write(PUT * jobs)
        for _ in range(jobs):
            await putter[0].readline()
        await until(lambda: server.wiring.group_commit.idle and not server.parts.engine.ledger.has_deferred)
        disk.free.clear()
        putter[1].write(PUT)
        await until(lambda: server.wiring.group_commit.syncing)
        ledger, connections = server.parts.engine.ledger, server.parts.roster.connections
        for _ in range(group.EVENTS_MAX // jobs):
            client = await connect(server)
            client[1].write(b"reserve\r\n" * jobs)
            events = len(ledger.events) + ledger.waiting_events
            if events > group.EVENTS_MAX:
                break
            for _ in range(2 * jobs):
                await asyncio.wait_for(client[0].readline(), 10)
            client[1].close()
            await until(lambda: len(connections) == 1)
        assert events < group.EVENTS_MAX + 2 * jobs
        others = [await connect(server), await connect(server)]
        for other in others:  # in one turn
            other[1].write(b"use x\r\n")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not client[0]._buffer
        assert [bytes(other[0]._buffer) for other in others] == [b"", b""]
        operator = await connect(server)
        for look in (b"list-tubes\r\n", b"list-clients 2\r\n{}\r\n", b"stats-tube default\r\nuse x\r\n"):
            operator[1].write(look)
            head = await asyncio.wait_for(operator[0].readline(), 10)  # but all can be seen
            await asyncio.wait_for(operator[0].readexactly(int(head.split()[1]) + 2), 10)
        assert not operator[0]._buffer
        disk.free.set()
        for other in (*others, operator):
            assert await asyncio.wait_for(other[0].readline(), 10) == b"USING x\r\n"
        for _ in range(jobs):
            assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"RESERVED ")
            await client[0].readline()
        await until(lambda: not (ledger.events or ledger.waiting_events))
    with sqlite3.connect(tmp_path / "q.db") as file:
        ((reserved, gone),) = file.execute(
            "SELECT count(*) FILTER (WHERE what = 'reserve'), count(*) FILTER (WHERE what = 'client gone') FROM events"
        )
    assert reserved == gone > group.EVENTS_MAX // 2  # the last client was there until the stop


async def test_how_many_replies_are_held_for_a_client_has_its_limit(tmp_path, disk):
    looks = 3 * UNSENT_MAX
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        await until(lambda: server.parts.roster.connections)
        (session,) = [each.session for each in server.parts.roster.connections.values()]
        other = await connect(server)
        disk.free.clear()
        client[1].write(PUT + b"list-tube-used\r\n" * looks)
        await until(lambda: session.blocked is REPLETE)
        assert await is_silent(client, other)
        assert len(session.replies) <= UNSENT_MAX + STEPS_MAX
        disk.free.set()
        lines = [await asyncio.wait_for(client[0].readline(), 10) for _ in range(looks + 1)]
        assert lines == [b"INSERTED 1\r\n"] + [b"USING default\r\n"] * looks


async def test_client_that_connects_during_the_stop_is_not_served(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await until(lambda: server.parts.roster.connections)
        (connection,) = server.parts.roster.connections.values()
        assert server.parts.roster.admit(connection, connection.transport)
        server.parts.roster.close()
        assert not server.parts.roster.admit(connection, connection.transport)


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
        assert server.parts.engine.counts.delayed == jobs - SLICE
        disk.free.set()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"KICKED %d\r\n" % jobs
        assert await asyncio.wait_for(client[0].readline(), 10) == b"USING default\r\n"


@pytest.mark.parametrize("fsync", ["always", "never"])
async def test_what_lags_is_written_in_slices_to_its_end_though_nobody_asks(tmp_path, monkeypatch, fsync):
    sizes = []
    write = writer.Writer.write

    def note(journal, batch):
        sizes.append(batch.jobs)
        write(journal, batch)

    monkeypatch.setattr(writer.Writer, "write", note)
    async with serving(tmp_path / "q.db", fsync) as (server, _):
        client = await connect(server)
        client[1].write(PUT * 3 * SLICE)
        for _ in range(3 * SLICE):
            await client[0].readline()
        sizes.clear()
        client[1].write(b"reserve\r\n" * 3 * SLICE)
        await until(lambda: server.parts.engine.counts.reserved == 3 * SLICE)
        await until(lambda: not server.parts.engine.ledger.deferred)
        assert sum(sizes) == 3 * SLICE
        assert max(sizes) == SLICE
        left = []
        sync = server.parts.journal._writer.sync

        async def last_sync():
            left.append(len(server.parts.engine.ledger.deferred))
            await sync()

        monkeypatch.setattr(server.parts.journal._writer, "sync", last_sync)
        server.parts.engine.ledger.deferred.update(server.parts.engine.jobs.newest)
        await server.wiring.group_commit.flush()
        assert left == [0]
        assert max(sizes) == 3 * SLICE  # hardly a client is left to be spared


async def test_what_a_start_did_is_written_though_nobody_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_module, "DEFERRED_MAX", 100)
    path = tmp_path / "q.db"
    policy = b'{"pattern": "default", "set": {"rate": "5/s"}}'  # each start looks at once whether it still holds
    async with serving(path) as (server, _):
        client = await connect(server)
        client[1].write(b"set-policy %d\r\n%b\r\n" % (len(policy), policy))
        assert (await client[0].readline()).startswith(b"OK ")
    with closing(open_database(path)) as database:
        for number in range(1, 201):
            stored_before(database.connection, number, state="reserved", due_at=1.7e9)
        database.connection.execute("UPDATE meta SET last_id = 200, jobs = NULL")
    async with serving(path) as (server, _):
        await until(lambda: not server.parts.engine.ledger.has_deferred)


async def test_no_dict_of_reservations_grows_large_while_a_sync_goes_on(tmp_path, monkeypatch, disk):
    monkeypatch.setattr(ledger_module, "DEFERRED_MAX", 100)
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        client[1].write(b"put 0 0 1000 1\r\nx\r\n" * 900)
        for _ in range(900):
            await client[0].readline()
        disk.free.clear()
        other[1].write(PUT)
        await until(lambda: server.wiring.group_commit.syncing)
        ledger = server.parts.engine.ledger
        for reserved in range(100, 900, 100):
            client[1].write(b"reserve-with-timeout 0\r\n" * 100)
            for _ in range(200):
                await client[0].readline()
            assert len(ledger.deferred) <= 200
            assert len({job_id for each in (*ledger._older_deferred, ledger.deferred) for job_id in each}) == reserved
        disk.free.set()


async def test_more_due_than_a_slice_is_done_once_a_turn_whoever_comes(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        client = server.parts.engine.clients.connect("10.0.0.1:1")
        for _ in range(3 * SLICE):
            server.parts.engine.put(client, 0, 1, 10, b"", server.wiring.turns._clock() - SECOND_NS)
        for _ in range(5):
            server.wiring.turns.now()
        assert server.parts.engine.counts.delayed == 2 * SLICE
        server.wiring.turns.follow_up(server.wiring.turns.now())
        await until(lambda: not server.parts.engine.counts.delayed)


async def test_the_clock_is_read_once_a_turn_and_never_goes_back(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await connect(server)
        await until(lambda: len(server.parts.roster.connections) == 2)
        ticks = iter(range(1 << 50, 1 << 51))
        monkeypatch.setattr(server.wiring.turns, "_clock", lambda: next(ticks))
        created_ns = []
        monkeypatch.setattr(
            server.parts.engine,
            "put",
            lambda *args, put=server.parts.engine.put: created_ns.append(args[-1]) or put(*args),
        )
        first, second = server.parts.roster.connections.values()
        first.data_received(PUT)
        second.data_received(PUT)
        assert created_ns == [1 << 50] * 2
        first.data_received(PUT * (TURN_BYTES // len(PUT) + 1))
        assert created_ns[-1] > 1 << 50  # a turn may be long
        seen_ns = server.wiring.turns.now()
        second.data_received(PUT)
        assert created_ns[-1] == seen_ns > created_ns[0]
        await asyncio.sleep(0)
        second.data_received(PUT)
        assert created_ns[-1] > seen_ns


async def test_a_timer_counts_from_the_end_of_a_long_turn(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await until(lambda: server.parts.roster.connections)
        now_ns = server.wiring.turns._clock()
        monkeypatch.setattr(server.wiring.turns, "_clock", lambda: now_ns)
        next(iter(server.parts.roster.connections.values())).data_received(b"reserve-with-timeout 60\r\n")
        now_ns += 50 * SECOND_NS
        await until(lambda: server.wiring.turns._timer)
        assert server.wiring.turns._timer.when() - server.loop.time() < 15


async def test_waiting_clients_job_is_stored_with_its_put_in_a_due_batch(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        worker = await connect(server)
        worker[1].write(b"reserve\r\n")
        await until(lambda: server.parts.engine.counts.waiting)
        await connect(server)
        await until(lambda: len(server.parts.roster.connections) == 2)
        server.loop.call_soon(server.wiring.group_commit._turn)
        list(server.parts.roster.connections.values())[1].data_received(PUT)
        assert await asyncio.wait_for(worker[0].readline(), 10) == b"RESERVED 1 1\r\n"
        assert disk.syncs == 1


def test_busy_client_gets_longer_turns_while_it_is_alone():
    server: Any = StepByStep()
    client_turns = Turns(server, Engine(), server, lambda: server.now_ns, lambda *_: None)

    def resume():  # a client with no end of work, in goes of a tenth of a millisecond
        server.now_ns += 100_000
        client_turns.resume_later(resume, YIELDING)

    def took_ns():
        began_ns = server.now_ns
        server.turn()
        return server.now_ns - began_ns

    client_turns.resume_later(resume, YIELDING)
    client_turns.served(one_by_one=True)
    alone = [took_ns() for _ in range(8)]
    assert alone == sorted(alone)
    assert len(set(alone)) > 3
    assert alone[0] == 100_000  # once in a turn, beside others
    assert alone[-1] == alone[-2] > TURN_NS
    client_turns.served(one_by_one=False)
    assert took_ns() == alone[-1]
    client_turns.served(one_by_one=True)
    assert took_ns() == alone[0]


def test_client_that_resumes_beside_others_gets_short_turns():
    server: Any = StepByStep()
    client_turns = Turns(server, Engine(), server, lambda: server.now_ns, lambda *_: None)
    steps = []

    def resume():
        steps.append(client_turns.steps)
        client_turns.resume_later(resume, YIELDING)

    client_turns.resume_later(resume, YIELDING)
    client_turns.served(one_by_one=True)
    server.turn()
    assert steps == [RESUMED_STEPS]
    server.now_ns += TURN_NS  # so that the next one is over after its first
    client_turns._clock = iter(range(server.now_ns, server.now_ns << 8, TURN_NS)).__next__
    server.turn()
    assert steps == [RESUMED_STEPS, STEPS_MAX]


@pytest.mark.parametrize(("commands", "counts"), [(ONE_BY_ONE_MAX, True), (ONE_BY_ONE_MAX + 1, False)])
async def test_others_are_those_who_send_one_by_one(tmp_path, commands, counts):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await until(lambda: server.parts.roster.connections)
        (connection,) = server.parts.roster.connections.values()
        server.wiring.turns._share_ns = TURN_NS
        connection.data_received(b"list-tube-used\r\n" * commands)
        assert (server.wiring.turns._share_ns == RESUMED_NS) is counts


async def test_resumed_connection_carries_out_as_much_as_its_turn_says(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await until(lambda: server.parts.roster.connections)
        (connection,) = server.parts.roster.connections.values()
        connection.session.postpone(b"list-tube-used\r\n" * STEPS_MAX)
        server.wiring.turns.steps = 3
        connection.resume()
        assert connection.session.service.words.bare[b"list-tube-used"].count == 3
