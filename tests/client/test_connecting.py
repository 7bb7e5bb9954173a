"""Addresses, TLS, tokens and rights."""

import asyncio
import ssl
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from beanlite.client import CannotConnect, Unauthorized, connect, connect_blocking
from beanlite.client.target import targets, wait_s
from tests.support.authority import Authority
from tests.support.certificates import tls_flags, tls_port
from tests.support.servers import start_beanlite
from tests.support.tls_front import TlsFront
from tests.support.wire import until

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef" * 4
RULES = f"""
[tokens]
ci = "{sha256(TOKEN.encode()).hexdigest()}"

[[allow]]
who = ["token:ci"]
role = ["producer", "worker", "reader"]
tubes = ["ci.*"]
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def context(authority):
    return ssl.create_default_context(cafile=authority.file)


@pytest.fixture(scope="module")
def server(tmp_path_factory, authority):
    """A server that asks for a token, over TLS and at a Unix socket."""
    folder = tmp_path_factory.mktemp("server")
    rules = folder / "access.toml"
    rules.write_text(RULES)
    both = authority.issue("server")
    with start_beanlite(folder, "--no-journal", *tls_flags((both, both)), "--access", str(rules)) as server:
        until(lambda: " tls=" in server.log_text())
        yield server
    assert "Traceback" not in server.log_text()


@pytest.fixture
def url(server):
    return f"beanlites://localhost:{tls_port(server)}"


async def test_token_is_shown_over_tls(url, context):
    async with connect(url, tls=context, token=TOKEN, name="ci/1", use="ci.a", watch="ci.a") as queue:
        job_id = await queue.put("x" * 60_000)
        job = await queue.reserve()
        assert (job.id, len(job.body)) == (job_id, 60_000)
        await job.delete()


def test_token_is_shown_over_tls_by_the_blocking_client(url, context):
    with connect_blocking(url, tls=context, token=TOKEN, use="ci.b", watch=["ci.b"]) as queue:
        queue.put("x" * 60_000)
        queue.reserve().delete()
        with pytest.raises(Unauthorized):
            queue.use("other")
        with pytest.raises(Unauthorized):
            queue.watch("other")
        queue.put("y")
        assert queue.reserve().text == "y"


async def test_forbidden_tube_gets_no_put_and_no_reserve(url, context):
    async with connect(url, tls=context, token=TOKEN, use="ci.c", watch=["ci.c"]) as queue:
        with pytest.raises(Unauthorized):
            await queue.put("x", "other")
        with pytest.raises(Unauthorized):
            await queue.use("other")
        with pytest.raises(Unauthorized):
            await queue.watch("other")
        with pytest.raises(Unauthorized):
            await anext(queue.jobs("other"))
        job_id = await queue.put("y")
        assert (await queue.stats_tube("ci.c"))["total-jobs"] == 1
        assert (await queue.reserve()).id == job_id


def test_refused_watch_leaves_the_jobs_in_hand(url, context):
    with connect_blocking(url, tls=context, token=TOKEN, use="ci.d", watch=["ci.d"]) as queue:
        queue.put("x")
        job = queue.reserve()
        with pytest.raises(Unauthorized):
            queue.watch("other")
        with pytest.raises(Unauthorized):
            next(queue.jobs("ci.e", "other"))
        queue.put("z", "ci.e", pri=0)
        queue.put("y")
        assert queue.reserve(9).text == "y"  # ci.e is not watched any more
        job.delete()


async def test_wrong_token_is_an_error(url, context):
    with pytest.raises(Unauthorized):
        await connect(url, tls=context, token=TOKEN[::-1]).__aenter__()
    with pytest.raises(Unauthorized):
        connect_blocking(url, tls=context, token=TOKEN[::-1])


async def test_unknown_certificate_is_an_error(url):
    with pytest.raises(CannotConnect, match="the server's certificate is not trusted: "):
        await connect(url, token=TOKEN).__aenter__()
    with pytest.raises(CannotConnect, match="the server's certificate is not trusted: "):
        connect_blocking(url, token=TOKEN)


async def test_port_of_tls_is_an_error_without_it(server):
    url = f"beanlite://localhost:{tls_port(server)}"
    with pytest.raises(CannotConnect):
        await connect(url).__aenter__()
    with pytest.raises(CannotConnect):
        connect_blocking(url)


async def test_alert_in_answer_to_a_plain_client_is_told():
    async def serve(reader, writer):
        await reader.readline()
        writer.write(b"\x15\x03\x01\0\x02\x02\x46")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"beanlite://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(CannotConnect, match="the server speaks TLS at this port"):
            await connect(url).__aenter__()
        with pytest.raises(CannotConnect, match="the server speaks TLS at this port"):
            await asyncio.to_thread(connect_blocking, url)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_alert_of_a_server_that_asks_for_a_certificate_is_told(version, server, authority, context):
    with TlsFront(server.port, authority.issue("front"), clients=authority.file) as front:
        front.context.maximum_version = ssl.TLSVersion[version]
        url = f"beanlites://localhost:{front.port}"
        with pytest.raises(CannotConnect) as error:
            await connect(url, tls=context).__aenter__()
        with pytest.raises(CannotConnect) as blocking_error:
            connect_blocking(url, tls=context)
    if version == "TLSv1_2":  # later, the alert may be lost
        assert "the server asks for a client certificate" in str(error.value)
        assert "the server asks for a client certificate" in str(blocking_error.value)


@pytest.mark.parametrize("host", ["none.invalid", "none..invalid"])
async def test_host_without_an_address_is_an_error(host):
    with pytest.raises(CannotConnect, match=host):
        await connect(f"beanlite://{host}").__aenter__()
    with pytest.raises(CannotConnect, match=host):
        connect_blocking(f"beanlite://{host}")


@pytest.fixture
def path(tmp_path):
    """The Unix socket of a server."""
    path = tmp_path / "socket"
    command = [sys.executable, "-m", "beanlite", "serve", "--no-journal", "--socket", str(path)]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, cwd=ROOT, stderr=log) as process:
        until(lambda: " started " in (tmp_path / "log").read_text())
        yield path
        process.terminate()


async def test_unix_socket_is_reached(path):
    async with connect(f"unix:{path}", token=TOKEN, name="me") as queue:  # a server without rules asks for none
        assert await queue.put("x") == 1
    with connect_blocking(f"unix:{path}", token=TOKEN, name="me") as queue:
        assert queue.peek(1).text == "x"


# -- addresses


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("beanlite://queue.example.org:11400", "queue.example.org", 11400, None),
        ("beanlite://queue.example.org", "queue.example.org", 11300, None),
        ("beanlite://[::1]:11400/", "::1", 11400, None),
        ("beanlite://[::1]", "::1", 11300, None),
        ("unix:/run/queue.sock", "", 0, "/run/queue.sock"),
    ],
)
def test_address_is_read(url, host, port, path):
    (where,) = targets(url, tls=None, token=None, name=None)
    assert (where.host, where.port, where.path, where.tls) == (host, port, path, None)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:11300",
        "unix:",
        "beanlite://",
        "beanlite://a,,b",
        "beanlite://:1",
        "beanlite://a:b",
        "http://a:1",
    ],
)
def test_no_address_is_an_error(url):
    with pytest.raises(ValueError, match="an address is "):
        connect(url)


def test_several_servers_are_named():
    where = targets("beanlite://a,[::1]:5,c:6", tls=None, token=None, name=None)
    assert [str(each) for each in where] == ["beanlite://a:11300", "beanlite://[::1]:5", "beanlite://c:6"]


def test_tls_is_asked_for_by_the_address_or_by_itself():
    assert str(targets("beanlites://[::1]:1", tls=None, token=None, name=None)[0]) == "beanlites://[::1]:1"
    assert str(targets("beanlite://a", tls=True, token=TOKEN, name=None)[0]) == "beanlites://a:11300"
    with pytest.raises(ValueError, match="beanlites:// is with TLS"):
        connect("beanlites://a", tls=False)
    with pytest.raises(ValueError, match="a Unix socket has no TLS"):
        connect("unix:/a", tls=True)


def test_token_is_not_sent_in_clear_text():
    with pytest.raises(ValueError, match="since others could read it"):
        connect("beanlite://127.0.0.1", token=TOKEN)


@pytest.mark.parametrize("what", [{"name": "a b"}, {"name": ""}, {"token": "a\r\nb"}, {"token": ""}])
def test_impossible_names_and_tokens_are_errors(what):
    with pytest.raises(ValueError, match=r"name|token"):
        connect("unix:/a", **what)


@pytest.mark.parametrize("watch", [[], "", ["a", "b c"]])
def test_impossible_tubes_are_errors(watch):
    with pytest.raises(ValueError, match="tube"):
        connect("beanlite://127.0.0.1", watch=watch)


def test_waits_grow_to_some_seconds():
    assert [wait_s(failures, 1.0) for failures in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert wait_s(1000, 0.5) == 2.5


def test_several_servers_are_tried_without_waits_in_between():
    assert [wait_s(failures, 1.0, servers=2) for failures in range(1, 7)] == [0.1, 0, 0.2, 0, 0.4, 0]
