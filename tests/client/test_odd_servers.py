"""Servers that do odd things, and programs that ask for impossible ones."""

import asyncio
import contextlib
import signal
from functools import partial

import pytest

from beanlite.client import (
    CannotConnect,
    ConnectionLost,
    Draining,
    NotFound,
    PutUnknown,
    SomePutsFailed,
    TimedOut,
    Unauthorized,
    UnexpectedReply,
    connect,
    connect_blocking,
)
from beanlite.client.calls import put
from tests.support.servers import start_beanlite

GREETING = b"USING default\r\n"


class Odd:
    """A server that greets, and then answers each line with the next of some replies; None: it closes.

    ``always``: what it answers when there are no more. ``greets``: only so many are greeted, if it is not None.
    """

    def __init__(self, *replies, always=None, greets=None):
        self._greets = greets
        self._replies = list(replies)
        self._always = always
        self.connections = 0
        self._writers = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"beanlite://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_error):
        self._server.close()
        self.cut()

    def cut(self):
        """End all connections."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        self._writers.add(writer)
        is_greeted = self._greets is None or self.connections <= self._greets
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                if line.startswith(b"list-tube-used"):
                    writer.write(GREETING if is_greeted else b"")
                    continue
                if line.startswith(b"put"):
                    await reader.readline()
                reply = self._replies.pop(0) if self._replies else self._always
                if reply is None:
                    break
                writer.write(reply)
        writer.close()


async def test_body_that_is_longer_than_its_length_is_recognised():
    async with Odd(b"FOUND 1 3\r\nabcd\r\n", b"FOUND 1 3\r\nabcd\r\n") as server, connect(server.url) as queue:
        with pytest.raises(UnexpectedReply):
            await queue.peek(1)
        blocking = await asyncio.to_thread(connect_blocking, server.url)
        with pytest.raises(UnexpectedReply):
            await asyncio.to_thread(blocking.peek, 1)
        blocking.close()


@pytest.mark.parametrize("reply", [b"x" * 5000, b"RESERVED 1 9\r\n", b"\0\0\0\r\n", b"INSERTED 1\r\nINSERTED 2\r\n"])
async def test_client_goes_on_after_garbage(reply):
    async with Odd(reply, b"INSERTED 7\r\n", b"INSERTED 8\r\n") as server, connect(server.url) as queue:
        with contextlib.suppress(UnexpectedReply):
            await queue.put("x")
        async with asyncio.timeout(30):
            assert await queue.put("x") == 7
            assert await queue.put("x") == 8


GARBAGE = b"HELLO\r\n"
BATCH = b"RESERVED_BATCH 2\r\nRESERVED 1 1\r\nx\r\nRESERVED 2 1\r\ny\r\n"
EXTRA = b"RESERVED 1 1\r\nx\r\nEXTRA\r\n"


async def test_job_whose_end_is_answered_oddly_is_lost():
    async with Odd(b"RESERVED 1 1\r\nx\r\n", GARBAGE) as server, connect(server.url) as queue:
        job = await queue.reserve()
        with pytest.raises(UnexpectedReply):
            await job.delete()
        assert (job.is_finished, job.is_lost) == (False, True)
    async with Odd(b"RESERVED 1 1\r\nx\r\n", GARBAGE) as server:
        blocking = await asyncio.to_thread(connect_blocking, server.url)
        other = await asyncio.to_thread(blocking.reserve)
        with pytest.raises(UnexpectedReply):
            await asyncio.to_thread(other.delete)
        assert (other.is_finished, other.is_lost) == (False, True)
        blocking.close()


@pytest.mark.parametrize(
    ("replies", "ahead"),
    [
        ([GARBAGE], 0),
        ([GARBAGE], 3),
        ([b"UNKNOWN_COMMAND\r\n", GARBAGE], 3),
        ([b"RESERVED_BATCH 2\r\nRESERVED 1 1\r\nx\r\n" + GARBAGE], 3),
        ([BATCH], 0),
        ([b"RESERVED_BATCH 2\r\n" + BATCH], 3),
        ([EXTRA], 0),
        ([EXTRA], 3),
    ],
)
async def test_loop_ends_when_something_odd_comes(replies, ahead):
    async with Odd(*replies * 2, always=replies[-1]) as server, connect(server.url) as queue:
        blocking = await asyncio.to_thread(connect_blocking, server.url)
        async with asyncio.timeout(30):
            with pytest.raises(UnexpectedReply):
                await anext(queue.jobs(ahead=ahead))
            with pytest.raises(UnexpectedReply):
                await asyncio.to_thread(lambda: list(blocking.jobs(ahead=ahead)))
        assert server.connections == 2


async def test_put_ends_when_its_tube_is_answered_oddly():
    async with Odd(always=GARBAGE) as server, connect(server.url) as queue, asyncio.timeout(30):
        blocking = await asyncio.to_thread(connect_blocking, server.url)
        with pytest.raises(UnexpectedReply):
            await queue.put("x", "other")
        with pytest.raises(UnexpectedReply):
            await asyncio.to_thread(blocking.put, "x", "other")
        for put_many in (queue.put_many, lambda *what: asyncio.to_thread(blocking.put_many, *what)):
            with pytest.raises(SomePutsFailed) as error:
                await put_many(["x", "y"], "other")
            assert {type(each) for each in error.value.errors.values()} == {UnexpectedReply}
        blocking.close()


@pytest.mark.parametrize("ways", [{"use": "x"}, {"watch": "x"}])
async def test_end_amid_the_first_commands_is_no_connection(ways):
    async with Odd() as server:
        with pytest.raises(CannotConnect, match=server.url):
            await asyncio.to_thread(partial(connect_blocking, server.url, **ways))
        with pytest.raises(CannotConnect, match=server.url):
            await connect(server.url, **ways).__aenter__()


@pytest.mark.parametrize("refusal", [b"INTERNAL_ERROR\r\n", b"OUT_OF_MEMORY\r\n"])
async def test_connection_whose_greeting_is_refused_is_made_again(refusal):
    """So answers a router while the server behind it is away."""
    again = [b"NAMED\r\n", None, refusal, b"NAMED\r\n", b"OK 10\r\n---\npid: 1\r\n"]
    async with Odd(refusal, refusal, *again, *again) as server:
        with pytest.raises(CannotConnect):
            await asyncio.to_thread(connect_blocking, server.url, name="me")
        with pytest.raises(CannotConnect):
            await connect(server.url, name="me").__aenter__()
        blocking = await asyncio.to_thread(connect_blocking, server.url, name="me")
        assert await asyncio.to_thread(blocking.stats) == {"pid": 1}
        blocking.close()
        async with connect(server.url, name="me") as queue:
            assert await queue.stats() == {"pid": 1}


async def test_half_closed_connection_is_made_again():
    async with Odd(None, b"INSERTED 7\r\n") as server, connect(server.url) as queue:
        with pytest.raises(PutUnknown):
            await queue.put("x")
        assert await queue.put("x") == 7
        assert server.connections == 2


async def test_last_words_of_a_server_tell_why_a_put_failed():
    async def serve(reader, writer):
        await reader.readline()
        writer.write(GREETING)
        await reader.read(1)
        writer.write(b"UNAUTHORIZED\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"beanlite://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        queue = await asyncio.to_thread(connect_blocking, url)
        with pytest.raises(Unauthorized):
            await asyncio.to_thread(queue.put, "x" * 50_000_000)
        queue.close()


async def test_draining_server_takes_no_more_jobs(tmp_path):
    with start_beanlite(tmp_path, "--no-journal") as server:
        url = f"beanlite://127.0.0.1:{server.port}"
        async with connect(url) as queue, connect(url, use="other") as other:
            await queue.put("x")
            server.signal(signal.SIGUSR1)
            async with asyncio.timeout(30):
                while (await queue.stats())["draining"] != "true":
                    await asyncio.sleep(0.01)
            with pytest.raises(Draining):
                await queue.put("x")
            with pytest.raises(SomePutsFailed) as error:
                await other.put_many(["x", "y"])
            assert [type(each) for each in error.value.errors.values()] == [Draining, Draining]
            await (await queue.reserve(9)).delete()
        with connect_blocking(url) as blocking, pytest.raises(Draining):
            blocking.put("x")


# -- several tasks with one client


async def test_tasks_watch_and_ignore_at_the_same_time(url, tube):
    async with connect(url, watch=tube) as queue:
        await asyncio.gather(*(queue.watch(f"{tube}-{number}") for number in range(5)))
        await queue.put("x", f"{tube}-0")
        await (await queue.reserve(9)).delete()
        await asyncio.gather(*(queue.ignore(f"{tube}-{number}") for number in range(4)))
        assert await queue.watch(tube) == 2


async def test_tasks_that_put_share_a_connection_after_a_kill(mortal):
    async def put(queue):
        while True:
            with contextlib.suppress(PutUnknown):
                return await queue.put("x")

    async with connect(mortal.url) as queue:
        await queue.stats()
        await mortal.kill()
        tasks = [asyncio.create_task(put(queue)) for _ in range(200)]
        await asyncio.sleep(0)
        before = mortal.proxy.passed_on
        await mortal.revive()
        await asyncio.gather(*tasks)
        assert mortal.proxy.passed_on - before <= 2


async def test_tasks_that_reserve_connect_again_together(mortal):
    async with connect(mortal.url) as queue:
        tasks = [asyncio.create_task(queue.reserve()) for _ in range(100)]
        await queue.put_many(["x"] * 50)
        await mortal.kill()
        await mortal.revive()
        await queue.put_many(["x"] * 100)
        async with asyncio.timeout(60):
            jobs = await asyncio.gather(*tasks)
        assert len({job.id for job in jobs}) == 100


async def fail(queue):
    async with contextlib.aclosing(queue.jobs(ahead=3)) as jobs:
        async for job in jobs:
            await job.release(1 // 0)


async def test_exception_in_a_loop_gives_jobs_back(url, tube):
    async with connect(url, use=tube, watch=tube) as queue:
        await queue.put_many(["x"] * 5)
        with pytest.raises(ZeroDivisionError):
            await fail(queue)
        async with asyncio.timeout(30):
            while (await queue.stats_tube(tube))["current-jobs-ready"] != 5:
                await asyncio.sleep(0.01)


async def test_close_ends_all_that_is_under_way(url, tube):
    async with connect(url, use=tube, watch=tube) as queue:
        reserves = [asyncio.create_task(queue.reserve()) for _ in range(5)]
        puts = [asyncio.create_task(queue.put("x", f"{tube}-other")) for _ in range(5)]
        await asyncio.sleep(0)
        await queue.close()
        results = await asyncio.gather(*reserves, return_exceptions=True)
        assert {type(result) for result in results} == {ConnectionLost}
        ids = await asyncio.gather(*puts, return_exceptions=True)
        assert all(isinstance(job_id, int | ConnectionLost) for job_id in ids)
        with pytest.raises(ConnectionLost, match="the queue is closed"):
            await queue.put("x")


# -- servers that are gone


async def test_blocking_reserve_ends_in_time_without_a_server(mortal):
    queue = await asyncio.to_thread(connect_blocking, mortal.url)
    await mortal.kill()
    with pytest.raises(TimedOut):
        await asyncio.to_thread(queue.reserve, 1)
    with pytest.raises(TimedOut):
        await asyncio.to_thread(queue.reserve, 0)
    queue.close()


@pytest.mark.parametrize("watch", ["default", "other"])
async def test_reserve_ends_in_time_if_each_connection_ends(watch):
    first_ones = [b"WATCHING 2\r\n", b"WATCHING 1\r\n"] * 2 if watch == "other" else []
    ways = {"watch": watch}
    async with Odd(*first_ones) as server:
        async with connect(server.url, **ways) as queue, asyncio.timeout(30):
            blocking = await asyncio.to_thread(partial(connect_blocking, server.url, **ways))
            for timeout_s in (1, 0):
                with pytest.raises(TimedOut):
                    await queue.reserve(timeout_s)
                with pytest.raises(TimedOut):
                    await asyncio.to_thread(blocking.reserve, timeout_s)
            blocking.close()
        assert server.connections < 200  # there are waits in between


async def test_puts_after_the_end_of_a_server_are_told_apart(mortal):
    queue = await asyncio.to_thread(connect_blocking, mortal.url, timeout_s=1)
    mortal.proxy.refuses = True
    mortal.proxy.cut_at = "question"
    with pytest.raises(SomePutsFailed) as error:
        await asyncio.to_thread(queue.put_many, ["x"] * 700)
    kinds = [type(error.value.errors[at]) for at in range(700)]
    assert kinds == [PutUnknown] * 500 + [CannotConnect] * 200
    queue.close()


# -- what a program gets wrong


@pytest.fixture
def queue(url, tube):
    with connect_blocking(url, use=tube, watch=tube, timeout_s=30) as queue:
        queue.put("first")
        yield queue


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda queue, wrong: queue.put("x", pri=wrong), "pri"),
        (lambda queue, wrong: queue.put("x", delay_s=wrong), "delay_s"),
        (lambda queue, wrong: queue.put("x", ttr_s=wrong), "ttr_s"),
        (lambda queue, wrong: queue.delete(wrong), "id"),
        (lambda queue, wrong: queue.peek(wrong), "id"),
        (lambda queue, wrong: queue.kick_job(wrong), "id"),
        (lambda queue, wrong: queue.stats_job(wrong), "id"),
        (lambda queue, wrong: queue.reserve_job(wrong), "id"),
        (lambda queue, wrong: queue.kick(wrong), "bound"),
        (lambda queue, wrong: queue.pause_tube("default", wrong), "pause_s"),
        (lambda queue, wrong: next(queue.jobs(ahead=wrong)), "ahead"),
    ],
)
@pytest.mark.parametrize("wrong", [-1, 1 << 64, 1.5, "1"])
def test_impossible_numbers_are_errors(queue, ask, what, wrong):
    sent = queue.stats()["cmd-put"]
    with pytest.raises((ValueError, TypeError), match=what):
        ask(queue, wrong)
    assert queue.stats()["cmd-put"] == sent
    assert queue.peek_ready().text == "first"
    queue.reserve(9).delete()


@pytest.mark.parametrize("wrong", ["abc", b"abc"])
async def test_single_body_is_not_several(url, queue, wrong):
    with pytest.raises(TypeError, match="several bodies"):
        queue.put_many(wrong)
    async with connect(url) as other:
        with pytest.raises(TypeError, match="several bodies"):
            await other.put_many(wrong)


@pytest.mark.parametrize("wrong", [-1, 1 << 31])
async def test_impossible_timeouts_are_errors(url, queue, wrong):
    with pytest.raises(ValueError, match="timeout_s"):
        queue.reserve(wrong)
    async with connect(url) as other:
        with pytest.raises(ValueError, match="timeout_s"):
            await other.reserve(wrong)
    queue.reserve((1 << 31) - 1).delete()


async def test_job_without_an_id_is_not_found(url, queue):
    with pytest.raises(NotFound):
        queue.reserve_job(0)
    async with connect(url) as other, asyncio.timeout(30):
        with pytest.raises(NotFound):
            await other.reserve_job(0)
    queue.reserve(9).delete()


@pytest.mark.parametrize(("body", "kind"), [({"to": "ann"}, "dict"), (None, "NoneType"), (7, "int")])
def test_object_that_is_no_body_is_told_by_its_type(body, kind):
    with pytest.raises(TypeError, match=f"a body is bytes or a text, not {kind}; json.dumps makes a text"):
        put(body, 0, 0, 1)


@pytest.mark.parametrize("body", [bytearray(b"\0\r\n"), memoryview(b"\0\r\n"), b"\0\r\n"])
def test_bodies_are_bytes_of_any_kind(queue, body):
    assert queue.peek(queue.put(body)).body == b"\0\r\n"


def test_longest_name_of_a_tube(queue):
    queue.put("x", "t" * 200)
    assert queue.stats_tube("t" * 200)["name"] == "t" * 200


def test_impossible_arguments_are_errors_at_once():
    with pytest.raises(ValueError, match="no tube can have the name"):
        connect("beanlite://127.0.0.1", use="a b")
    with pytest.raises(ValueError, match="timeout_s"):
        connect_blocking("beanlite://127.0.0.1", timeout_s=0)
