"""A server that can't do something now, or a router one of whose servers is away, does not end a worker."""

import asyncio
import socketserver
from concurrent.futures import Future
from threading import Event, Thread
from typing import Any, ClassVar

import pytest

from beanlite.client import OutOfMemory
from beanlite.worker import worker
from tests.router.routers import start_router
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until
from tests.work.conftest import Work


@pytest.fixture
def routed(tmp_path):
    """Workers of a router, and its servers, of which the first has their tube."""
    servers = [start_beanlite(tmp_path / name, "--no-journal") for name in ("1", "2")]
    with start_router(tmp_path / "router", servers, [["mail"], ["other"]]) as router:
        work = Work(router, tmp_path)
        work.tube = "mail"
        yield work, *servers
        work.end()


@pytest.mark.parametrize("function", ["work", "fail_late"])
def test_job_whose_server_is_away_is_lost_and_ends_no_worker(routed, function):
    work, first, second = routed
    with Wire(first.connect()) as wire:
        wire.ask("use mail")
        wire.put(b"waits x")
    process = work.begin(function, "--tube", "other", "--tries", "1")
    until(lambda: work.log("begin") == ["x"])
    first.kill()
    work.let_end("x")
    until(lambda: work.outcomes() == ["lost"] or process.poll() is not None)
    assert (work.outcomes(), process.poll()) == (["lost"], None)
    assert "job could not be finished, and comes back id=" in work.errors()
    with Wire(second.connect()) as wire:
        wire.ask("use other")
        wire.put(b"quick y")
    until(lambda: len(work.outcomes()) == 2 or process.poll() is not None)
    assert (work.lines()[-1]["tube"], work.log("end")[-1:], process.poll()) == ("other", ["y"], None)
    process.terminate()
    assert process.wait(60) == 0


async def test_function_that_hangs_takes_up_its_place_in_any_case(monkeypatch):
    async def refuse(*_):
        raise OutOfMemory("OUT_OF_MEMORY")

    class HeldJob:
        id, body, is_finished = 1, b"x", False

        async def stats(self):
            return {"tube": "mail", "ttr": 60, "reserves": 1}

    def record(_outcome):
        done: Future[None] = Future()
        done.set_result(None)
        return done

    monkeypatch.setattr(worker, "finish", refuse)
    over = Event()
    nowhere: Any = None
    hanging: Any = worker.Worker(lambda _: over.wait(10), nowhere, worker.Limits(1, 0.01, 1, 0), record)
    slot = asyncio.create_task(hanging._work(HeldJob(), asyncio.current_task()))
    async with asyncio.timeout(10):
        while not hanging.is_stopping:
            await asyncio.sleep(0.001)
        over.set()
        assert isinstance(await slot, OutOfMemory)


STATS = b"OK 35\r\n---\ntube: mail\nttr: 60\nreserves: 1\n\r\n"
ALWAYS = {b"name": b"NAMED\r\n", b"watch": b"WATCHING 2\r\n"}


class Unwilling(socketserver.StreamRequestHandler):
    """Answers the first name, reserve, stats-job and delete with a refusal; a last reserve waits."""

    replies: ClassVar[dict[bytes, list[bytes]]] = {}
    open: ClassVar[int]

    def handle(self):
        type(self).open += 1
        for line in self.rfile:
            word = line.split()[0]
            if word in self.replies:
                self.wfile.write(self.replies[word].pop(0) if self.replies[word] else b"")
            else:
                self.wfile.write(ALWAYS.get(word, b"WATCHING 1\r\n"))
        type(self).open -= 1


@pytest.fixture
def unwilling(tmp_path):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Unwilling) as server:
        server.daemon_threads = True
        Unwilling.open = 0
        Unwilling.replies = {
            b"list-tube-used": [b"INTERNAL_ERROR\r\n", *[b"USING default\r\n"] * 9],
            b"reserve": [b"INTERNAL_ERROR\r\n"] + [b"RESERVED %d 7\r\nquick x\r\n" % job_id for job_id in (1, 2, 3)],
            b"stats-job": [b"INTERNAL_ERROR\r\n", STATS, STATS],
            b"delete": [b"OUT_OF_MEMORY\r\n", b"DELETED\r\n"],
        }
        Thread(target=server.serve_forever, daemon=True).start()
        work = Work(None, tmp_path)
        yield work, server
        work.end()
        server.shutdown()


def test_worker_goes_on_after_each_refusal(unwilling):
    work, server = unwilling
    place = f"127.0.0.1:{server.server_address[1]}"
    process = work.begin("work", "--connect", place)
    until(lambda: len(work.outcomes()) >= 2 or process.poll() is not None)
    assert [(line["id"], line["outcome"]) for line in work.lines()] == [(2, "lost"), (3, "done")], work.errors()
    lines = [line.split("beanlite: ")[1] for line in work.errors().splitlines() if "reason=" in line]
    assert lines == [
        f'waiting for the server reason="no server can be reached at beanlite://{place}: INTERNAL_ERROR"',
        "waiting for the server reason=INTERNAL_ERROR",
        "job could not be finished, and comes back id=2 tube=mail reason=OUT_OF_MEMORY",
    ]
    until(lambda: Unwilling.open == 1)  # job 2 is given back, although no other one comes
