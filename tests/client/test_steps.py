"""Each operation is cancelled after each number of steps of the loop: afterwards the client works, and holds no job."""

import asyncio
from contextlib import aclosing, suppress

import pytest

from beanlite.client import ClientError, connect
from tests.client.test_cancelled import until_at_rest

JOBS = 3
STEPS = (*range(20), 25, 30, 40, 60, 100, 200)


async def put(queue, tube):
    await queue.put("x", f"{tube}-other")


async def put_many(queue, tube):
    await queue.put_many(["x"] * 30, f"{tube}-other")


async def use(queue, tube):
    await queue.use(f"{tube}-other")
    await queue.use(tube)


async def watch(queue, tube):
    await queue.watch(f"{tube}-other")
    await queue.ignore(f"{tube}-other")


async def reserve(queue, _tube):
    await (await queue.reserve()).release(pri=0)


async def reserve_in_vain(queue, tube):
    await queue.watch(tube)
    async with aclosing(queue.jobs(f"{tube}-empty")) as jobs:
        await anext(jobs)


async def release(queue, _tube):
    job = await queue.reserve(1)
    await job.touch()
    await job.release()


async def bury(queue, _tube):
    job = await queue.reserve(1)
    await job.bury(note="odd")
    await queue.kick(1)


async def work(queue, _tube):
    done = 0
    async with aclosing(queue.jobs(ahead=2)) as jobs:
        async for job in jobs:
            await job.release(pri=0)
            done += 1
            if done == 5:
                return


async def look(queue, tube):
    await queue.stats()
    await queue.list_tubes()
    with suppress(ClientError):
        await queue.peek_ready(f"{tube}-other")


async def step_and_cancel(operation, steps):
    """Cancel it after so many steps, and return whether there were so many."""
    task = asyncio.ensure_future(operation)
    for _ in range(steps):
        if task.done():
            break
        await asyncio.sleep(0)
    was_done = task.done()
    task.cancel()
    with suppress(asyncio.CancelledError, ClientError):
        await task
    return not was_done


async def goes_on(queue, tube):
    """Do a job, and look whether each answer is that to what was asked."""
    job_id = await queue.put("after", f"{tube}-after")
    assert (await queue.peek(job_id)).text == "after"
    assert (await queue.stats_job(job_id))["tube"] == f"{tube}-after"
    job = await queue.reserve(30)
    assert (await job.stats())["tube"] == tube
    await job.release(pri=0)
    await queue.delete(job_id)
    await queue.kick(100, tube)


@pytest.mark.parametrize("operate", [put, put_many, use, watch, reserve, reserve_in_vain, release, bury, work, look])
async def test_client_goes_on_when_any_step_is_cancelled(url, tube, operate):
    tube = f"{tube}-{operate.__name__}"
    async with connect(url, use=tube, watch=tube) as queue, connect(url) as other:
        await queue.put_many(["x"] * JOBS, pri=0, ttr_s=1000)
        for steps in STEPS:
            async with connect(url, use=tube, watch=tube) as worker:
                went_on = await step_and_cancel(operate(worker, tube), steps)
                async with asyncio.timeout(60):
                    await goes_on(worker, tube)
                await until_at_rest(other, tube, JOBS)
            if not went_on:
                break
