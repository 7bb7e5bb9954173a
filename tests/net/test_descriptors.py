"""Few descriptors: as many connections as have room are served, and the rest are refused."""

import os
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from beanlite.errors import ConfigError
from beanlite.net import listener
from beanlite.net.handshakes import PENDING_LEAST, most_pending
from beanlite.net.listener import _OWN
from tests.support.certificates import tls_flags, wrap
from tests.support.servers import ServerDied, start_beanlite
from tests.support.wire import Wire, until

CROWD = 200


@pytest.fixture(params=["uvloop", "asyncio"])
def environment(request, tmp_path):
    """With asyncio's own loop, uvloop is hidden."""
    if request.param == "uvloop":
        return {}
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "uvloop.py").write_text("raise ImportError")
    return {"PYTHONPATH": os.pathsep.join([str(hidden), str(Path(__file__).parents[2])])}


def crowd(server, stack):
    """Many connections, all on their way before any of them is looked at."""
    clients = [stack.enter_context(socket.socket()) for _ in range(CROWD)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex((server.host, server.port))
    for client in clients:
        client.settimeout(10)
    return [Wire(client) for client in clients]


def is_served(wire):
    with suppress(ConnectionError):
        return wire.ask("list-tube-used") == "USING default"
    return False


def test_of_a_crowd_as_many_are_served_as_there_are_descriptors_for(tmp_path, environment):
    with start_beanlite(tmp_path / "q", environment=environment, before="ulimit -n 64") as server, ExitStack() as stack:
        wires = crowd(server, stack)
        served = [wire for wire in wires if is_served(wire)]
        assert 64 - _OWN - 10 < len(served) < 64 - _OWN
        assert all(is_served(wire) for wire in served)
        log = server.log_text()
        assert f"fewer connections max_connections=10000 room={len(served)}" in log
        assert f"connection refused limit={len(served)} refused=128" in log
        assert len(log.splitlines()) < 20
        for wire in served[1:]:
            wire.close()
        until(lambda: served[0].stats()["current-connections"] == "1")
        with Wire(server.connect()) as wire:
            assert wire.put(b"job") == 1


def test_the_soft_limit_is_raised_to_what_the_connections_need(tmp_path):
    before = "ulimit -S -n 64 && ulimit -H -n 1000"
    with start_beanlite(tmp_path, "--max-connections", str(CROWD), before=before) as server, ExitStack() as stack:
        assert all(is_served(wire) for wire in crowd(server, stack))
        assert "WARNING" not in server.log_text()


def test_too_few_descriptors_for_the_server_itself(tmp_path):
    with pytest.raises(ServerDied, match=r"ended with 2: beanlite: the limit of open files is 20, .*\n$"):
        start_beanlite(tmp_path, before="ulimit -n 20")
    assert [file.name for file in tmp_path.iterdir()] == ["server.log"]


def test_where_descriptors_are_few_handshakes_take_a_part_of_them(tmp_path, own, authority):
    with start_beanlite(tmp_path, *tls_flags(own), before="ulimit -n 200") as server, ExitStack() as stack:
        until(lambda: " tls=" in server.log_text())
        room = int(server.log_text().partition("fewer connections max_connections=10000 room=")[2].split()[0])
        assert 200 - _OWN - PENDING_LEAST - 15 < room < 200 - _OWN - PENDING_LEAST
        wires = [Wire(stack.enter_context(wrap(server, authority.client()))) for _ in range(room)]
        assert all(is_served(wire) for wire in wires)


@pytest.mark.parametrize("soft", [20_000, 10_571, 10_000, 1000, 300, 200, 77])
def test_room_is_what_is_left_for_connections_and_handshakes(monkeypatch, soft):
    monkeypatch.setattr(listener, "_open_now", lambda: 20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    found = listener.room_for(10_000, others=most_pending)
    assert found + most_pending(found) + 60 <= soft
    assert found == 10_000 or found + 1 + most_pending(found + 1) + 60 > soft


def test_error_tells_how_many_descriptors_handshakes_need(monkeypatch):
    monkeypatch.setattr(listener, "_open_now", lambda: 20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (76, 76))
    with pytest.raises(ConfigError, match="is 76, and beanlite itself needs 76"):
        listener.room_for(10_000, others=most_pending)
