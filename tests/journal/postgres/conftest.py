"""A way to the database, and that no connection is left."""

import asyncio

import pytest

from beanlite.journal.postgres.link import Link
from tests.support.cutting import Cutting


@pytest.fixture(autouse=True)
async def _no_connection_is_left(monkeypatch):
    made = []
    init = Link.__init__

    def noted(link, connection):
        init(link, connection)
        made.append((link, asyncio.current_task()))

    monkeypatch.setattr(Link, "__init__", noted)
    yield
    for _ in range(5):
        await asyncio.sleep(0)
    assert [task for link, task in made if not link.connection.is_closed()] == []


@pytest.fixture
async def way(postgres):
    """One to the database that can be cut."""
    async with Cutting(postgres.port) as way:
        yield way
