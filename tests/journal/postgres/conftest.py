"""A proxy to the database, and a check that no connection is left open."""

import asyncio
from contextlib import suppress

import pytest

from beanlite.journal.postgres import link, waits
from beanlite.journal.postgres.link import Link
from tests.support.cutting import Cutting
from tests.support.postgres import Cluster


@pytest.fixture(autouse=True)
async def _no_connection_is_left(monkeypatch):
    made = []
    init = Link.__init__

    def noted(link, *arguments):
        init(link, *arguments)
        made.append((link, asyncio.current_task()))

    monkeypatch.setattr(Link, "__init__", noted)
    yield
    with suppress(TimeoutError):
        async with asyncio.timeout(60):  # a look at a slow statement may be under way, and ends by itself
            while any(not link.connection.is_closed() for link, _ in made):
                await asyncio.sleep(0.01)
    assert [task for link, task in made if not link.connection.is_closed()] == []


@pytest.fixture
def patient(monkeypatch):
    """A look at a waiting statement gets its answer in time however busy the machine is."""
    monkeypatch.setattr(link, "CONNECT_S", 60.0)
    monkeypatch.setattr(link, "LOOK_AFTER_S", 60.0)
    monkeypatch.setattr(waits, "LOOK_AFTER_S", 60.0)


@pytest.fixture(scope="session")
def other(postgres):
    """Another PostgreSQL server, unrelated to the first."""
    other = Cluster(postgres.socket, "other")
    other.make()
    other.start()
    yield other
    other.kill()


@pytest.fixture
async def way(postgres):
    """A proxy to the database that can cut connections."""
    async with Cutting(postgres.port) as way:
        yield way
