"""What a client can't have is refused, counted and logged, and nobody else notices."""

import socket
import struct
from contextlib import ExitStack

import pytest

from beanlite.core.engine import Engine
from beanlite.net.addresses import Addresses
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, put_bytes, until


def refused(wire):
    """How often each limit was met, of those that were."""
    stats = wire.stats()
    return {key: int(value) for key, value in stats.items() if key.startswith("refused-") and value != "0"}


def test_one_connection_too_many(tmp_path):
    with start_beanlite(tmp_path, "--no-journal", "--max-connections", "3") as server, ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.connect())) for _ in range(3)]
        assert {wire.ask("list-tube-used") for wire in wires} == {"USING default"}
        for _ in range(5):
            with Wire(server.connect()) as one_too_many:
                assert one_too_many.is_closed()
        assert wires[0].stats()["current-connections"] == "3"
        assert refused(wires[0]) == {"refused-connections": 5}
        assert "connection refused limit=3 refused=1\n" in server.log_text()
        assert server.log_text().count("connection refused") == 3  # the 1st, the 2nd and the 4th
        wires[2].close()
        until(lambda: wires[0].stats()["current-connections"] == "2")
        with Wire(server.connect()) as wire:
            assert wire.ask("list-tube-used") == "USING default"


@pytest.mark.parametrize("goes", ["close", "reset", "quit"])
def test_one_connection_of_an_address_too_many(tmp_path, goes):
    with (
        start_beanlite(tmp_path, "--no-journal", "--max-connections-per-address", "2") as server,
        Wire(server.connect()) as first,
        Wire(server.connect()) as second,
        Wire(socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0))) as elsewhere,
    ):
        assert {wire.ask("list-tube-used") for wire in (first, second, elsewhere)} == {"USING default"}
        with Wire(server.connect()) as one_too_many:
            assert one_too_many.is_closed()
        assert refused(elsewhere) == {"refused-connections-per-address": 1}
        assert "too many from its address" in server.log_text()
        if goes == "quit":
            second.send(b"quit\r\n")
            assert second.is_closed()
        else:
            if goes == "reset":
                second.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            second.close()
        until(lambda: elsewhere.stats()["current-connections"] == "2")
        with Wire(server.connect()) as again:
            assert again.ask("list-tube-used") == "USING default"


def test_a_client_that_is_done_makes_no_room_for_another_address(tmp_path):
    """Its socket is kept until it has closed its side, and may be cut short for a client of its own address."""
    with (
        start_beanlite(tmp_path, "--no-journal", "--max-connections-per-address", "1") as server,
        Wire(socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0))) as done,
        Wire(server.connect()) as wire,
    ):
        assert wire.ask("list-tube-used") == "USING default"
        done.send(b"quit\r\n")
        assert done.is_closed()
        with Wire(server.connect()) as one_too_many:
            assert one_too_many.is_closed()
        assert refused(wire) == {"refused-connections-per-address": 1}


def address_of(peer, *, spare_local=True):
    return Addresses(1, spare_local=spare_local).address_of(peer)


@pytest.mark.parametrize(
    "others",
    [
        [("192.0.2.1", 1), ("192.0.2.1", 2), ("::ffff:192.0.2.1", 2, 0, 0)],
        [("2001:db8:0:1::1", 1, 0, 0), ("2001:db8:0:1:ffff::2", 2, 0, 0)],
        [("fe80::1", 1, 0, 2), ("fe80::1%eth0", 1, 0, 2)],
    ],
)
def test_what_is_one_address(others):
    assert len({address_of(peer) for peer in others}) == 1
    assert address_of(others[0]) not in {None, address_of(("192.0.2.2", 1)), address_of(("2001:db8:0:2::1", 1, 0, 0))}


@pytest.mark.parametrize("peer", [("127.0.0.1", 1), ("::1", 1, 0, 0), ("::ffff:127.0.0.1", 1, 0, 0)])
def test_local_clients_are_counted_only_if_that_is_asked_for(peer):
    assert address_of(peer) is None
    assert address_of(peer, spare_local=False) is not None


@pytest.mark.parametrize("peer", ["", None])
def test_unix_sockets_and_who_has_gone_are_not_counted(peer):
    assert address_of(peer, spare_local=False) is None


def test_nothing_is_kept_of_an_address_that_has_gone():
    addresses, client = Addresses(1, spare_local=False), Engine().clients.connect("there:1")
    addresses.add(client, b"there")
    assert addresses.is_full(b"there")
    addresses.drop(client)
    addresses.drop(client)  # at the end of a farewell that was cut short
    assert not addresses.is_full(b"there")
    assert not addresses._connections
    assert not addresses._of


def test_one_tube_too_many(tmp_path):
    with start_beanlite(tmp_path, "--max-tubes", "3") as server, Wire(server.connect()) as wire:
        assert wire.ask("use a") == "USING a"
        assert wire.ask("watch b") == "WATCHING 2"
        assert wire.ask("use c") == "OUT_OF_MEMORY"
        assert wire.ask("watch c") == "OUT_OF_MEMORY"
        assert wire.ask("list-tube-used") == "USING a"
        assert wire.ask("list-tubes-watched") == "OK 18"
        assert wire.ask("use b") == "USING b"  # a is gone
        assert wire.ask("watch c") == "WATCHING 3"
        assert wire.put(b"kept") == 1
        assert refused(wire) == {"refused-tubes": 2}
        assert "tube refused limit=3 refused=1\n" in server.log_text()


def test_tubes_that_the_database_brings_back_are_not_refused(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        for number in range(5):
            wire.ask(f"use t{number}")
            wire.put(b"x")
    with start_beanlite(tmp_path, "--max-tubes", "3") as server, Wire(server.connect()) as wire:
        assert wire.stats()["current-tubes"] == "6"
        assert wire.ask("use t4") == "USING t4"
        assert wire.ask("use t5") == "OUT_OF_MEMORY"


def test_one_watched_tube_too_many(tmp_path):
    with start_beanlite(tmp_path, "--max-watched", "2") as server, Wire(server.connect()) as wire:
        assert wire.ask("watch a") == "WATCHING 2"
        assert wire.ask("watch a") == "WATCHING 2"
        assert wire.ask("watch b") == "OUT_OF_MEMORY"
        assert wire.stats()["current-tubes"] == "2"  # and not made in vain
        assert refused(wire) == {"refused-watched": 1}
        assert wire.ask("ignore default") == "WATCHING 1"
        assert wire.ask("watch b") == "WATCHING 2"
        assert "watch refused limit=2 refused=1\n" in server.log_text()


def test_a_line_without_an_end(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as other, Wire(server.connect()) as wire:
        wire.send(b"a" * (1 << 20))
        assert wire.reply() == "BAD_FORMAT"
        assert wire.is_closed()
        assert refused(other) == {"refused-line": 1}
        assert f"endless line limit={1 << 20} refused=1\n" in server.log_text()


def test_refusals_do_not_fill_the_log(tmp_path):
    with start_beanlite(tmp_path, "--max-watched", "1") as server, Wire(server.connect()) as wire:
        wire.send(b"watch a\r\n" * 1000)
        assert {wire.reply() for _ in range(1000)} == {"OUT_OF_MEMORY"}
        assert server.log_text().count("watch refused") == 10
        assert refused(wire) == {"refused-watched": 1000}


def test_client_that_waits_at_many_tubes_is_served_and_leaves(tmp_path):
    """Each of the tubes it watches gets a line of waiting clients, and is rid of it."""
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire, Wire(server.connect()) as other:
        other.send(b"".join(b"watch t%d\r\n" % number for number in range(999)) + b"reserve\r\n")
        assert [other.reply() for _ in range(999)][-1] == "WATCHING 1000"
        until(lambda: wire.stats()["current-waiting"] == "1")
        wire.ask("use t998")
        wire.send(put_bytes(b"for it"))
        assert wire.reply() == "INSERTED 1"
        assert other.reply() == "RESERVED 1 6"
        assert wire.stats("stats-tube t0")["current-waiting"] == "0"
        other.close()
        until(lambda: wire.stats()["current-tubes"] == "2")
