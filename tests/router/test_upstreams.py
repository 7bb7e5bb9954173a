"""How the router finds its servers and connects to them, and how many clients it has room for."""

import asyncio
import contextlib
import errno
import resource
import signal
import socket

import pytest

from beanlite.beanstalk.over_tls import OverTls, context_for
from beanlite.errors import ConfigError
from beanlite.host.loop import loop_factory
from beanlite.router import dial as dial_module, upstream as module
from beanlite.router.dial import dial, send_no_more
from beanlite.router.known import KnownServer
from beanlite.router.upstream import AGAIN_S, REFUSED_AGAIN_S, Upstream
from tests.router.routers import servers_file, start_router
from tests.support.forks import fork
from tests.support.servers import free_port, start_beanlite
from tests.support.wire import Wire, until


@contextlib.asynccontextmanager
async def looking(answer, told, **options):
    """Yield an upstream of a server that answers each connection with a function of its first line."""
    answering: set[asyncio.Task] = set()

    async def serve(reader, writer):
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(answer(await reader.readuntil()))
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        upstream = Upstream(KnownServer(1, "s1"), [server.sockets[0].getsockname()], context_for, told, **options)
        upstream.suspect()
        yield upstream
        if answering:
            await asyncio.wait(answering)


def test_server_that_does_not_trust_the_router_is_tried_less_often(monkeypatch):
    waits = []

    async def wait(seconds):
        waits.append(seconds)

    def answer(word):
        if word == b"take 0\r\n":
            return b"NOT_FOUND\r\n" * 2
        return b"OK 2\r\n{}\r\n" if len(waits) % 7 == 6 else b"UNAUTHORIZED\r\n"  # in the end, twice

    async def look():
        back = asyncio.Event()
        async with looking(answer, back.set, relays=True) as upstream:
            await back.wait()
            waits.append(None)
            back.clear()
            upstream.suspect()
            await back.wait()

    monkeypatch.setattr(asyncio, "sleep", wait)
    asyncio.run(look())
    once = [*(AGAIN_S * 2**times for times in range(5)), REFUSED_AGAIN_S]
    assert waits == [*once, None, *once]


def test_thousands_of_connections_are_made_a_few_at_a_time(monkeypatch):
    pending = set()
    most = 0

    async def dial(_address, end, *_more):
        nonlocal most
        pending.add(end)
        most = max(most, len(pending))
        for _ in range(3):
            await asyncio.sleep(0)
        pending.discard(end)

    async def connect():
        async with looking(lambda _word: b"NOT_FOUND\r\n" * 2, lambda: None) as upstream:
            await upstream.looked.wait()
            monkeypatch.setattr(module, "dial", dial)
            return await asyncio.gather(*(upstream.connect(number, b"") for number in range(3000)))

    assert all(asyncio.run(connect()))
    assert 10 <= most <= 200


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, loop_factory()])
def test_connection_that_is_made_is_not_given_up(new_loop):
    """A timeout at the same moment would leave a client with a closed connection of which it is not told."""
    made, given_up = [], []

    class End(asyncio.Protocol):
        def __init__(self, task):
            self.task = task

        def connection_made(self, transport):
            made.append(transport)
            self.task.cancel()

    async def connect(address):
        try:
            await dial(address, End(asyncio.current_task()), context_for)
        except asyncio.CancelledError:
            given_up.append(address)

    async def serve():
        async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as server:
            await asyncio.wait([asyncio.create_task(connect(server.sockets[0].getsockname()))])
            made[0].abort()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())
    assert not given_up


def knows_rto_max():
    with socket.socket() as sock, contextlib.suppress(OSError):
        sock.setsockopt(*dial_module._RTO_MAX)
        return True
    return False


@pytest.mark.parametrize("is_new", [True, False])
def test_server_that_takes_nothing_is_not_taken_for_gone(monkeypatch, is_new):
    """Its kernel answers. TCP_USER_TIMEOUT would end the connection all the same: it is for older kernels alone."""
    timeouts = []

    class End(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

    async def connect():
        async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as server:
            end = End()
            await dial(server.sockets[0].getsockname(), end, context_for)
            sock = end.transport.get_extra_info("socket")
            timeouts.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
            end.transport.abort()

    if not is_new:
        monkeypatch.setattr(dial_module, "_RTO_MAX", (socket.IPPROTO_TCP, 9999, 2000))
    elif not knows_rto_max():
        pytest.skip("Linux before 6.15")
    asyncio.run(connect())
    assert timeouts == [0 if is_new else 25_000]


@pytest.mark.parametrize("ssl_object", [None, "TLS"])
def test_half_close_that_fails_ends_the_connection(ssl_object):
    """Else nothing would ever end the reserve that waits there."""

    class Broken(asyncio.Transport):
        is_aborted = False

        def is_closing(self):
            return self.is_aborted

        def get_write_buffer_size(self):
            return 0

        def write_eof(self):
            raise OSError(errno.ENOTCONN, "not connected")

        def abort(self):
            self.is_aborted = True

    with socket.socket() as sock:  # which is not connected
        broken = Broken({"ssl_object": ssl_object, "socket": sock})
        send_no_more(broken)
        assert broken.is_closing()
        assert sock.fileno() >= 0


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, loop_factory()])
def test_connection_that_is_reset_at_once_is_not_made(monkeypatch, new_loop):
    over_tcp = dial_module._over_tcp

    async def reset(*where):
        transport = await over_tcp(*where)
        transport.abort()
        await asyncio.sleep(0.01)
        return transport

    async def connect():
        async with looking(lambda _word: b"NOT_FOUND\r\n" * 2, lambda: None) as upstream:
            await upstream.looked.wait()
            monkeypatch.setattr(dial_module, "_over_tcp", reset)
            with pytest.raises(OSError):
                await dial(upstream.addresses[0], asyncio.Protocol(), context_for)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(connect())


def test_server_at_a_changed_address_is_not_looked_for_at_the_old(monkeypatch):
    begun, over = asyncio.Event(), asyncio.Event()

    async def dial(*_more):
        begun.set()
        await over.wait()
        raise ConnectionRefusedError("nobody is there")

    async def connect():
        async with looking(lambda _word: b"NOT_FOUND\r\n" * 2, lambda: None) as upstream:
            await upstream.looked.wait()
            monkeypatch.setattr(module, "dial", dial)
            connecting = asyncio.create_task(upstream.connect(asyncio.Protocol(), b""))
            await begun.wait()
            upstream.close()
            over.set()
            assert not await connecting
            assert len(asyncio.all_tasks()) == 1
            assert not upstream.server.away

    asyncio.run(connect())


def test_server_is_looked_for_again_after_any_exception(monkeypatch):
    async def fail(*_more):
        monkeypatch.setattr(module, "dial", dial)
        raise ConfigError("a file is broken")

    async def look():
        back = asyncio.Event()
        async with looking(lambda _word: b"NOT_FOUND\r\n" * 2, back.set):
            monkeypatch.setattr(module, "dial", fail)
            async with asyncio.timeout(5):
                await back.wait()

    asyncio.run(look())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, loop_factory()])
@pytest.mark.parametrize("host", ["a..b", "a" * 64, "ü" * 70, "a\0b"])
@pytest.mark.parametrize("address", [lambda host: (host, 1), lambda host: OverTls(host, 1, None, None, None)])
def test_server_whose_name_no_machine_can_have_is_away(address, host, new_loop):
    async def look():
        upstream = Upstream(KnownServer(1, "s1"), [address(host)], context_for, lambda: None)
        upstream.suspect()
        async with asyncio.timeout(5):
            await upstream.looked.wait()
        upstream.close()
        return upstream.server.away

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(look())


def test_server_with_an_impossible_name_keeps_no_router_from_start(tmp_path):
    servers = [start_beanlite(tmp_path / "1")]
    nowhere = '[servers.s2]\nnumber = 2\nconnect = "a..b:24010"\n'
    with start_router(tmp_path / "router", servers, moved=nowhere) as router:
        assert 'server=s2 reason="a..b:24010: no machine can have this name"' in router.log_text()
        with Wire(router.connect()) as wire:
            assert wire.put(b"x") % 64 in {1, 2}


def test_stop_does_not_wait_for_servers_that_are_looked_for(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent, (tmp_path / "router.log").open("w+b") as log:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        file = tmp_path / "servers.toml"
        file.write_text(f'version = 1\n[servers.s1]\nnumber = 1\nconnect = "{place}"\n')
        router = fork(["route", "--listen", f"127.0.0.1:{free_port()}", "--servers", str(file)], tmp_path, {}, log)
        with silent.accept()[0]:
            router.terminate()
            assert router.wait(60) == 0
        log.seek(0)
        assert b"routing" not in log.read()


def test_file_of_more_servers_leaves_room_for_fewer_clients(tmp_path):
    servers = [start_beanlite(tmp_path / str(number)) for number in range(3)]
    with start_router(tmp_path / "router", servers[:1]) as router:
        resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE, (120, 120))
        router.upstreams = servers
        with Wire(router.connect()) as first:
            first.stats()
            servers_file(router.directory / "servers.toml", servers, version=2)
            router.process.send_signal(signal.SIGHUP)
            until(lambda: "map_version=2" in router.log_text())
            assert "the limit of open files allows fewer clients max_clients=10000" in router.log_text()
            with contextlib.ExitStack() as stack:
                wires = [stack.enter_context(Wire(router.connect())) for _ in range(40)]
                wires[0].stats()
                assert wires[-1].is_closed()
            assert first.stats()["router-servers"] == "3"


def test_clients_that_do_not_close_after_their_quit_are_counted(tmp_path):
    """Else the router would have no descriptors left, and could accept nobody until they have closed."""
    servers = [start_beanlite(tmp_path / "1")]
    with start_router(tmp_path / "router", servers) as router, contextlib.ExitStack() as stack:
        resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE, (80, 80))
        router.process.send_signal(signal.SIGHUP)
        until(lambda: "fewer clients max_clients=10000 room=1" in router.log_text())
        for _ in range(100):
            client = stack.enter_context(router.connect())
            client.sendall(b"quit\r\n")
            assert client.recv(1) == b""
        with Wire(router.connect()) as wire:
            assert wire.put(b"x") == 65
        assert "out of system resource" not in router.log_text()
