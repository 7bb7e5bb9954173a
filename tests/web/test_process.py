"""The page's process: what it does without its database or its server, and how it ends."""

import http.client
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from tests.support.servers import start_beanlite
from tests.support.web import Web, tubes_on
from tests.support.wire import Wire, until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a job that is buried."""
    with start_beanlite(tmp_path_factory.mktemp("web"), "--history", "1d") as server:
        with Wire(server.connect()) as wire:
            wire.ask("use mail")
            job_id = wire.put(b"job")
            assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
            assert wire.ask(f"bury {job_id} 7") == "BURIED"
        yield server


def test_a_page_without_the_database_says_what_it_lacks(server):
    with Web(f"127.0.0.1:{server.port}") as web:
        assert "start beanlite web with --db" in web.get("/job/1").text
        ranges = web.get("/tube/mail").text.partition("In and out")[2]
        assert ranges.startswith(" 5 min Hour Day Jobs a second")


def test_unix_socket_of_an_earlier_page_is_in_nobody_s_way(server, tmp_path):
    path = tmp_path / "page.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    flags = ["--connect", f"127.0.0.1:{server.port}", "--listen", f"unix:{path}"]
    with subprocess.Popen([sys.executable, "-m", "beanlite", "web", *flags], stderr=subprocess.PIPE, text=True) as page:
        told = page.stderr.readline()
        second = subprocess.run(page.args, capture_output=True, text=True, check=False, timeout=30)
        page.terminate()
    assert told == f"beanlite: unix:{path} shows 127.0.0.1:{server.port}\n"
    assert (second.returncode, second.stderr) == (1, f"beanlite: can't listen on {path}: Address already in use\n")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "can't be opened: No such file or directory"),
        (b"", "is empty"),
        (b"a letter" * 64, "is not an SQLite file"),
    ],
)
def test_a_database_that_can_not_be_read_is_told_at_the_start(server, tmp_path, content, why):
    path = tmp_path / "wrong.db"
    if content is not None:
        path.write_bytes(content)
    flags = ["--connect", f"127.0.0.1:{server.port}", "--listen", "127.0.0.1:0", "--db", path]
    command = [sys.executable, "-m", "beanlite", "web", *flags]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (ran.returncode, ran.stderr.count("\n")) == (3, 1)
    assert ran.stderr.startswith(f"beanlite: {path} {why}")


@pytest.fixture
def copy(server, tmp_path):
    """A copy of the server's database, which may go."""
    path = tmp_path / "copy.db"
    command = [sys.executable, "-m", "beanlite", "backup", path, "--db", server.directory / "queue.db"]
    subprocess.run(command, capture_output=True, check=True)
    return path


def test_without_its_database_the_page_goes_on(server, copy):
    with Wire(server.connect()) as wire:
        gone = wire.put(b"gone")
        assert wire.ask(f"delete {gone}") == "DELETED"
    with Web(f"127.0.0.1:{server.port}", "--db", copy) as web:
        assert "Puts in 24 h" in web.get("/").text
        copy.rename(copy.with_suffix(".away"))
        why = f"{copy} can't be opened: No such file or directory"
        overview = web.get("/?like=mail")
        assert (overview.status, "mail" in tubes_on(overview)) == (200, True)
        assert f"The history and the longer curves can't be read: {why}" in overview.text
        assert "Puts in 24 h" not in overview.text
        for span in ("day", "week"):
            tube = web.get(f"/tube/mail?span={span}")
            assert tube.status == 200
            assert f"The longer curves can't be read: {why}" in tube.text
            assert "Jobs a second" in tube.text
        job = web.get("/job/1")
        assert (job.status, "Job 1 buried" in job.text) == (200, True)
        assert f"The history can't be read: {why}" in job.text
        nothing = web.get(f"/job/{gone}")
        assert (nothing.status, f"Its history can't be read: {why}" in nothing.text) == (404, True)
        copy.with_suffix(".away").rename(copy)
        assert "bury mail 7" in web.get("/job/1").text
        assert "can't be read" not in web.get("/").text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_is_no_failure(server, number):
    with Web(f"127.0.0.1:{server.port}") as early:  # it may not even have begun to serve
        early.process.send_signal(number)
        assert early.process.wait(timeout=30) == 0
    with Web(f"127.0.0.1:{server.port}") as web:
        assert web.get("/clients").status == 200
        web.process.send_signal(number)
        assert web.process.wait(timeout=30) == 0


def test_a_page_that_still_waits_at_a_stop_is_told(tmp_path):
    """The server does not answer, and the page is not waited for any longer."""
    with start_beanlite(tmp_path, "--no-journal") as server:
        web = Web(f"127.0.0.1:{server.port}")
        with closing(http.client.HTTPConnection(web.where, timeout=30)) as connection:
            connection.request("GET", "/clients")
            assert connection.getresponse().read()
            server.signal(signal.SIGSTOP)
            try:
                connection.request("GET", "/job/1")
                web.process.terminate()
                response = connection.getresponse()
                assert (response.status, response.read()) == (503, b"The page is being stopped.\n")
            finally:
                server.signal(signal.SIGCONT)
            said = web.ended()
        assert (web.process.returncode, said.count("\n")) == (0, 1)
        assert "timeout graceful shutdown exceeded" in said


EARLY = """
import asyncio, os, signal, sys
from beanlite.cli import main

def run(runner, coroutine, run=asyncio.Runner.run):
    os.kill(os.getpid(), signal.SIGTERM)
    return run(runner, coroutine)

asyncio.Runner.run = run
sys.exit(main(["web", "--listen", "127.0.0.1:0"]))
"""


def test_a_stop_before_the_loop_runs_is_no_failure_either():
    ended = subprocess.run([sys.executable, "-c", EARLY], check=False, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0
    assert re.fullmatch(r"beanlite: http://.* shows .+\n", ended.stderr)


COLLECTS = """
import gc, sys
from beanlite import __main__ as entry
from beanlite.web import serving

serving.serve = lambda *args: print(gc.isenabled())
sys.argv = ["beanlite", "web", "--listen", "127.0.0.1:0"]
sys.exit(entry.main())
"""


def test_a_page_frees_what_requests_leave_behind():
    """Each one leaves tens of kilobytes, which only the collector finds."""
    ended = subprocess.run([sys.executable, "-c", COLLECTS], check=True, capture_output=True, text=True, timeout=30)
    assert ended.stdout == "True\n"


def test_a_server_that_goes_is_told_and_found_again(tmp_path):
    with start_beanlite(tmp_path) as server, Web(f"127.0.0.1:{server.port}") as web:
        assert web.get("/").status == 200
        server.kill()
        page = web.get("/clients")
        assert (page.status, "can't be reached" in page.text) == (503, True)
        assert "This page tries again by itself" in page.text
        page = web.post("/schedule", {"do": "run", "name": "nightly", "back": "/policies?a=1"})
        assert (page.status, "can't be reached" in page.text) == (503, True)
        assert "tries again" not in page.text  # a form is not sent again
        assert "data-live" not in page.html
        assert '<a href="/policies?a=1">Go back</a>' in page.html
        command = [sys.executable, "-m", "beanlite", "serve", "--no-journal", "-l", "127.0.0.1", "-p", str(server.port)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as again:
            until(lambda: web.get("/clients").status == 200)
            again.terminate()
