"""The client connects again: after kills of the server, and after connections that end amid a command."""

import asyncio
import contextlib
from collections import Counter

import pytest

from beanlite.client import (
    ConnectionLost,
    JobLost,
    NotFound,
    PutUnknown,
    SomePutsFailed,
    TimedOut,
    connect,
    connect_blocking,
)
from tests.client.mortal import Mortal
from tests.support.wire import Wire, until


async def test_client_goes_on_as_before_after_a_kill(mortal):
    async with connect(mortal.url, name="web1/mail/17", use="out", watch=["a"]) as queue:
        await queue.watch("b")
        await queue.put("held", "a")
        held = await queue.reserve()
        waiting = asyncio.create_task(queue.reserve())
        await queue.stats()
        await mortal.kill()
        with pytest.raises(JobLost, match=f"job {held.id}"):
            await held.delete()
        put = asyncio.create_task(queue.put("later"))
        await mortal.revive()
        again = await waiting
        assert (again.id, again.text) == (held.id, "held")
        job_id = await put
        assert (await queue.stats_job(job_id))["tube"] == "out"
        await queue.put("b", "b")
        assert (await queue.reserve()).text == "b"
        assert {client["name"] for client in mortal.clients()} == {"web1/mail/17"}
        with pytest.raises(JobLost):
            await held.touch()
        await again.delete()
        with pytest.raises(NotFound):
            await queue.peek(held.id)


@pytest.mark.parametrize("cut", ["answer", "question"])
async def test_put_whose_answer_is_lost_is_not_repeated(mortal, cut):
    async with connect(mortal.url) as queue:
        await queue.stats()
        mortal.proxy.cut_at = cut
        with pytest.raises(PutUnknown, match="the connection ended before the answer came"):
            await queue.put("once")
        stats = await queue.stats_tube("default")
        assert stats["total-jobs"] == (1 if cut == "answer" else 0)
        await queue.put("again")
        assert (await queue.stats_tube("default"))["total-jobs"] == stats["total-jobs"] + 1


async def test_several_puts_tell_which_are_unknown(mortal):
    async with connect(mortal.url) as queue:
        await queue.stats()
        mortal.proxy.cut_at = "answer"
        with pytest.raises(SomePutsFailed) as error:
            await queue.put_many(["x"] * 700)
        assert {type(each) for each in error.value.errors.values()} == {PutUnknown}
        assert [job_id is None for job_id in error.value.ids] == [True] * 500 + [False] * 200


async def test_put_that_was_held_back_is_sent_once(mortal):
    """The connection ends with the use that it waits for."""
    async with connect(mortal.url) as queue:
        await queue.stats()
        mortal.proxy.cut_at = "answer"
        job_id = await queue.put("x", "other")
        stats = await queue.stats_tube("other")
        assert (stats["total-jobs"], mortal.proxy.cuts) == (1, 1)
        assert (await queue.peek(job_id)).text == "x"


async def test_commands_that_change_nothing_are_repeated(mortal):
    async with connect(mortal.url) as queue:
        job_id = await queue.put("x")
        for ask in (queue.stats, queue.list_tubes, lambda: queue.peek(job_id), queue.peek_ready):
            mortal.proxy.cut_at = "answer"
            assert await ask()
        assert mortal.proxy.cuts == 4
        mortal.proxy.cut_at = "answer"
        with pytest.raises(ConnectionLost):
            await queue.kick(1)


async def test_job_whose_delete_is_lost_is_not_ours(mortal):
    async with connect(mortal.url) as queue:
        await queue.put("x")
        job = await queue.reserve()
        mortal.proxy.cut_at = "answer"
        with pytest.raises(JobLost, match=f"job {job.id}: the connection ended before the answer came"):
            await job.delete()
        assert job.is_lost
        with pytest.raises(NotFound):
            await queue.peek(job.id)


async def test_lost_job_of_a_reserve_comes_again(mortal):
    async with connect(mortal.url) as queue:
        job_id = await queue.put("x")
        mortal.proxy.cut_at = "answer"
        assert (await queue.reserve()).id == job_id
        assert mortal.proxy.cuts == 1


async def test_reserve_with_a_timeout_waits_no_longer(mortal):
    async with connect(mortal.url) as queue:
        waiting = asyncio.create_task(queue.reserve(1))
        await asyncio.sleep(0)
        await mortal.kill()
        await mortal.revive()
        with pytest.raises(TimedOut):
            await waiting


async def test_blocking_client_goes_on_as_before_after_a_kill(mortal):
    def begin():
        queue = connect_blocking(mortal.url, name="me", use="out", watch=["a"])
        queue.put("held", "a")
        return queue, queue.reserve()

    def go_on(queue, held):
        queue.put("new")
        with pytest.raises(JobLost):
            held.delete()
        again = queue.reserve()
        assert (again.id, queue.peek_ready("out").text) == (held.id, "new")
        again.delete()

    queue, held = await asyncio.to_thread(begin)
    await mortal.kill()
    going = asyncio.create_task(asyncio.to_thread(go_on, queue, held))
    await mortal.revive()
    await going
    assert [client["name"] for client in mortal.clients()] == ["me"]
    mortal.proxy.cut_at = "answer"
    assert await asyncio.to_thread(queue.list_tubes)
    mortal.proxy.cut_at = "answer"
    with pytest.raises(PutUnknown):
        await asyncio.to_thread(queue.put, "lost", "default")
    queue.close()


async def test_put_is_not_sent_on_a_connection_that_has_ended(mortal):
    blocking = await asyncio.to_thread(connect_blocking, mortal.url)
    async with connect(mortal.url) as queue:
        await mortal.kill()
        await mortal.revive()
        assert await asyncio.to_thread(blocking.put, "x")
        assert await queue.put("x")
        assert (await queue.stats_tube("default"))["total-jobs"] == 2
    blocking.close()


async def test_client_finds_the_server_that_has_taken_over(tmp_path):
    async with Mortal(tmp_path / "a") as first, Mortal(tmp_path / "b") as second:
        await second.kill()
        url = f"beanlite://127.0.0.1:{second.proxy.port},127.0.0.1:{first.proxy.port}"
        blocking = await asyncio.to_thread(connect_blocking, url)
        async with connect(url) as queue:
            await queue.put("a")
            await asyncio.to_thread(blocking.put, "b")
            waiting = asyncio.create_task(queue.reserve())
            await waiting
            waiting = asyncio.ensure_future(anext(queue.jobs("default", "new")))
            await first.kill()
            await second.revive()
            assert await asyncio.to_thread(blocking.list_tubes)
            await queue.put("c", "new")
            assert (await waiting).text == "c"
        await asyncio.to_thread(blocking.close)


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.nightly)])
async def test_producers_and_workers_go_on_through_kills(mortal, kills):
    """No acknowledged put is lost, and no job comes again whose delete was acknowledged."""
    put, unknown, done = Counter(), Counter(), Counter()
    goes_on = True

    async def produce(queue, name):
        number = 0
        while goes_on:
            number += 1
            try:
                await queue.put(f"{name}-{number}", f"t{number % 3}")
                put[f"{name}-{number}"] += 1
            except PutUnknown:
                unknown[f"{name}-{number}"] += 1

    async def work(queue):
        async for job in queue.jobs("t0", "t1", "t2", ahead=3):
            with contextlib.suppress(JobLost):
                await job.delete()
                done[job.text] += 1

    async with connect(mortal.url) as queue, connect(mortal.url) as other:
        producers = [asyncio.create_task(produce(each, f"{n}")) for n, each in enumerate([queue, queue, other])]
        workers = [asyncio.create_task(work(each)) for each in (queue, queue, other)]
        for _ in range(kills):
            before = sum(done.values())
            await until_inside(lambda before=before: sum(done.values()) > before + 100)
            await mortal.kill()
            await mortal.revive()
        goes_on = False
        await asyncio.gather(*producers)
        await until_inside(lambda: not any(left(mortal)))
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert max(done.values()) == 1
    assert len(unknown) <= 3 * kills
    assert not {text for text in done if text not in put and text not in unknown}
    lost_deletes = put.keys() - done.keys()  # deleted, but the answer was lost
    assert len(lost_deletes) <= 3 * kills


def left(mortal):
    with Wire(mortal.server.connect()) as wire:
        stats = wire.stats()
        return [int(stats[f"current-jobs-{state}"]) for state in ("ready", "reserved")]


async def until_inside(condition):
    """Wait until a condition holds that is evaluated beside the loop."""
    await asyncio.to_thread(until, condition)
