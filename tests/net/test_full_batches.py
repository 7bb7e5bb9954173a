"""A batch that is full holds back clients that have more to store, however they send it."""

import asyncio

import pytest

from beanlite.commit import group
from beanlite.protocol.framing import STEPS_MAX
from tests.support.inside import PUT, connect, is_silent, serving, until


@pytest.mark.parametrize(
    ("job", "most"),
    [(PUT, group.BATCH_JOBS + 2 * STEPS_MAX), (b"put 0 0 10 60000\r\n" + b"y" * 60000 + b"\r\n", 80)],
)
async def test_full_batch_holds_back_only_clients_that_await_no_replies(tmp_path, disk, job, most):
    jobs = 3 * most
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        disk.free.clear()
        assert await is_silent(client, other)
        client[1].write(job)
        await until(lambda: server.wiring.group_commit.syncing)
        client[1].write(job * (jobs - 1))
        await until(lambda: server.wiring.group_commit.full)
        assert await is_silent(client, other)
        assert server.parts.engine.last_id < most
        other[1].write(PUT)
        assert await is_silent(other, await connect(server))
        (stored,) = [job for job in server.parts.engine.ledger.changed.values() if job.body == b"x" and job.id > 1][-1:]
        disk.free.set()
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED %d\r\n" % stored.id
        ids = [int((await asyncio.wait_for(client[0].readline(), 10)).split()[1]) for _ in range(jobs)]
        assert ids == [number for number in range(1, jobs + 2) if number != stored.id]


@pytest.mark.parametrize(
    ("commands", "replies"),
    [
        ([b"kick 0\r\n"] * 600_000, b"KICKED 0\r\n" * 600_000),
        ([b"use %d\r\npause-tube %d 9\r\n" % (n, n) for n in range(5000)], b"".join(
            b"USING %d\r\nPAUSED\r\n" % n for n in range(5000)
        )),
    ],
    ids=["replies", "pauses"],
)  # fmt: skip
async def test_what_changes_no_job_fills_a_batch_as_well(tmp_path, disk, commands, replies):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        disk.free.clear()
        other[1].write(PUT)
        await until(lambda: server.wiring.group_commit.syncing)
        client[1].write(b"".join(commands))
        await until(lambda: server.wiring.group_commit.full)
        assert await is_silent(client, await connect(server))
        assert server.parts.engine.memory.gathered_bytes < group.BATCH_BYTES + 100_000
        assert len(server.parts.engine.ledger.pauses) < group.BATCH_JOBS + STEPS_MAX
        disk.free.set()
        assert await asyncio.wait_for(client[0].readexactly(len(replies)), 30) == replies


async def test_many_small_replies_one_by_one_fill_a_batch_as_well(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        await until(lambda: len(server.parts.roster.connections) == 2)
        disk.free.clear()
        other[1].write(PUT)
        await until(lambda: server.wiring.group_commit.syncing)
        (connection,) = [each for each in server.parts.roster.connections.values() if not each.owes]
        for _ in range(group.BATCH_REPLIES + 100):
            connection.data_received(b"kick 0\r\n")
        assert len(server.wiring.group_commit._held) == group.BATCH_REPLIES + 1
        disk.free.set()
        told = b"KICKED 0\r\n" * (group.BATCH_REPLIES + 100)
        assert await asyncio.wait_for(client[0].readexactly(len(told)), 10) == told


@pytest.mark.parametrize("fetched", [False, True])
async def test_bodies_that_the_history_keeps_fill_a_batch_as_well(tmp_path, disk, fetched):
    size = 60_000
    jobs = 3 * group.BATCH_BYTES // size
    async with serving(tmp_path / "q.db", history="1d", history_bodies=True) as (server, _):
        client, other = await connect(server), await connect(server)
        engine = server.parts.engine
        client[1].write((b"put 0 0 10 %d\r\n" % size + b"y" * size + b"\r\n") * jobs)
        for _ in range(jobs):
            assert (await asyncio.wait_for(client[0].readline(), 30)).startswith(b"INSERTED ")
        if fetched:
            for job_id in range(1, jobs + 1):
                engine.bodies.unload(engine.jobs[job_id])
        disk.free.clear()
        other[1].write(PUT)
        await until(lambda: server.wiring.group_commit.syncing)
        client[1].write(b"".join(b"delete %d\r\n" % job_id for job_id in range(1, jobs + 1)))
        await until(lambda: server.wiring.group_commit.full)
        assert await is_silent(client, await connect(server))
        events = engine.ledger.events
        assert group.BATCH_BYTES < sum(event.size for event in events) < group.BATCH_BYTES + 2 * size
        assert {event.body is None for event in events} == {fetched}
        assert engine.memory.used_bytes > group.BATCH_BYTES
        disk.free.set()
        for _ in range(jobs):
            assert await asyncio.wait_for(client[0].readline(), 30) == b"DELETED\r\n"


@pytest.mark.parametrize("in_pieces", [False, True])
async def test_clients_with_a_large_body_each_do_not_overfill_a_batch(tmp_path, disk, in_pieces):
    size = 60_000
    line, body = b"put 0 0 10 %d\r\n" % size, b"y" * size + b"\r\n"
    async with serving(tmp_path / "q.db") as (server, _):
        first, other = await connect(server), await connect(server)
        disk.free.clear()
        first[1].write(PUT)
        await until(lambda: server.wiring.group_commit.syncing)
        many = [await connect(server) for _ in range(2 * group.BATCH_BYTES // size)]
        for client in many:
            client[1].write(line + body[:1] if in_pieces else line + body)
        assert await is_silent(many[0], other)
        if in_pieces:
            for client in many:
                for piece in (body[1:-1000], body[-1000:]):
                    client[1].write(piece)
                    assert await is_silent(client, other)
        await until(lambda: server.wiring.group_commit.full)
        assert await is_silent(many[-1], other)
        assert (
            server.parts.engine.admission.granted_bytes - server.parts.engine.admission.room_bytes
            < group.BATCH_BYTES + 2 * size
        )
        disk.free.set()
        for client in many:
            assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"INSERTED ")


async def test_short_pipelines_of_many_clients_do_not_overfill_a_batch(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        first, other = await connect(server), await connect(server)
        disk.free.clear()
        first[1].write(PUT)
        await until(lambda: server.wiring.group_commit.syncing)
        many = [await connect(server) for _ in range(40)]
        for client in many:
            client[1].write(PUT * 100)
        await until(lambda: server.wiring.group_commit.full)
        assert await is_silent(many[-1], other)
        assert server.parts.engine.last_id < group.BATCH_JOBS + 2 * STEPS_MAX
        disk.free.set()
        for client in many:
            for _ in range(100):
                assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"INSERTED ")


async def test_a_batch_that_nobody_waits_for_is_not_full(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        server.parts.engine.admission.room_bytes -= group.BATCH_BYTES + 1  # others have used it
        client[1].write(b"list-tube-used\r\n" * 2 * STEPS_MAX)
        for _ in range(2 * STEPS_MAX):
            assert await asyncio.wait_for(client[0].readline(), 10) == b"USING default\r\n"
