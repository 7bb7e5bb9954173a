"""The client on asyncio, with beanlite and with beanstalkd."""

import asyncio
import gc
import json
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from beanlite.client import (
    CannotConnect,
    ConnectionLost,
    Draining,
    JobLost,
    JobTooBig,
    NotFound,
    NotIgnored,
    SomePutsFailed,
    TimedOut,
    UnexpectedReply,
    connect,
)
from tests.support.wire import Wire


@pytest.fixture
async def queue(url, tube):
    """A client that uses and watches a tube of its own."""
    async with connect(url, name=f"tests/{tube}", use=tube, watch=[tube]) as queue:
        yield queue


async def until(condition):
    """Wait until a condition holds that is asked for with ``await``."""
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.002)


async def count(queue, tube, state):
    return (await queue.stats_tube(tube))[f"current-jobs-{state}"]


async def test_put_reserve_delete(queue, tube):
    job_id = await queue.put("häuser", pri=7, ttr_s=9)
    job = await queue.reserve()
    assert (job.id, job.body, job.text) == (job_id, "häuser".encode(), "häuser")
    stats = await queue.stats_job(job_id)
    assert (stats["state"], stats["pri"], stats["ttr"], stats["tube"]) == ("reserved", 7, 9, tube)
    await job.touch()
    await job.delete()
    with pytest.raises(NotFound):
        await queue.stats_job(job_id)
    with pytest.raises(NotFound, match="finished already"):
        await job.delete()


async def test_bodies_are_bytes(queue):
    body = bytes(range(256)) * 39
    await queue.put(body)
    job = await queue.reserve()
    assert job.body == body
    await job.delete()


async def test_release_and_bury_keep_the_pri(queue):
    job_id = await queue.put("again", pri=5)
    await (await queue.reserve()).release()
    assert (await queue.peek_ready()).id == job_id
    await (await queue.reserve()).bury()
    assert (await queue.peek_buried()).text == "again"
    assert (await queue.stats_job(job_id))["pri"] == 5
    assert await queue.kick(10) == 1
    await (await queue.reserve()).release(pri=3, delay_s=1000)
    stats = await queue.stats_job(job_id)
    assert (stats["state"], stats["pri"], stats["releases"], stats["buries"]) == ("delayed", 3, 2, 1)
    assert (await queue.peek_delayed()).id == job_id
    await queue.kick_job(job_id)
    job = await queue.reserve_job(job_id)
    await job.bury(pri=9)
    assert (await queue.stats_job(job_id))["pri"] == 9
    await queue.delete(job_id)
    with pytest.raises(NotFound):
        await queue.peek(job_id)


@pytest.mark.parametrize("way", ["bury", "release"])
async def test_note_stays_with_a_failed_job(queue, server, is_beanlite, way):
    job_id = await queue.put("odd")
    job = await queue.reserve()
    assert not job.is_finished
    await getattr(job, way)(note="delete 1\r\nTraceback: häuser")
    assert job.is_finished
    with Wire(server.connect()) as wire:
        if is_beanlite:
            assert wire.ask(f"show-job {job_id}").startswith("OK")
            assert json.loads(wire.body)["note"] == "delete 1\r\nTraceback: häuser"
    assert (await queue.peek_buried() if way == "bury" else await queue.peek_ready()).id == job_id
    await queue.delete(job_id)


async def test_puts_of_many_tasks_reach_their_tubes(queue, tube):
    tubes = [f"{tube}{number}" for number in range(5)]

    async def put(number):
        return await queue.put(str(number), tubes[number % 5])

    ids = await asyncio.gather(*(put(number) for number in range(200)))
    assert len(set(ids)) == 200
    for number, job_id in enumerate(ids):
        assert (await queue.stats_job(job_id))["tube"] == tubes[number % 5]
    await queue.put("default again")
    assert (await queue.peek_ready()).text == "default again"


async def test_many_bodies_are_put_in_order(queue, tube):
    bodies = [f"job {number}" for number in range(1234)]
    ids = await queue.put_many(bodies, f"{tube}-many")
    assert ids == sorted(ids)
    assert [(await queue.peek(job_id)).text for job_id in (ids[0], ids[700], ids[-1])] == [
        "job 0",
        "job 700",
        "job 1233",
    ]
    assert await queue.put_many([]) == []
    with pytest.raises(SomePutsFailed, match="1 of 3 puts failed") as error:
        await queue.put_many(["a", "x" * 10001, "b"])
    assert [isinstance(job_id, int) for job_id in error.value.ids] == [True, False, True]
    assert isinstance(error.value.errors[1], JobTooBig)


async def test_tubes_are_watched_and_ignored(queue, tube):
    assert await queue.watch("w1") == 2
    assert await queue.watch("w1") == 2
    await queue.put("one", "w1")
    assert await queue.ignore(tube) == 1
    with pytest.raises(NotIgnored):
        await queue.ignore("w1")
    assert (await queue.reserve()).text == "one"
    await queue.use("w2")
    await queue.put("two")
    assert (await queue.peek_ready("w2")).text == "two"
    assert {"w1", "w2"} <= set(await queue.list_tubes())
    with pytest.raises(ValueError, match="no tube can have the name"):
        await queue.watch("w 3")


async def test_paused_tube_gives_no_job(queue, tube):
    await queue.put("later")
    await queue.pause_tube(tube, 60)
    assert (await queue.stats_tube(tube))["pause"] == 60
    with pytest.raises(TimedOut):
        await queue.reserve(0)
    await queue.pause_tube(tube, 0)
    assert (await queue.reserve(0)).text == "later"
    with pytest.raises(NotFound):
        await queue.pause_tube("nowhere", 0)


async def test_waiting_reserves_do_not_hold_up_commands(queue, tube):
    """Nor what is done with the jobs that the client has."""
    await queue.put("first")
    first = await queue.reserve()
    waiting = [asyncio.create_task(queue.reserve()) for _ in range(3)]
    await until(lambda: has_waiting(queue, tube, 3))
    await first.touch()
    await first.delete()
    await queue.put_many(["a", "b", "c"])
    assert sorted([(await task).text for task in waiting]) == ["a", "b", "c"]
    assert (await queue.stats_tube(tube))["current-watching"] == 5


async def has_waiting(queue, tube, number):
    return (await queue.stats_tube(tube))["current-waiting"] == number


async def test_free_connections_are_used_again(queue, tube):
    for number in range(50):
        await queue.put(str(number))
        await (await queue.reserve()).delete()
    assert (await queue.stats_tube(tube))["current-watching"] <= 2


# -- loops over jobs


@pytest.mark.parametrize("ahead", [0, 1, 7, 100])
async def test_loop_yields_jobs_in_order(queue, ahead):
    await queue.put_many([str(number) for number in range(40)])
    texts = []
    async for job in queue.jobs(ahead=ahead):
        texts.append(job.text)
        await job.delete()
        if len(texts) == 40:
            break
    assert texts == [str(number) for number in range(40)]


async def test_loop_waits_for_the_next_job(queue, tube):
    async def texts():
        return [await finished(job) async for job in take(queue.jobs(ahead=5), 3)]

    task = asyncio.create_task(texts())
    for number in range(3):
        await until(lambda: has_waiting(queue, tube, 1))
        await queue.put(str(number))
    assert await task == ["0", "1", "2"]


async def finished(job):
    await job.delete()
    return job.text


async def take(jobs, number):
    async with aclosing(jobs):
        async for job in jobs:
            yield job
            number -= 1
            if number == 0:
                return


async def test_jobs_ahead_are_reserved_by_one_command(queue, is_beanlite):
    await queue.put_many(["x"] * 3)
    before = await queue.stats()
    async with aclosing(queue.jobs(ahead=9)) as jobs:
        await (await anext(jobs)).delete()
        after = await queue.stats()
    words = ("cmd-reserve", "cmd-reserve-with-timeout")
    assert [after[word] - before[word] for word in words] == ([0, 0] if is_beanlite else [1, 9])


async def test_loop_that_ends_gives_back_jobs_ahead(queue, tube):
    await queue.put_many(["x"] * 20, pri=77)
    async with aclosing(queue.jobs(ahead=9)) as jobs:
        job = await anext(jobs)
        assert await count(queue, tube, "reserved") == 10
    assert (await count(queue, tube, "reserved"), await count(queue, tube, "ready")) == (1, 19)
    assert (await queue.stats_job(job.id + 1))["pri"] == 77
    await job.delete()  # it is still ours
    async with aclosing(queue.jobs(ahead=9)) as jobs:
        await (await anext(jobs)).delete()
    await until(lambda: has(queue, tube, reserved=0, ready=18))


async def has(queue, tube, **counts):
    stats = await queue.stats_tube(tube)
    return all(stats[f"current-jobs-{state}"] == number for state, number in counts.items())


async def test_cancelled_loop_gives_back_jobs_ahead(queue, tube):
    await queue.put_many(["x"] * 20)
    seen = asyncio.Event()

    async def work():
        async for _job in queue.jobs(ahead=9):
            seen.set()
            await asyncio.sleep(1000)

    task = asyncio.create_task(work())
    await seen.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    del task  # with the traceback, in which the loop is still going on
    await until(lambda: has(queue, tube, reserved=0, ready=20))


async def test_job_that_is_thrown_away_goes_back(queue, tube):
    await queue.put("x", ttr_s=1000)
    job = await queue.reserve()
    del job
    gc.collect()
    await until(lambda: has(queue, tube, reserved=0, ready=1))
    await queue.reserve()


async def test_closed_queue_gives_back_jobs(url, queue, tube):
    await queue.put("x")
    async with connect(url, watch=[tube]) as other:
        job = await other.reserve()
    await until(lambda: has(queue, tube, reserved=0, ready=1))
    with pytest.raises(JobLost):
        await job.delete()
    with pytest.raises(ConnectionLost, match="closed"):
        await other.put("x")


# -- what goes wrong


async def test_body_that_is_too_big_is_an_error(queue):
    with pytest.raises(JobTooBig):
        await queue.put("x" * 10001)
    assert await queue.put("small")


async def test_missing_server_is_an_error():
    with pytest.raises(
        CannotConnect, match=r"no server can be reached at beanlite://127\.0\.0\.1:1: Connection refused$"
    ):
        async with connect("beanlite://127.0.0.1:1"):
            pass


async def test_cancelled_commands_do_not_shift_replies(queue):
    ids = await queue.put_many([str(number) for number in range(50)])
    tasks = [asyncio.create_task(queue.peek(job_id)) for job_id in ids]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.result().id for task in tasks[1::2]] == ids[1::2]


# -- servers that are none of both


@asynccontextmanager
async def serving(answer):
    """Serve one function until all clients are gone; yield the address."""
    serving: set[Any] = set()

    async def serve(reader, writer):
        serving.add(asyncio.current_task())
        await answer(reader, writer)
        await reader.read()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"beanlite://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*serving)


async def test_commands_of_several_tasks_are_under_way_at_once():
    """The server answers none of the puts before all have come."""

    async def answer(reader, writer):
        assert await reader.readline() == b"list-tube-used\r\n"
        writer.write(b"USING default\r\n")
        for _ in range(10):
            assert await reader.readline() == b"put 1024 0 60 1\r\n"
            assert await reader.readline() == b"x\r\n"
        writer.write(b"".join(b"INSERTED %d\r\n" % number for number in range(10)))

    async with serving(answer) as url, connect(url) as queue, asyncio.timeout(30):
        assert await asyncio.gather(*(queue.put("x") for _ in range(10))) == list(range(10))


async def test_puts_wait_for_a_server_that_does_not_read():
    """What is put meanwhile is not collected in memory."""
    reads = asyncio.Event()

    async def answer(reader, writer):
        await reader.readline()
        writer.write(b"USING default\r\n")
        await reads.wait()
        for number in range(100):
            await reader.readexactly(len(b"put 1024 0 60 200000\r\n") + 200_002)
            writer.write(b"INSERTED %d\r\n" % number)

    async with serving(answer) as url, connect(url) as queue, asyncio.timeout(30):
        puts = [asyncio.create_task(queue.put(b"x" * 200_000)) for _ in range(100)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert 0 < queue._pool.main._transport.get_write_buffer_size() < 1_000_000
        reads.set()
        assert sorted(await asyncio.gather(*puts)) == list(range(100))


async def test_draining_server_is_an_error_of_its_own():
    async def answer(reader, writer):
        for reply in (b"USING default\r\n", b"DRAINING\r\n"):
            await reader.readline()
            writer.write(reply)

    async with serving(answer) as url, connect(url) as queue:
        with pytest.raises(Draining):
            await queue.put("x")


async def test_server_that_speaks_no_beanstalk_is_an_error():
    async def answer(reader, writer):
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n")

    async with serving(answer) as url:
        with pytest.raises(CannotConnect, match=r"HTTP/1\.1 400 Bad Request' is not a reply") as error:
            await connect(url).__aenter__()
        assert isinstance(error.value.__cause__, UnexpectedReply)
