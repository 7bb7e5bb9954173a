"""The web page that runs beside a server: it starts and ends with the server, and its end never ends the server."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from beanlite.beside import child, webpage
from beanlite.beside.beside import _reached_at
from beanlite.beside.webpage import WebPage
from beanlite.errors import ConfigError
from beanlite.host import log
from tests.support.inside import until as until_inside
from tests.support.servers import free_port, start_beanlite
from tests.support.web import ask, page_of
from tests.support.wire import Wire, until


@pytest.fixture
def server(tmp_path):
    with start_beanlite(tmp_path / "q", "--history", "1d", "--web", "127.0.0.1:0") as server:
        yield server


def has_gone(pid):
    """Return whether a process has ended, even if it has not been reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_the_page_shows_this_server_and_its_database(server):
    with Wire(server.connect()) as wire:
        wire.put(b"by a client")
    where, _ = page_of(server)
    status, text = ask(where)
    assert status == 200
    assert f"127.0.0.1:{server.port}" in text
    assert "by a client" in ask(where, "/jobs")[1]
    assert "start beanlite web with --db" not in ask(where, "/job/1")[1]


def test_commands_on_the_page_of_a_server_ask_that_server(server):
    with Wire(server.connect()) as wire:
        job_id = wire.put(b"x")
        assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
        assert wire.ask(f"bury {job_id} 0") == "BURIED"
    where, _ = page_of(server)
    command = f"beanlite jobs --tube default --state buried --connect 127.0.0.1:{server.port}"
    until(lambda: command in ask(where)[1])


def test_what_is_in_the_servers_folder_is_not_imported(tmp_path):
    """Such as the producer of a newcomer, by the name of a module of Python's own."""
    folder = tmp_path / "q"
    folder.mkdir()
    for name in ("queue", "calendar", "email"):
        (folder / f"{name}.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    backups = tmp_path / "backups"
    backups.mkdir()
    flags = ["--web", "127.0.0.1:0", "--backup-every", "1h", "--backup-dir", str(backups)]
    with start_beanlite(folder, *flags) as server:
        assert ask(page_of(server)[0])[0] == 200
        until(lambda: "backup made" in server.log_text())
        assert ask(page_of(server)[0], "/backups")[0] == 200
    assert not (folder / "imported").exists()


# -- how it lives and ends


def test_before_its_database_is_there_the_page_shows_the_rest(server, tmp_path):
    asked = {"server": f"127.0.0.1:{server.port}", "listen": "127.0.0.1:0", "db": str(tmp_path / "none.db")}
    command = webpage.page_command(asked)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        where = process.stderr.readline().strip().removeprefix("http://").rstrip("/")
        status, text = ask(where)
        assert (status, "Worth a look" in text, "none.db" in text) == (200, True, True)
    assert ask(where) is None


def test_a_stop_ends_both_and_leaves_one_file(server):
    where, pid = page_of(server)
    assert ask(where, "/tube/default")[0] in {200, 404}
    assert server.stop() == 0
    assert has_gone(pid)
    assert ask(where) is None
    assert "starting it again" not in server.log_text()
    assert sorted(file.name for file in server.directory.glob("queue.db*")) == ["queue.db"]


def test_a_server_that_is_killed_takes_it_along(server):
    where, pid = page_of(server)
    server.kill()
    until(lambda: has_gone(pid))
    assert ask(where) is None


def test_one_that_is_killed_leaves_the_server_alone_and_comes_again(server):
    _, pid = page_of(server)
    with Wire(server.connect()) as wire:
        os.kill(pid, signal.SIGKILL)
        assert wire.put(b"job") == 1
        where, second = page_of(server, 2)
        assert (second != pid, ask(where)[0]) == (True, 200)
        assert wire.put(b"job") == 2
    (line,) = [line for line in server.log_text().splitlines() if "process ended" in line]
    assert line.endswith('web page process ended; starting it again error="killed by SIGKILL" in_s=1.000')


def test_page_is_killed_before_the_queue_if_memory_runs_out(server):
    _, pid = page_of(server)
    until(lambda: Path(f"/proc/{pid}/oom_score_adj").read_text() == "500\n")


def test_it_has_no_file_and_no_socket_of_the_server(server):
    def files(pid):
        found = set()
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found.add(str(file.readlink()))
        return found

    _, pid = page_of(server)
    of_server = files(server.process.pid)
    assert any("queue.db" in file for file in of_server)
    assert any(file.startswith("socket:") for file in of_server)
    assert {file for file in files(pid) & of_server if file.startswith("socket:") or "queue.db" in file} == set()


def test_it_has_nothing_of_the_servers_settings_in_its_environment(tmp_path):
    # In the page's process these settings would contradict each other.
    folder = tmp_path / "backups"
    folder.mkdir()
    environment = {"BEANLITE_BACKUP_DIR": str(folder), "NOTIFY_SOCKET": str(tmp_path / "none")}
    with start_beanlite(
        tmp_path / "q", "--web", "127.0.0.1:0", "--backup-every", "24h", environment=environment
    ) as server:
        _, pid = page_of(server)
        names = [item.partition(b"=")[0] for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
        assert not [name for name in names if name.startswith((b"BEANLITE_", b"NOTIFY_"))]


def test_a_server_on_a_unix_socket(tmp_path):
    where = f"127.0.0.1:{free_port()}"
    flags = ["--no-journal", "--socket", "socket", "--web", where]
    command = [sys.executable, "-m", "beanlite", "serve", *flags]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: ask(where))
            status, text = ask(where)
        finally:
            server.terminate()
    assert (status, f"unix:{tmp_path}/socket" in text) == (200, True)


def test_a_port_that_is_taken_is_no_trouble_for_the_queue(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        with start_beanlite(tmp_path, "--no-journal", "--web", where) as server, Wire(server.connect()) as wire:
            until(lambda: f"starting it again error=\"can't listen on {where}: " in server.log_text())
            assert wire.put(b"job") == 1


@pytest.mark.parametrize(
    ("family", "name", "reached"),
    [
        (socket.AF_INET, ("192.0.2.1", 11300), "192.0.2.1:11300"),
        (socket.AF_INET, ("0.0.0.0", 11300), "127.0.0.1:11300"),
        (socket.AF_INET6, ("::", 11300, 0, 0), "[::1]:11300"),
        (socket.AF_UNIX, "/run/beanlite.sock", "unix:/run/beanlite.sock"),
        (socket.AF_UNIX, b"\0abstract", None),
    ],
)
def test_where_a_server_is_reached(family, name, reached):
    class Socket:
        def __init__(self):
            self.family = family

        def getsockname(self):
            return name

    sockets: Any = [Socket()]
    if reached is None:
        with pytest.raises(ConfigError, match="abstract socket"):
            _reached_at(sockets)
    else:
        assert _reached_at(sockets) == reached


# -- with a command given by the test


@pytest.fixture
def told(monkeypatch):
    """The lines that are logged."""
    lines = []
    for level in ("info", "warning"):
        monkeypatch.setattr(log, level, lambda event, **fields: lines.append((event, fields)))
    return lines


def started(code):
    found = WebPage(asyncio.get_running_loop(), [sys.executable, "-c", code], {})
    found.begin()
    return found


async def end(found):
    found.end()
    await found.wait()


async def test_one_that_ends_again_and_again_is_started_less_and_less_often(told, monkeypatch):
    monkeypatch.setattr(webpage, "MOST_S", 0.03)
    found = WebPage(asyncio.get_running_loop(), [sys.executable, "-c", "raise SystemExit(3)"], {})
    found._wait_s = 0.01
    found.begin()
    await until_inside(lambda: len(told) >= 4)
    await end(found)
    assert told[0] == ("web page process ended; starting it again", {"error": "exit code 3", "in_s": 0.01})
    assert [fields["in_s"] for _, fields in told[:4]] == [0.01, 0.02, 0.03, 0.03]


async def test_after_a_long_life_it_is_started_as_soon_as_at_first(told, monkeypatch):
    monkeypatch.setattr(webpage, "STEADY_S", 0.0)
    found = WebPage(asyncio.get_running_loop(), [sys.executable, "-c", ""], {})
    found._wait_s = 200.0
    found.begin()
    await until_inside(lambda: told)
    await end(found)
    assert told[0][1]["in_s"] == webpage.FIRST_S


async def test_one_that_can_not_even_be_started(told):
    found = WebPage(asyncio.get_running_loop(), ["/none/such"], {})
    found.begin()
    await end(found)
    ((_, fields),) = told
    assert "No such file" in fields["error"]


async def test_page_that_waits_for_its_next_start_is_started_by_a_change(told):
    found = WebPage(asyncio.get_running_loop(), ["/none/such"], {})
    found._wait_s = 200.0
    found.begin()
    found.change([sys.executable, "-c", "import sys; print('http://x', file=sys.stderr, flush=True); input()"], {})
    await until_inside(lambda: told[-1][0] == "serving the web page")
    await end(found)


async def test_what_goes_wrong_in_it_is_told_by_the_last_line(told):
    code = "import sys; sys.stderr.write('ERROR: a bug\\nTraceback:\\nValueError: x\\n'); sys.stderr.flush(); input()"
    found = started(code)
    await until_inside(lambda: told)
    await end(found)
    assert told == [("web page error", {"error": "ValueError: x"})]


async def test_its_log_lines_are_logged_again_and_are_no_error(told, caplog):
    line = '{"level": "warning", "event": "wrong password", "address": "192.0.2.1", "user": "ann"}'
    found = started(f"import sys; sys.stderr.write('ValueError: x\\n' + {line + chr(10)!r} * 2); sys.exit(3)")
    await until_inside(lambda: len(told) == 2)
    await end(found)
    assert [(each.levelname, each.getMessage(), each.fields) for each in caplog.records] == [
        ("WARNING", "wrong password", {"address": "192.0.2.1", "user": "ann"})
    ] * 2
    assert [(event, fields["error"]) for event, fields in told] == [
        ("web page error", "ValueError: x"),
        ("web page process ended; starting it again", "ValueError: x"),
    ]


async def test_one_that_does_not_want_to_end_is_killed(told, monkeypatch):
    monkeypatch.setattr(child, "ENDS_WITHIN_S", 0.0)
    code = "import signal, sys; signal.signal(15, signal.SIG_IGN); sys.stderr.write('http://x/\\n'); signal.pause()"
    found = started(code)
    await until_inside(lambda: told)
    process = found._child.process
    await end(found)
    assert process.returncode == -9
    assert told[-1] == ("web page process did not end; killed", {"seconds": 5.0})
