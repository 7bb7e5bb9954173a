"""Replies that are held have a bound for all clients together. Beyond it nobody is served, but all can be seen."""

import asyncio

import pytest

from tests.support.inside import PUT, connect, is_silent, serving, until

BODY = b"y" * 10_000
BOUND = 200_000
SEEN = b"list-tubes\r\n"


async def prepared(server, disk):
    """A client whose put is being synced, so that all others' wait, too."""
    client = await connect(server)
    client[1].write(b"put 0 0 10 %d\r\n%b\r\n" % (len(BODY), BODY))
    assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 1\r\n"
    server.parts.engine.memory.held_max_bytes = BOUND
    disk.free.clear()
    client[1].write(PUT)
    await until(lambda: server.wiring.group_commit.syncing)
    return client


async def crowd(server):
    """Clients to whom so many replies are held that some of these clients are not served."""
    many = [await connect(server) for _ in range(20)]
    for client in many:
        client[1].write(PUT + b"peek 1\r\n" * 4)
    await until(lambda: server.wiring.group_commit.flooded)
    return many


async def hear(client, peeks):
    """Read the replies to a put and so many peeks."""
    assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"INSERTED ")
    for _ in range(peeks):
        await asyncio.wait_for(client[0].readuntil(BODY + b"\r\n"), 10)


async def test_clients_that_come_when_too_much_is_held_are_served_later(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        await prepared(server, disk)
        many = await crowd(server)
        memory = server.parts.engine.memory
        last_id = server.parts.engine.last_id
        assert last_id < 2 + len(many)  # some are not served
        assert BOUND < memory.client_buffer_bytes < BOUND + 5 * len(BODY)
        other = await connect(server)
        other[1].write(b"use x\r\n")
        operator = await connect(server)
        operator[1].write(SEEN)
        assert await asyncio.wait_for(operator[0].readline(), 10) == b"OK 14\r\n"
        assert not other[0]._buffer
        assert server.parts.engine.last_id == last_id
        disk.free.set()
        for client in many:
            await hear(client, 4)
        assert await asyncio.wait_for(other[0].readline(), 10) == b"USING x\r\n"
        await until(lambda: not memory.client_buffer_bytes)


async def test_wrong_line_that_begins_as_a_look_takes_nothing_along(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        await prepared(server, disk)
        many = await crowd(server)
        last_id = server.parts.engine.last_id
        other = await connect(server)
        other[1].write(b"stats x\r\n" + PUT)
        assert await asyncio.wait_for(other[0].readline(), 10) == b"BAD_FORMAT\r\n"
        other[1].write(b"list-tubes x\r\n" + PUT)
        long, operator = await connect(server), await connect(server)
        long[1].write(b"stats " + b"x" * 300)
        await long[1].drain()
        operator[1].write(b"list-clients 2\r\n{}\r\n" + PUT)
        assert (await asyncio.wait_for(operator[0].readline(), 10)).startswith(b"OK ")
        long[1].write(b"stats \r\n" + PUT)
        assert await asyncio.wait_for(long[0].readline(), 10) == b"BAD_FORMAT\r\n"
        assert server.parts.engine.last_id == last_id
        disk.free.set()
        for client in many:
            await hear(client, 4)
        lines = [await asyncio.wait_for(other[0].readline(), 10) for _ in range(3)]
        assert [line.split()[0] for line in lines] == [b"INSERTED", b"BAD_FORMAT", b"INSERTED"]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"list-clients 2\r\n{", b"}\r\n" + PUT],
        [b"list-clients 2\r\n{}", b"\r\n" + PUT],
        [b"list-clients 2\r\n{}\r", b"\n" + PUT],
        [b"list-clients ", b"2\r\n{}\r\n" + PUT],
        [b"list-tubes\r", b"\n" + PUT],
        [b"list", b"-tubes", b"\r\n" + PUT],
    ],
)
async def test_operator_sees_what_goes_on_however_the_command_is_cut(tmp_path, disk, pieces):
    async with serving(tmp_path / "q.db") as (server, _):
        await prepared(server, disk)
        many = await crowd(server)
        operator, last_id = await connect(server), server.parts.engine.last_id
        await until(lambda: len(server.parts.roster.connections) == 2 + len(many))
        connection = list(server.parts.roster.connections.values())[-1]
        for piece in pieces:
            connection.data_received(piece)
        assert (await asyncio.wait_for(operator[0].readline(), 10)).startswith(b"OK ")
        assert server.parts.engine.last_id == last_id
        disk.free.set()
        for client in many:
            await hear(client, 4)
        await until(lambda: server.parts.engine.last_id == 3 + len(many))


async def test_look_amid_a_flood_lets_no_others_of_its_turn_through(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        await prepared(server, disk)
        many = await crowd(server)
        last_id = server.parts.engine.last_id
        for _ in range(2):
            await connect(server)
        await until(lambda: len(server.parts.roster.connections) == 3 + len(many))
        operator, other = list(server.parts.roster.connections.values())[-2:]
        operator.data_received(SEEN)
        other.data_received(PUT)
        assert server.parts.engine.last_id == last_id
        disk.free.set()
        for client in many:
            await hear(client, 4)
        await until(lambda: server.parts.engine.last_id == 3 + len(many))


async def test_what_waits_for_a_held_reply_counts_as_well(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        await prepared(server, disk)
        many = [await connect(server) for _ in range(10)]
        for client in many:
            client[1].write(PUT)
        await until(lambda: server.parts.engine.last_id == 2 + len(many))
        for client in many:
            client[1].write(b"peek 1\r\n" * 4)
        await until(lambda: server.wiring.group_commit.flooded)
        memory = server.parts.engine.memory
        assert BOUND < memory.client_buffer_bytes < BOUND + 5 * len(BODY)
        many[0][1].close()  # nothing is counted for it any more
        disk.free.set()
        for client in many[1:]:
            await hear(client, 4)
        await until(lambda: not memory.client_buffer_bytes)


async def test_bodies_are_not_fetched_for_replies_that_nobody_can_be_sent(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        await prepared(server, disk)
        client, other = await connect(server), await connect(server)
        await until(lambda: len(server.parts.roster.connections) == 3)
        server.parts.engine.bodies.unload(server.parts.engine.jobs.find(1))
        server.parts.engine.memory.held_max_bytes = 100
        client[1].write(PUT + b"peek 1\r\n")
        other[1].write(SEEN)
        await asyncio.wait_for(other[0].readline(), 10)
        server.parts.engine.memory.held_max_bytes = 10
        await asyncio.sleep(0)
        assert server.parts.engine.memory.fetched <= 1
        disk.free.set()
        await hear(client, 1)


async def test_without_a_flood_others_do_not_notice_what_is_held(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        await prepared(server, disk)
        client, other = await connect(server), await connect(server)
        client[1].write(PUT + b"peek 1\r\n" * 4)
        assert await is_silent(client, other)
        disk.free.set()
        await hear(client, 4)


async def test_replies_that_come_to_be_held_themselves_are_counted_once(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        await prepared(server, disk)
        client, memory = await connect(server), server.parts.engine.memory
        client[1].write(PUT)
        await until(lambda: server.parts.engine.last_id == 3)
        client[1].write(b"peek 1\r\n" * 4)
        await until(lambda: memory.client_buffer_bytes > 4 * len(BODY))
        client[1].write(PUT)
        await until(lambda: server.parts.engine.last_id == 4)
        assert memory.client_buffer_bytes < 5 * len(BODY)
        disk.free.set()
        await hear(client, 4)
        await until(lambda: not memory.client_buffer_bytes)
