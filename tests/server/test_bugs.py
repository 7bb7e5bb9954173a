"""Our own bugs: a client that meets one gets an error and is closed; others go on, unless shared state is at risk."""

import asyncio
import logging

import pytest

from beanlite.core.queues import Outcome, Queues
from beanlite.journal.sqlite.served import writer
from beanlite.protocol.framing import FramedSession
from beanlite.server.harm import spares_others
from tests.support.inside import PUT, ask, connect, is_silent, serving, until


def fail(*_arguments):
    raise ZeroDivisionError("a bug")


def fail_for_want_of_memory(*_arguments):
    raise MemoryError


def in_parsing(monkeypatch, server):
    monkeypatch.setattr(server.parts.service.words.with_arguments[b"use"], "read", fail)
    return b"use elsewhere\r\n"


def in_statistics(_monkeypatch, server):
    server.parts.service.facts = fail
    return b"stats\r\n"


def in_a_snapshot(monkeypatch, server):
    monkeypatch.setattr(server.parts.engine.jobs[2], "past", None)
    return b"stats-job 2\r\n"


def in_a_look_at_the_disk(monkeypatch, _server):
    monkeypatch.setattr(writer, "wal_size", fail)  # called through the server and the journal
    return b"stats\r\n"


def in_a_reply(monkeypatch, _server):
    monkeypatch.setattr(FramedSession, "job_reply", fail_for_want_of_memory)
    return b"reserve\r\n"


@pytest.mark.parametrize("bug", [in_parsing, in_statistics, in_a_snapshot, in_a_look_at_the_disk, in_a_reply])
async def test_a_bug_costs_only_the_client_that_meets_it(tmp_path, monkeypatch, caplog, disk, bug):
    async with serving(tmp_path / "q.db") as (server, task):
        client, other = await connect(server), await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        assert await ask(client, PUT) == b"INSERTED 2\r\n"
        assert await ask(client, b"reserve\r\n") == b"RESERVED 1 1\r\n"
        assert await client[0].readline() == b"x\r\n"
        disk.free.clear()
        with monkeypatch.context() as patch:
            client[1].write(PUT + bug(patch, server) + b"delete 2\r\n" + PUT)
            assert await is_silent(client, other)
            assert server.parts.engine.last_id == 3
            client[1].write(b"delete 2\r\n")
            assert await is_silent(client, other)
        disk.free.set()
        reply = b"OUT_OF_MEMORY\r\n" if bug is in_a_reply else b"INTERNAL_ERROR\r\n"
        assert await asyncio.wait_for(client[0].read(), 10) == b"INSERTED 3\r\n" + reply
        assert await ask(other, b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1\r\n"
        assert (len(server.parts.engine.jobs), server.parts.engine.counts.clients, task.done()) == (3, 1, False)
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.exc_info[0] in {ZeroDivisionError, AttributeError, MemoryError}


async def test_a_bug_where_a_client_waits_costs_only_that_one(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db") as (server, _):
        worker, other = await connect(server), await connect(server)
        worker[1].write(b"reserve\r\ndelete 1\r\n")
        await until(lambda: server.parts.engine.counts.waiting)
        with monkeypatch.context() as patch:
            patch.setattr(FramedSession, "job_reply", fail_for_want_of_memory)
            assert await ask(other, PUT) == b"INSERTED 1\r\n"
            assert await asyncio.wait_for(worker[0].read(), 10) == b"OUT_OF_MEMORY\r\n"
        assert await ask(other, b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1\r\n"


@pytest.mark.parametrize("meanwhile", [False, True], ids=["waiting", "its waiting is just over"])
async def test_client_that_met_a_bug_waits_no_longer(tmp_path, monkeypatch, disk, meanwhile):
    def receive(session, *_):
        if meanwhile:
            session.engine._queues.wake(session.client, Outcome.TIMED_OUT)
        fail()

    async with serving(tmp_path / "q.db") as (server, _):
        worker, producer, other = await connect(server), await connect(server), await connect(server)
        disk.free.clear()
        worker[1].write(b"put 0 0 60 1\r\nx\r\nreserve\r\nreserve\r\npeek 1\r\n")
        await until(lambda: server.parts.engine.counts.waiting)
        with monkeypatch.context() as patch:
            patch.setattr(FramedSession, "receive", receive)
            worker[1].write(b"list-tube-used\r\n")
            await until(lambda: not server.parts.engine.counts.waiting)
        producer[1].write(PUT)
        assert await is_silent(worker, other)
        disk.free.set()
        said = await asyncio.wait_for(worker[0].read(), 10)
        assert said == b"INSERTED 1\r\nRESERVED 1 1\r\nx\r\nINTERNAL_ERROR\r\n"
        assert await asyncio.wait_for(producer[0].readline(), 10) == b"INSERTED 2\r\n"
        assert server.parts.engine.counts.reserved == 0


@pytest.mark.parametrize("ends", [False, True], ids=["goes on in a later turn", "sends no more"])
async def test_a_bug_in_what_follows_later_costs_only_that_client(tmp_path, monkeypatch, ends):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        assert await ask(client, b"use elsewhere\r\n") == b"USING elsewhere\r\n"
        client[1].write(b"reserve\r\npeek 1\r\n" if ends else b"put 0 1000 10 1\r\nx\r\n" * 1001 + b"kick 1001\r\n")
        await until(
            lambda: (
                server.parts.engine.counts.waiting
                or server.parts.engine.counts.buried
                or len(server.parts.engine.jobs) == 1001
            )
        )
        monkeypatch.setattr(server.parts.service.words.with_arguments[b"peek"], "read", fail)
        client[1].write(b"peek 1\r\n")
        if ends:
            client[1].write_eof()
        *_, last = (await asyncio.wait_for(client[0].read(), 10)).splitlines()
        assert last == b"INTERNAL_ERROR"
        assert await ask(other, b"list-tube-used\r\n") == b"USING default\r\n"


async def test_loss_of_replies_cuts_off_their_client_and_spares_others(tmp_path, monkeypatch, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        await until(lambda: len(server.parts.roster.connections) == 2)
        session = next(iter(server.parts.roster.connections.values())).session
        disk.free.clear()
        for each in (client, other):
            each[1].write(PUT + b"peek 77\r\n")
        await until(lambda: server.parts.engine.last_id == 2)
        client[1].write(b"list-tube-used\r\n")
        await until(lambda: session.replies)
        taken = FramedSession.take_replies
        monkeypatch.setattr(
            FramedSession,
            "take_replies",
            lambda self, **how: fail_for_want_of_memory() if self is session else taken(self, **how),
        )
        disk.free.set()
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED 2\r\n"
        assert await asyncio.wait_for(client[0].read(), 10) == b""
        assert await asyncio.wait_for(other[0].readline(), 10) == b"NOT_FOUND\r\n"
        assert await ask(other, PUT) == b"INSERTED 3\r\n"


async def test_where_replies_can_not_be_sent_the_client_is_cut_off(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        assert await ask(client, b"reserve\r\n") == b"RESERVED 1 1\r\n"
        assert await client[0].readline() == b"x\r\n"
        with monkeypatch.context() as patch:
            patch.setattr(FramedSession, "take_replies", fail_for_want_of_memory)
            client[1].write(b"list-tube-used\r\n")
            assert await asyncio.wait_for(client[0].read(), 10) == b""
        assert await ask(other, b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1\r\n"


async def test_a_bug_amid_a_change_ends_the_server(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db", failure=ZeroDivisionError) as (server, task):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        monkeypatch.setattr(Queues, "leave_state", fail)
        client[1].write(b"delete 1\r\n")
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(asyncio.shield(task), 10)


async def test_bug_that_is_met_again_and_again_does_not_fill_the_log(tmp_path, monkeypatch, caplog):
    async with serving(tmp_path / "q.db") as (server, _):
        server.parts.service.facts = fail
        for _ in range(20):
            assert await ask(await connect(server), b"stats\r\n") == b"INTERNAL_ERROR\r\n"
        monkeypatch.setattr(server.parts.service.words.with_arguments[b"use"], "read", fail_for_want_of_memory)
        assert await ask(await connect(server), b"use other\r\n") == b"OUT_OF_MEMORY\r\n"
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.fields["times"] for record in logged] == [1, 2, 4, 8, 16, 1]
    assert logged[-1].exc_info[0] is MemoryError


def test_a_traceback_that_may_be_incomplete_spares_nobody():
    for raised_amid, spared in [((), True), ((KeyError,), False)]:
        bug = None
        try:
            try:
                raise KeyError
            except raised_amid:
                raise MemoryError from None
        except (KeyError, MemoryError) as error:
            bug = error
        assert spares_others(bug) == spared


async def test_body_without_memory_costs_only_the_client_that_waits_for_it(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        server.parts.engine.bodies.unload(server.parts.engine.jobs[1])
        with monkeypatch.context() as patch:
            patch.setattr(server.parts.journal, "fetch", fail_for_want_of_memory)
            assert await ask(client, b"reserve\r\n") == b"OUT_OF_MEMORY\r\n"
            assert await client[0].read() == b""
        assert await ask(other, b"reserve\r\n") == b"RESERVED 1 1\r\n"
        assert await other[0].readline() == b"x\r\n"
