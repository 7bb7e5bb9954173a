"""Counts of jobs by value, which go on in the background while somebody looks."""

import asyncio
import re
from functools import partial

import pytest

from beanlite.console.filters import filter_by
from beanlite.console.live import Live
from beanlite.errors import BeanliteError
from beanlite.web import counting
from beanlite.web.counting import AT_ONCE, GroupCounts
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire

JOBS = 3000
BY_KIND = {"path": "kind"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("counted")) as server, Wire(server.connect()) as wire:
        body = b'{"kind": "%b"}'
        bodies = [body % (b"odd" if number % 3 else b"even") for number in range(JOBS)]
        wire.send(b"".join(b"put 0 0 60 %d\r\n%b\r\n" % (len(each), each) for each in bodies))
        assert all(wire.reply().startswith("INSERTED") for _ in bodies)
        yield server


@pytest.fixture
def counts(server, monkeypatch):
    """Counts that show each slice."""
    monkeypatch.setattr(counting, "_STEP_S", 0.0)
    monkeypatch.setattr(counting, "WAIT_S", 0.0)
    return GroupCounts(partial(Live, (server.host, server.port)))


async def ended(counts, key="key", *, again=False):
    """The count once it has ended, and how far it was each time that it was asked for."""
    seen = []
    while True:
        count = await counts.of(key, "", filter_by(), BY_KIND, again=again)
        seen.append(count.summary.jobs)
        if count.ended_s is not None:
            return count, seen
        await asyncio.sleep(0.001)


def test_count_shows_how_far_it_is_until_it_ends(counts):
    async def ask():
        count, seen = await ended(counts)
        await counts.close()
        return count, seen

    count, seen = asyncio.run(ask())
    assert (seen[0], seen[-1], seen == sorted(seen)) == (0, JOBS, True)
    assert len(set(seen)) > 2
    assert count.summary.rows == [("odd", 2000), ("even", 1000)]


def test_count_is_shared_until_it_is_asked_for_again(counts, monkeypatch):
    async def ask():
        first, _ = await ended(counts)
        second, _ = await ended(counts)
        fresh, _ = await ended(counts, again=True)
        monkeypatch.setattr(counting, "KEEP_S", -60.0)
        third, _ = await ended(counts, again=True)
        other, _ = await ended(counts, "other key")
        await counts.close()
        return [count is first for count in (second, fresh, third, other)]

    assert asyncio.run(ask()) == [True, True, False, False]


def test_count_that_nobody_asks_for_stops(counts, monkeypatch):
    async def ask():
        count = await counts.of("key", "", filter_by(), BY_KIND, again=True)
        monkeypatch.setattr(counting, "UNASKED_S", -1.0)
        await asyncio.wait([count.task])
        stopped = count.summary.jobs < JOBS
        return stopped, await counts.of("key", "", filter_by(), BY_KIND, again=False) is count

    assert asyncio.run(ask()) == (True, False)


def test_only_some_counts_go_on_at_a_time(counts):
    async def ask():
        for key in range(AT_ONCE):
            await counts.of(key, "", filter_by(), BY_KIND, again=True)
        with pytest.raises(BeanliteError, match="4 counts are under way"):
            await counts.of("one more", "", filter_by(), BY_KIND, again=True)
        await counts.close()

    asyncio.run(ask())


def test_count_tells_what_is_wrong(counts):
    async def ask():
        while True:
            count = await counts.of("key", "", filter_by(), {"fact": "colour"}, again=False)
            if count.ended_s is not None:
                return count.error, count.is_fresh
            await asyncio.sleep(0.001)

    error, is_fresh = asyncio.run(ask())
    assert "fact: 'colour' is not one of" in error
    assert not is_fresh


def test_bodies_that_are_hidden_are_not_grouped_nor_shown_in_columns(server):
    with Web(f"{server.host}:{server.port}", "--hide-bodies") as web:
        for path in (
            "/jobs?group=kind",
            "/jobs?columns=kind",
            "/jobs?q=kind:odd",
            "/jobs?group=note",
            "/jobs?q=note:x",
        ):
            page = web.get(path)
            assert (page.status, "bodies are hidden here" in page.text, "odd" in page.text) == (400, True, False), path
        page = web.get("/jobs?group=state")
        assert re.search("ready .*100.0 %", page.text)
        assert "Columns" not in page.text
        assert "text:" not in web.get("/complete?word=t").html
