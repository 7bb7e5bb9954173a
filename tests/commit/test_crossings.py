"""What the log says when memory runs short, and when it has room again."""

import logging

import pytest

from beanlite.commit.crossings import Crossings
from tests.support.core import put
from tests.support.fetching import FetchingCore

BODY = b"x" * 1000
MIB = 1 << 20


@pytest.fixture
def said(caplog):
    """What has been logged since the last call, each by its first words."""

    def said():
        lines = [record.message.partition(":")[0] for record in caplog.records]
        caplog.clear()
        return lines

    caplog.set_level(logging.INFO, "beanlite")
    return said


def test_a_backlog_that_leaves_bodies_to_the_database_is_two_lines(said):
    core = FetchingCore(max_bytes=64 * MIB, body_max_bytes=20_000)
    client, crossings = core.client(), Crossings(core.engine.memory)

    def step():
        core.store()
        core.fetch_ahead()
        crossings.look()

    for _ in range(100):
        put(core, client, BODY)
        step()
    assert said() == ["memory is too small for all bodies"]
    for _ in range(100):
        _, job_id, _ = core.send(client, b"reserve\r\n").split(b"\r\n")[0].split()
        step()
        assert core.send(client, b"delete " + job_id + b"\r\n") == b"DELETED\r\n"
        step()
    assert said() == ["all bodies are in memory again"]


def test_log_tells_the_first_refused_put_and_later_ample_room(said):
    core = FetchingCore(max_bytes=MIB, body_max_bytes=MIB)
    client, memory = core.client(), core.engine.memory
    crossings = Crossings(memory)
    memory.buffer_bytes = MIB
    core.store()
    for _ in range(3):
        assert core.send(client, b"put 0 0 10 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert said() == ["out of memory"]
    memory.buffer_bytes = MIB - MIB // 8
    core.store()
    put(core, client)
    crossings.look()
    assert said() == []  # it just fits
    memory.buffer_bytes = 0
    crossings.look()
    assert said() == ["memory has room again"]
