"""Cancelled reserves: the client goes on working, no job is lost, and none is held."""

import asyncio
import random

import pytest

from beanlite.client import TimedOut, connect


async def is_at_rest(queue, tube, jobs):
    """Whether all jobs are ready, and no reserve waits."""
    stats = await queue.stats_tube(tube)
    return (
        stats["current-jobs-ready"] == jobs
        and stats["current-jobs-reserved"] == 0
        and stats["current-waiting"] == 0
        and stats["current-watching"] <= 32
    )


async def until_at_rest(queue, tube, jobs):
    async with asyncio.timeout(60):
        while not await is_at_rest(queue, tube, jobs):
            await asyncio.sleep(0.002)


async def cancel_one(queue, chance):
    """Begin a reserve, and cancel it at any moment; a job that has come until then goes back."""
    task = asyncio.create_task(queue.reserve(*chance.choice([(), (0,), (9,)])))
    for _ in range(chance.randrange(6)):
        await asyncio.sleep(0)
    if chance.random() < 0.3:
        await asyncio.sleep(chance.random() * 0.003)
    task.cancel()
    try:
        job = await task
    except (asyncio.CancelledError, TimedOut):
        return
    await job.release(pri=0)


@pytest.mark.parametrize("cancels", [1000, pytest.param(10_000, marks=pytest.mark.nightly)])
async def test_no_job_stays_reserved_after_cancelled_reserves(url, tube, cancels):
    """With fewer jobs than reserves, so that some wait and others get a job amid their end."""
    chance = random.Random(cancels)
    tube = f"{tube}-{cancels}"
    async with connect(url, use=tube, watch=[tube]) as queue, connect(url, watch=[tube]) as worker:
        await queue.put_many(["x"] * 5, pri=0, ttr_s=1000)
        for _ in range(cancels // 20):
            await asyncio.gather(*(cancel_one(worker, chance) for _ in range(20)))
        await until_at_rest(queue, tube, jobs=5)
        for _ in range(5):
            await (await worker.reserve(9)).delete()
        assert (await queue.stats_tube(tube))["current-jobs-ready"] == 0


async def test_timeouts_from_outside_lose_no_job(url, tube):
    async with connect(url, use=tube, watch=[tube]) as queue:
        for number in range(100):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.reserve(), 0.001)
            await queue.put(str(number))
            job = await asyncio.wait_for(queue.reserve(), 60)
            assert job.text == str(number)
            await job.delete()


async def test_cancelled_waits_for_a_connection_leave_it_to_others(url, tube):
    """Puts that are cancelled while their tube is not used yet, or whose answers are under way."""
    async with connect(url) as queue:
        tasks = [asyncio.create_task(queue.put("x", f"{tube}{number % 3}")) for number in range(60)]
        for _ in range(3):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(job_id, int) for job_id in results[1::2])
        for number in range(1, 60, 2):
            assert (await queue.stats_job(tasks[number].result()))["tube"] == f"{tube}{number % 3}"
