"""Questions to the database: however many there are, and however long they take, others are answered."""

import asyncio
import gc
import threading

import pytest

from beanlite.console.live import Live
from beanlite.console.stored import looking_at
from beanlite.errors import BeanliteError
from beanlite.web import seeing
from beanlite.web.looking import from_database, from_history
from beanlite.web.site import SCANS, Site
from tests.support.servers import start_beanlite
from tests.support.web import made_by, text_of
from tests.support.wire import Wire, until

EVENTS = 9


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("past"), "--history", "1d") as server, Wire(server.connect()) as wire:
        job_id = wire.put(b"job")
        for at in range(EVENTS // 2):
            assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
            assert wire.ask(f"release {job_id} {at} 0") == "RELEASED"

        def kept():
            with looking_at(server.directory / "queue.db") as look:
                return len((look.show_job(job_id) or {"history": ()})["history"])

        until(lambda: kept() == EVENTS)
        yield server


@pytest.fixture
def site(server):
    """The site of a server whose database is read."""
    return Site(
        name="",
        connect=lambda _, within_s: Live((server.host, server.port), "", within_s),
        db=server.directory / "queue.db",
    )


async def test_long_questions_to_the_history_keep_no_others_waiting(site):
    go_on = threading.Event()
    at_once = []

    def scan(_look):
        at_once.append(None)
        assert go_on.wait(60)

    async with asyncio.timeout(50):
        pages = [asyncio.create_task(from_history(site, scan)) for _ in range(150)]
        while len(at_once) < SCANS:
            await asyncio.sleep(0.001)
        alive, _ = await from_database(site, lambda look: look.alive())
        assert alive is not None
        assert alive["status"] == "serving"
        assert "uptime" in await site.questions.ask("", Live.stats)
        assert len(at_once) == SCANS
        for page in pages[: 2 * SCANS]:  # those that run keep their places
            page.cancel()
        go_on.set()
        await asyncio.gather(*pages, return_exceptions=True)
    assert len(at_once) == 150 - SCANS
    await site.close()


async def test_question_that_fails_when_nobody_waits_is_not_logged(site, caplog):
    begun, go_on = threading.Event(), threading.Event()

    def fail(_look):
        begun.set()
        assert go_on.wait(60)
        raise BeanliteError("the file is gone")

    async with asyncio.timeout(60):
        page = asyncio.create_task(from_history(site, fail))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        page.cancel()
        await asyncio.wait({page})
        del page
        await site.close()
        go_on.set()
        await asyncio.get_running_loop().shutdown_default_executor()
    gc.collect()
    assert not caplog.text


def test_only_the_newest_events_of_a_job_are_looked_at(site, monkeypatch):
    page = text_of(made_by(site, "/job/1"))
    assert "newest" not in page
    monkeypatch.setattr(seeing, "EVENTS_MAX", 3)
    page = text_of(made_by(site, "/job/1?events=3"))
    assert "Only its newest 3 events are looked at; beanlite job 1 with --db or --database shows all." in page
    assert "Events 1 to 3 of 3" in page
    assert page.count(" release ") == 2
    assert "earlier ones are not kept" not in page


@pytest.mark.parametrize(("limit", "found"), [(0, EVENTS), (2, 2), (100, EVENTS)])
def test_history_of_a_job_has_the_last_events_in_order(server, limit, found):
    with looking_at(server.directory / "queue.db") as look:
        history = (look.show_job(1, limit) or {})["history"]
    assert len(history) == found
    assert history[-1]["pri"] == EVENTS // 2 - 1
    assert [event["at"] for event in history] == sorted(event["at"] for event in history)
