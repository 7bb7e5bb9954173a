"""What docs/python-client.md has programs do, with a real server and under ``mypy --strict``."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from beanlite.client import connect
from tests.support.servers import start_beanlite
from tests.support.wire import Wire

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python-client.md").read_text(encoding="utf-8")
SLOW_STEP = re.compile(r"^Executing <.+ took [0-9.]+ seconds\n", re.MULTILINE)  # told with -X dev
EXAMPLES = re.findall(r"^```python\n(.+?)^```", PAGE, re.MULTILINE | re.DOTALL)


def python(example, server):
    """Return the command that runs an example with this server."""
    return [sys.executable, "-X", "dev", "-W", "error", "-c", example.replace("11300", str(server.port))]


@pytest.mark.parametrize("number", [0, 1])
def test_example_does_its_job(tmp_path, number):
    with start_beanlite(tmp_path, "--no-journal") as server:
        run = python(EXAMPLES[number], server)
        done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert (done.stdout, SLOW_STEP.sub("", done.stderr)) == ("welcome ann\n", "")


@pytest.fixture
async def worker(mortal):
    """The worker of the page."""
    example = EXAMPLES[2].replace("11300", str(mortal.proxy.port))
    run = [sys.executable, "-X", "dev", "-W", "error", "-c", example]
    worker = await asyncio.create_subprocess_exec(*run, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    yield worker
    worker.kill()
    await worker.communicate()


async def test_worker_goes_on_through_kills_and_buries_what_fails(mortal, worker):
    async with connect(mortal.url) as queue, asyncio.timeout(60):
        for number in range(3):
            await queue.put("odd", "mail")
            await queue.put(f"welcome {number}", "mail")
            assert await worker.stdout.readline() == b"welcome %d\n" % number
            while not is_done(await queue.stats_tube("mail"), buried=number + 1):
                await asyncio.sleep(0.01)
            await queue.put("", "other")  # acknowledged once all that came before is on the disk
            await mortal.kill()
            await mortal.revive()
        odd = await queue.peek_buried("mail")
    with Wire(mortal.server.connect()) as wire:
        assert wire.ask(f"show-job {odd.id}").startswith("OK")
        assert json.loads(wire.body)["note"].endswith("ValueError: odd\n")
    assert worker.returncode is None


def is_done(stats, buried):
    """Whether all jobs of a tube are deleted, but some that are buried."""
    counts = [stats[f"current-jobs-{state}"] for state in ("ready", "reserved", "buried")]
    return counts == [0, 0, buried]


CLOSED = """
from contextlib import aclosing, closing

from beanlite.client import BlockingQueue, Queue


async def work(queue: Queue) -> None:
    async with aclosing(queue.jobs("mail")) as jobs:
        async for job in jobs:
            await job.delete()


def work_blocking(queue: BlockingQueue) -> None:
    with closing(queue.jobs("mail")) as jobs:
        for job in jobs:
            job.delete()
"""


def test_examples_are_typed(tmp_path):
    for number, example in enumerate([*EXAMPLES, CLOSED]):
        (tmp_path / f"example_{number}.py").write_text(example)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run([*command, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
