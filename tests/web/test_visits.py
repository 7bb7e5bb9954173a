"""Connections of browsers that send no request, or half of one: they keep nobody out, and don't stay."""

import asyncio
import os
import socket
import ssl
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import uvicorn

from beanlite.host.shown import page_context
from beanlite.web import visits
from beanlite.web.visits import Door, Visit
from tests.support.authority import Authority


async def answer(_scope, receive, send):
    """Answer once the whole body has come."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(protocol=Visit, app=answer):
    config = uvicorn.Config(
        app, port=0, http=protocol, lifespan="off", log_level="critical", limit_concurrency=4, timeout_keep_alive=60
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.force_exit = True
        await server.shutdown()


async def begin(place, sent):
    reader, writer = await asyncio.open_connection(*place)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def status_of(place):
    reader, writer = await begin(place, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    line = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    return line[9:12]


HALVES = [
    b"",
    b"GET / HTTP/1.1\r\nHo",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",  # a request, and half of the next one
]


@pytest.mark.parametrize("half", HALVES)
async def test_half_requests_keep_nobody_out(monkeypatch, half):
    monkeypatch.setattr(visits, "CONNECTIONS_MAX", 3)
    async with serving() as place:
        halves = [await begin(place, half) for _ in range(10)]
        assert [await status_of(place) for _ in range(3)] == [b"200"] * 3
        for reader, writer in halves[:6]:  # the earliest have made room
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
        for _, writer in halves[6:]:
            writer.close()


@pytest.mark.parametrize("half", HALVES)
async def test_what_does_not_come_is_not_waited_for(monkeypatch, half):
    monkeypatch.setattr(visits, "REQUEST_S", 0.01)
    async with serving() as place:
        reader, writer = await begin(place, half)
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)
        writer.close()


async def test_time_for_a_body_begins_with_its_request(monkeypatch):
    monkeypatch.setattr(visits, "CONNECTIONS_MAX", 2)
    begun = asyncio.Event()

    async def app(scope, receive, send):
        if scope["method"] == "POST":
            begun.set()
        await answer(scope, receive, send)

    async with asyncio.timeout(60), serving(app=app) as place:
        reader, writer = await begin(place, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"ok")
        silent, silent_writer = await begin(place, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await silent.readuntil(b"ok")
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nha")
        await begun.wait()
        assert await status_of(place) == b"200"
        with suppress(ConnectionResetError):
            assert not await silent.read()  # it has kept us waiting longer
        writer.write(b"lf")
        await reader.readuntil(b"ok")
        for each in (writer, silent_writer):
            each.close()


@pytest.mark.parametrize(("method", "ends"), [("GET", True), ("POST", False)])
async def test_what_only_looks_ends_when_its_browser_has_gone(caplog, method, ends):
    begun, gone, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ended = []

    async def app(_scope, receive, _send):
        begun.set()
        try:
            if not ends:
                while (await receive())["type"] != "http.disconnect":
                    pass
            await go_on.wait()
            ended.append("done")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            gone.set()

    async with asyncio.timeout(60), serving(app=app) as place:
        _, writer = await begin(place, b"%b / HTTP/1.1\r\nHost: localhost\r\n\r\n" % method.encode())
        await begun.wait()
        writer.close()
        if not ends:
            await asyncio.sleep(0.05)  # it is not cancelled, however long that is
            go_on.set()
        await gone.wait()
    assert ended == ["cancelled" if ends else "done"]
    assert not caplog.text


async def test_what_changes_something_is_told_that_its_browser_has_gone():
    told = []
    begun, gone = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, _send):
        await receive()
        has_gone = scope["state"]["has_gone"]
        told.append(has_gone())
        begun.set()
        while not has_gone():
            await asyncio.sleep(0.01)
        gone.set()

    async with asyncio.timeout(60), serving(app=app) as place:
        _, writer = await begin(place, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nform")
        await begun.wait()
        writer.close()
        await gone.wait()
    assert told == [False]


LARGE = 8 << 20


@asynccontextmanager
async def unread(protocol=Visit, tls=None, before=lambda: None):
    """A large response of which nothing is read, and what is set when it has ended."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def app(_scope, _receive, send):
        before()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(LARGE), "more_body": True})
        begun.set()
        try:
            await send({"type": "http.response.body"})
        finally:
            ended.set()

    async with asyncio.timeout(60), serving(protocol, app) as place:
        _, writer = await asyncio.open_connection(*place, ssl=tls, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await begun.wait()
        yield ended
        writer.transport.abort()


@pytest.mark.parametrize("encrypts", [False, True])
async def test_response_that_is_not_read_is_not_kept(monkeypatch, door, authority, encrypts):
    tls = ssl.create_default_context(cafile=authority.file) if encrypts else None
    shorten = partial(monkeypatch.setattr, visits, "REQUEST_S", 0.01)
    async with unread(door if encrypts else Visit, tls, shorten) as ended:
        await ended.wait()


async def answer_largely(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


async def read_none(place):
    """A connection that has asked for a large response, of which nothing is read yet."""
    reader, writer = await asyncio.open_connection(*place, limit=1)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return reader, writer


async def read_all(reader):
    """Whether all of the large response comes."""
    size = 0
    with suppress(ConnectionResetError):
        while size <= LARGE and (part := await reader.read(LARGE)):  # with the head it is larger
            size += len(part)
    return size > LARGE


@pytest.mark.parametrize("is_fast_enough", [True, False])
async def test_response_that_is_read_slowly_is_kept(monkeypatch, is_fast_enough):
    looks, many, cut = [], asyncio.Event(), asyncio.Event()
    look, pause, cut_off = Visit._be_slow, Visit.pause_writing, Visit.cut_off

    def look_again(visit, unread):
        looks.append(unread)
        if len(looks) == 9:
            many.set()
        look(visit, unread)

    def begin_to_look(visit):
        monkeypatch.setattr(visits, "REQUEST_S", 0.01)
        pause(visit)

    monkeypatch.setattr(visits, "READ_MIN", 0 if is_fast_enough else 1)
    monkeypatch.setattr(Visit, "_be_slow", look_again)
    monkeypatch.setattr(Visit, "pause_writing", begin_to_look)
    monkeypatch.setattr(Visit, "cut_off", lambda visit: (cut.set(), many.set(), cut_off(visit)))
    async with asyncio.timeout(60), serving(app=answer_largely) as place:
        reader, writer = await read_none(place)
        await (many if is_fast_enough else cut).wait()
        monkeypatch.setattr(visits, "REQUEST_S", 60.0)
        assert await read_all(reader) == is_fast_enough
        writer.close()


async def test_silent_one_makes_room_before_one_that_reads(monkeypatch):
    monkeypatch.setattr(visits, "CONNECTIONS_MAX", 2)
    paused = asyncio.Event()
    pause = Visit.pause_writing
    monkeypatch.setattr(Visit, "pause_writing", lambda visit: (paused.set(), pause(visit)))
    async with asyncio.timeout(60), serving(app=answer_largely) as place:
        reader, writer = await read_none(place)
        await paused.wait()
        silent, silent_writer = await begin(place, b"")
        assert await status_of(place) == b"200"
        with suppress(ConnectionResetError):
            assert not await silent.read()
        assert await read_all(reader)
        writer.close()
        silent_writer.close()


# -- before the connection is encrypted


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def door(authority):
    both = str(authority.issue("page"))
    return Door(page_context(both, both, ("--cert", "--key")))


async def encrypted_status_of(place, authority):
    tls = ssl.create_default_context(cafile=authority.file)
    reader, writer = await asyncio.open_connection(*place, ssl=tls)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    line = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    return line[9:12]


# Silence, what is no TLS, and the beginning of a handshake.
BEGINNINGS = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"]


@pytest.mark.parametrize("beginning", BEGINNINGS)
async def test_half_handshakes_keep_nobody_out(monkeypatch, door, authority, beginning):
    monkeypatch.setattr(visits, "CONNECTIONS_MAX", 3)
    async with serving(door) as place:
        halves = [await begin(place, beginning) for _ in range(10)]
        assert [await encrypted_status_of(place, authority) for _ in range(3)] == [b"200"] * 3
        assert len(door._pending) <= 3
        for reader, writer in halves[:6]:
            with suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 10)
            writer.close()
        for _, writer in halves[6:]:
            writer.close()


@pytest.mark.parametrize("beginning", BEGINNINGS)
async def test_handshake_that_does_not_come_is_not_waited_for(monkeypatch, door, beginning):
    monkeypatch.setattr(visits, "REQUEST_S", 0.01)
    async with serving(door) as place:
        reader, writer = await begin(place, beginning)
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)
        writer.close()


@pytest.mark.parametrize("encrypts", [False, True])
async def test_browser_that_sends_no_more_is_let_go(door, authority, encrypts):
    async with serving(door if encrypts else Visit) as place:
        tls = ssl.create_default_context(cafile=authority.file) if encrypts else None
        reader, writer = await asyncio.open_connection(*place, ssl=tls)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"ok"), 10)
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as own:
            own.shutdown(socket.SHUT_WR)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


class Beginning:
    """A connection without a handshake, from an address."""

    def __init__(self, host):
        self._peer = host, 1234
        self.is_closed = False

    def get_extra_info(self, _name):
        return self._peer

    def abort(self):
        self.is_closed = True


async def test_one_address_has_a_part_of_the_handshakes(monkeypatch, door):
    monkeypatch.setattr(visits, "CONNECTIONS_MAX", 50)
    first, *others = [Beginning("192.0.2.1") for _ in range(100)]
    other, local = Beginning("192.0.2.2"), [Beginning("127.0.0.1") for _ in range(25)]
    for each in (first, *others, other, *local):
        door.begin(each)
    assert [each.is_closed for each in (first, *others)] == [False] * 20 + [True] * 80
    assert not other.is_closed
    assert not any(each.is_closed for each in local)
    door.end(first, has_session=False)
    door.begin(first)
    assert not first.is_closed
    for each in list(door._pending):
        door.end(each, has_session=False)
