"""What decryption may take of a pass of the loop, by a clock that only decryption moves on."""

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any, cast

import pytest

from beanlite import is_compiled
from beanlite.core.engine import Engine
from beanlite.net import handshakes, pace, tls as tls_module
from beanlite.net.buffers import Buffers, buffers_max_bytes
from beanlite.net.refusals import Refusals
from tests.support.needs import need

SIZE = 100_000
SLOW_S = 0.012 / tls_module.SLICE  # a byte of a key update takes so long, and one of a body next to nothing
QUICK_S = SLOW_S / 1000


class Raw(asyncio.Transport):
    reads, is_over = True, False

    def get_extra_info(self, _name, _default=None):
        return "10.0.0.1", 1

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def is_closing(self):
        return self.is_over

    def abort(self):
        self.is_over = True

    def write_eof(self):
        pass


class Session:
    """Decrypts by doing nothing, for as long as that takes."""

    def __init__(self, front):
        self.front = front
        self.incoming = ssl.MemoryBIO()
        self.byte_s = QUICK_S
        self.slices = []

    def pending(self):
        return 0

    def unwrap(self):
        pass

    def read(self, _most):
        data = self.incoming.read()
        if not data:
            raise ssl.SSLWantReadError
        self.front.now_s += len(data) * self.byte_s
        self.slices.append(len(data))
        return data


class Client(asyncio.Protocol):
    """A client whose handshake is over, as the server has it."""

    def __init__(self, front, byte_s):
        self.came = b""
        self.raw = Raw()
        self.session = Session(front)
        self.session.byte_s = byte_s
        self.tls = tls_module.Tls(front.door)
        self.tls._raw, self.tls._protocol = self.raw, self
        self.tls._tls, self.tls._incoming = cast(Any, self.session), self.session.incoming
        self.tls._outgoing = ssl.MemoryBIO()

    def data_received(self, data):
        self.came += data

    def connection_lost(self, _error):
        pass


class Front:
    """All connections of a server with TLS, in a loop."""

    def __init__(self):
        engine, refusals = Engine(), Refusals()
        engine.bound_memory(64 << 20, 64 << 20, fetches=True)
        self.now_s = 0.0
        self.memory = engine.memory
        buffers = Buffers(engine.memory, engine.admission, refusals)
        loop = asyncio.get_running_loop()
        self.door = handshakes.Handshakes(loop, cast(Any, None), 20, refusals, engine.memory, buffers)

    def clients(self, number, byte_s=QUICK_S):
        return [Client(self, byte_s) for _ in range(number)]


@pytest.fixture
async def front(monkeypatch):
    need(not is_compiled(), "compiled code has its own clock")
    front = Front()
    clock = SimpleNamespace(monotonic=lambda: front.now_s, time=lambda: front.now_s)
    monkeypatch.setattr(tls_module, "time", clock)
    monkeypatch.setattr(handshakes, "time", clock)
    return front


def bytes_of(number):
    return bytes([number]) * SIZE


async def test_all_connections_share_what_decryption_takes_of_a_pass(front):
    clients = front.clients(50, SLOW_S)
    for number, client in enumerate(clients):
        client.tls.data_received(bytes_of(number))
    assert front.now_s <= 0.012 + pace.TURN_S
    assert front.memory.buffer_bytes == 50 * SIZE - tls_module.SLICE
    assert not any(client.raw.reads for client in clients)
    passes = []
    while front.door._at_work:
        before_s = front.now_s
        await asyncio.sleep(0)
        passes.append(front.now_s - before_s)
    assert max(passes) <= 0.012 + pace.TURN_S + handshakes.TURN_S
    assert sorted(passes)[-100] < 0.005  # with smaller slices
    assert [client.came for client in clients] == [bytes_of(number) for number in range(50)]
    assert all(client.raw.reads for client in clients)
    assert front.memory.buffer_bytes == 0


async def test_a_pass_decrypts_much_that_takes_little(front):
    clients = front.clients(50)
    for client in clients:
        client.tls.data_received(b"x" * 1000)
    assert all(client.came and client.raw.reads for client in clients)
    assert not front.door._at_work


async def test_slices_are_smaller_for_as_long_as_they_take_long(front):
    (client,) = front.clients(1, SLOW_S)
    client.tls.data_received(bytes(SIZE))
    while front.door._at_work:
        await asyncio.sleep(0)
    assert client.session.slices[:5] == [16384, 8192, 4096, 2048, 1024]
    assert client.tls.is_slow
    client.session.byte_s = QUICK_S
    for _ in range(5):
        client.tls.data_received(bytes(10))
        assert client.tls._slice_bytes < tls_module.SLICE or not client.tls.is_slow
        await asyncio.sleep(0)
    assert not client.tls.is_slow
    assert client.raw.reads


async def test_others_do_not_wait_for_bytes_that_take_long(front):
    slow = front.clients(30, SLOW_S)
    for client in slow:
        client.tls.data_received(bytes(SIZE))
    for _ in range(40):
        await asyncio.sleep(0)
    assert any(not client.raw.reads for client in slow)
    (quick,) = front.clients(1)
    quick.tls.data_received(b"x")
    await asyncio.sleep(0)
    assert quick.came == b"x"


async def test_handshakes_and_bytes_that_wait_take_turns(front, monkeypatch):
    monkeypatch.setattr(handshakes, "TURN_S", 0.0)
    shaken = []

    class Waiting:
        is_slow = False

        def __init__(self, name):
            self.name = name

        def shake(self):
            shaken.append(self.name)

    for _ in range(30):
        front.door.go_on(cast(Any, Waiting("bytes")))
    handshake = cast(Any, Waiting("handshake"))
    front.door._pending[handshake] = 0.0
    front.door.go_on(handshake)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(shaken) == {"handshake", "bytes"}


async def test_bytes_of_a_closed_connection_are_not_counted(front):
    clients = front.clients(3, SLOW_S)
    for client in clients:
        client.tls.data_received(bytes(SIZE))
    counted = front.memory.buffer_bytes
    clients[1].raw.abort()
    clients[1].tls.connection_lost(None)
    assert front.memory.buffer_bytes == counted - SIZE
    clients[2].tls.write_eof()
    assert front.memory.buffer_bytes < SIZE


async def test_too_much_that_waits_closes_connections(front):
    most = buffers_max_bytes(front.memory)
    clients = front.clients(most // SIZE + 20, SLOW_S)
    for client in clients:
        client.tls.data_received(bytes(SIZE))
    assert front.memory.buffer_bytes <= most
    assert 0 < sum(client.raw.is_over for client in clients) < 40
