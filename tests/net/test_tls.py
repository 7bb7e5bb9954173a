"""What clients send and are sent over TLS: the same bytes as over other connections, and all of them."""

import asyncio
import signal
import socket
import ssl
import threading
import unittest.mock
from typing import Any, cast

import greenstalk
import pytest

from beanlite import is_compiled
from beanlite.net import handshakes, pace, tls as tls_module
from tests.support.certificates import tls_port, wrap
from tests.support.inside import serving
from tests.support.needs import need
from tests.support.tls_clients import rest_of, settings_of, shake_hands
from tests.support.wire import Wire, put_bytes, until

MIB = b"x" * (1 << 20)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_puts_and_gets_a_large_body(server, authority, version):
    context = authority.client(authority.sign("other"))
    context.minimum_version = context.maximum_version = version
    with Wire(wrap(server, context)) as wire:
        assert isinstance(wire.socket, ssl.SSLSocket)
        assert wire.socket.version() == version.name.replace("_", ".")
        assert wire.put(MIB) == 1
        assert wire.ask("reserve") == f"RESERVED 1 {len(MIB)}"
        assert wire.body == MIB


def test_commands_that_come_with_the_handshake_are_carried_out(server, known):
    """The last part of a handshake and 20,000 commands arrive at once."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = known.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection((server.host, tls_port(server)), 10) as client:
        shake_hands(tls, client, incoming, outgoing)
        for _ in range(20):
            tls.write(b"list-tube-used\r\n" * 1000)
        threading.Thread(target=client.sendall, args=(outgoing.read(),), daemon=True).start()
        said = b""
        while said.count(b"\n") < 20_000:
            incoming.write(client.recv(1 << 16))
            while incoming.pending or tls.pending():
                try:
                    said += tls.read(1 << 14)
                except ssl.SSLWantReadError:
                    break
        assert said == b"USING default\r\n" * 20_000


def test_a_client_library_works(server, known):
    with greenstalk.Client(wrap(server, known)) as client:
        client.put("hello")
        assert client.reserve().body == "hello"


@pytest.mark.parametrize("end", ["quit", "eof"])
def test_replies_before_the_end_are_read(server, known, end):
    with Wire(server.connect()) as wire, wrap(server, known) as client:
        wire.put(MIB)
        client.sendall(b"put 0 0 60 1\r\nx\r\n" + b"peek 1\r\n" * 10 + (b"quit\r\njunk\r\n" if end == "quit" else b""))
        if end == "eof":
            socket.socket.shutdown(client, socket.SHUT_WR)
        assert rest_of(client) == b"INSERTED 2\r\n" + b"FOUND 1 %d\r\n%b\r\n" % (len(MIB), MIB) * 10


def test_a_client_that_says_goodbye_first_still_gets_its_replies(server, known):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = known.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection((server.host, tls_port(server)), 10) as client:
        shake_hands(tls, client, incoming, outgoing)
        tls.write(b"put 0 0 60 1\r\nx\r\n")
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()  # so that TLS, but not the socket, is half-closed
        client.sendall(outgoing.read())
        while data := client.recv(1 << 16):
            incoming.write(data)
        assert tls.read(100) == b"INSERTED 1\r\n"
        with pytest.raises(ssl.SSLZeroReturnError):  # the server says goodbye, too
            tls.read(100)


def test_a_client_that_does_not_read_is_not_served_on(server, known):
    with Wire(server.connect()) as wire, wrap(server, known) as client:
        wire.put(MIB)
        sending = threading.Thread(target=client.sendall, args=(b"peek 1\r\n" * 50,), daemon=True)
        sending.start()
        until(lambda: int(wire.stats()["memory-buffers"]) > 0)
        served = int(wire.stats()["cmd-peek"])
        assert served < 50
        said = 0
        while said < 50 * len(MIB):
            said += len(client.recv(1 << 16))
        until(lambda: int(wire.stats()["cmd-peek"]) == 50)
        sending.join()


def test_a_stop_answers_what_was_carried_out(server, known):
    with wrap(server, known) as client:
        client.sendall(b"put 0 0 60 1\r\nx\r\nwatch a\r\nreserve\r\nreserve\r\n")
        with Wire(server.connect()) as wire:
            until(lambda: wire.stats()["current-waiting"] == "1")
        server.signal(signal.SIGTERM)
        assert rest_of(client) == b"INSERTED 1\r\nWATCHING 2\r\nRESERVED 1 1\r\nx\r\n"


async def test_what_takes_long_to_decrypt_waits_for_its_turn(tmp_path, own, authority, monkeypatch):
    """With no time at all, each slice has a turn of its own; commands, and the end, keep their order."""
    need(not is_compiled(), "compiled code has its own copy of the constant")
    monkeypatch.setattr(pace, "TURN_S", -1.0)
    monkeypatch.setattr(handshakes, "TURN_S", -1.0)
    reads = []
    read = tls_module.Tls._read
    monkeypatch.setattr(tls_module.Tls, "_read", lambda self, *data: (reads.append(data), read(self, *data))[1])
    async with serving(tmp_path / "queue.db", **settings_of(own)) as (server, _):
        host, port = server._listener.tls.address.split(":")
        client = await asyncio.open_connection(host, int(port), ssl=authority.client(), server_hostname="localhost")
        client[1].write(put_bytes(MIB[:60_000]) * 20 + b"list-tube-used\r\n" * 3000 + b"quit\r\n")
        said = await asyncio.wait_for(client[0].read(), 20)
        client[1].close()
    assert said == b"".join(b"INSERTED %d\r\n" % n for n in range(1, 21)) + b"USING default\r\n" * 3000
    assert len(reads) > 60


async def test_what_comes_after_goodbye_is_not_kept():
    class Raw(asyncio.Transport):
        def is_closing(self):
            return False

    tls = tls_module.Tls(cast(Any, unittest.mock.Mock(pace=pace.Pace())))
    tls._raw, tls._incoming, tls._protocol = Raw(), ssl.MemoryBIO(), cast(Any, object())
    tls._tls, tls._outgoing = cast(Any, unittest.mock.Mock(read=lambda _: b"")), ssl.MemoryBIO()
    tls._protocol = unittest.mock.Mock()
    for _ in range(3):
        tls.data_received(b"x" * 1000)
    assert tls._incoming.pending == 1000  # of the first, in which the goodbye was
    tls._protocol.eof_received.assert_called_once()


def test_large_bodies_are_sent_byte_by_byte_as_they_are(server, known):
    """Records, packets and slices end at different places."""
    body = bytes(range(256)) * 2000
    with Wire(wrap(server, known)) as wire:
        for size in (16_383, 16_384, 16_385, 65_535, 65_537, len(body)):
            wire.send(put_bytes(body[:size]))
            number = int(wire.reply().split()[1])
            assert wire.ask(f"peek {number}") == f"FOUND {number} {size}"
            assert wire.body == body[:size]
