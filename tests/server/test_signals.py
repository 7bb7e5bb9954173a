"""Start and stop: signals, exit codes, sockets, and what is left on the disk."""

import json
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.support.servers import start_beanlite
from tests.support.wire import Wire, put_bytes, until

LAUNCHER = """
import os, sys
os.environ["LISTEN_FDS"] = "1"
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "beanlite", *sys.argv[1:]])
"""


STOPS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that starts beanlite with the given arguments, in tmp_path; processes that are left are killed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    processes = []

    def start(*arguments, program=("-m", "beanlite"), **more):
        command = [sys.executable, *program, *map(str, arguments)]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, **more)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def ended(process):
    """Wait for the end of a process, and return its exit code and stderr."""
    _, err = process.communicate(timeout=20)
    return process.returncode, err


def connect_unix(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    try:
        client.connect(str(path))
    except OSError:
        client.close()
        raise
    return Wire(client)


def accepts(path):
    try:
        connect_unix(path).close()
    except (FileNotFoundError, ConnectionError):
        return False
    return True


@pytest.mark.parametrize("number", STOPS)
def test_a_stop_leaves_one_file_with_everything_in_it(tmp_path, number):
    with start_beanlite(tmp_path / "q") as server, Wire(server.connect()) as wire:
        for pri in range(3):
            wire.put(b"job", pri=pri)
        assert wire.ask("reserve").startswith("RESERVED 1")
        assert wire.ask("bury 1 9") == "BURIED"
        assert wire.ask("reserve").startswith("RESERVED 2")
        server.signal(number)
        assert server.process.wait(20) == 0
        assert wire.is_closed()
    assert sorted(path.name for path in server.directory.iterdir()) == ["queue.db", "server.log"]
    assert "stopped jobs=3" in server.log_text()
    with start_beanlite(server.directory) as server, Wire(server.connect()) as wire:
        states = [wire.stats(f"stats-job {job_id}")["state"] for job_id in (1, 2, 3)]
        assert states == ["buried", "ready", "ready"]
        assert wire.put(b"next") == 4


def test_a_stop_serves_nobody_any_more(tmp_path):
    with start_beanlite(tmp_path) as server, ExitStack() as stack:
        holder, waiter = (stack.enter_context(Wire(server.connect())) for _ in range(2))
        holder.put(b"job")
        assert holder.ask("reserve") == "RESERVED 1 3"
        waiter.send(b"reserve\r\ndelete 1\r\n")
        until(lambda: holder.stats()["current-waiting"] == "1")
        server.stop()
        assert waiter.is_closed()
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert wire.stats("stats-job 1")["reserves"] == "1"


def test_a_stop_does_not_wait_for_a_client_that_goes_on_sending(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as flood, Wire(server.connect()) as wire:
        over = threading.Event()

        def send():
            with suppress(ConnectionError):
                while not over.is_set():
                    flood.send(put_bytes(b"x") * 1000)

        def read():
            with suppress(ConnectionError):
                while not over.is_set():
                    flood.reply()

        threads = [threading.Thread(target=each) for each in (send, read)]
        for thread in threads:
            thread.start()
        try:
            until(lambda: int(wire.stats()["total-jobs"]) > 5000)
            assert server.stop() == 0
        finally:
            over.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("fsync", ["always", "50ms", "never"])
def test_a_stop_sends_what_is_due(tmp_path, fsync):
    with start_beanlite(tmp_path, "--fsync", fsync) as server, ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.connect())) for _ in range(20)]
        server.signal(signal.SIGSTOP)  # so that the commands and the signal arrive together
        for wire in wires:
            wire.send(put_bytes(b"job") * 5)
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGCONT)
        server.process.wait(20)
        acknowledged = []
        for wire in wires:
            try:
                while True:
                    acknowledged.append(int(wire.reply().split()[1]))
            except ConnectionError:
                continue
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert int(wire.stats()["current-jobs-ready"]) >= len(acknowledged)
        assert {wire.ask(f"peek {job_id}") for job_id in acknowledged} <= {f"FOUND {n} 3" for n in range(1, 101)}


def test_drain_mode_refuses_puts_and_serves_the_rest(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        wire.put(b"job")
        server.signal(signal.SIGUSR1)
        until(lambda: wire.stats()["draining"] == "true")
        assert wire.ask("put 0 0 60 3", b"job") == "DRAINING"
        assert wire.ask("reserve") == "RESERVED 1 3"
        assert wire.ask("delete 1") == "DELETED"
        assert "draining" in server.log_text()


def test_a_server_may_be_halted_and_go_on_at_any_time(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire, Wire(server.connect()) as other:
        over = threading.Event()
        puts = []

        def work():
            with suppress(ConnectionError):
                while not over.is_set():
                    puts.append(wire.put(b"x"))

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(1000):
                other.ask("list-tube-used")
                server.signal(signal.SIGSTOP)
                server.signal(signal.SIGCONT)
        finally:
            over.set()
            worker.join()
        assert puts == list(range(1, len(puts) + 1))
        assert server.stop() == 0


@pytest.fixture
def held_up(tmp_path, program):
    """A function that starts a server and blocks it in reading its settings, until the returned function is called."""

    def start():
        settings = tmp_path / "settings.toml"
        os.mkfifo(settings)
        server = program("--config", settings, "--socket", tmp_path / "socket", "-b", tmp_path / "queue.db")
        return server, settings.open("w").close  # opened as soon as the server reads it

    return start


@pytest.mark.parametrize("number", STOPS)
def test_a_stop_that_comes_too_early_waits(tmp_path, held_up, number):
    server, go_on = held_up()
    server.send_signal(number)
    go_on()
    code, err = ended(server)
    assert (code, "stopped" in err) == (0, True), err
    assert {path.name for path in tmp_path.iterdir()} == {"queue.db", "settings.toml"}


def test_a_drain_that_comes_too_early_waits(tmp_path, held_up):
    server, go_on = held_up()
    server.send_signal(signal.SIGUSR1)
    go_on()
    until(lambda: accepts(tmp_path / "socket"))
    with connect_unix(tmp_path / "socket") as wire:
        assert wire.ask("put 0 0 60 3", b"job") == "DRAINING"
    server.terminate()
    assert ended(server)[0] == 0


def test_once_it_stops_no_signal_ends_it_otherwise(tmp_path):
    with start_beanlite(tmp_path) as server:
        server.signal(signal.SIGTERM)
        while server.process.poll() is None:
            for number in (*STOPS, signal.SIGHUP, signal.SIGUSR1):
                server.signal(number)
        assert server.process.returncode == 0, server.log_text()


def test_a_closed_terminal_is_nothing_to_a_server_under_nohup(tmp_path, program):
    path = tmp_path / "socket"
    ignore = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    server = program("--socket", path, "--no-journal", preexec_fn=ignore)
    until(lambda: accepts(path))
    server.send_signal(signal.SIGHUP)
    with connect_unix(path) as wire:
        assert wire.put(b"job") == 1
    server.terminate()
    assert ended(server)[0] == 0


def test_the_files_are_the_owners_alone(tmp_path):
    with start_beanlite(tmp_path / "q") as server, Wire(server.connect()) as wire:
        wire.put(b"secret")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in server.directory.glob("queue.db*")}
    assert {"queue.db", "queue.db-wal", "queue.db-shm"} <= set(modes)
    assert set(modes.values()) == {0o600}


def test_without_a_journal_there_is_no_file(tmp_path):
    with start_beanlite(tmp_path / "q", "--no-journal") as server, Wire(server.connect()) as wire:
        wire.put(b"job")
        assert wire.stats("stats-job 1")["file"] == "0"
    assert [path.name for path in server.directory.iterdir()] == ["server.log"]


def test_a_second_server_on_the_file(tmp_path, program):
    with start_beanlite(tmp_path) as server:
        other = program("--socket", tmp_path / "socket", "--db", tmp_path / "queue.db")
        holds = f"beanlite: a server or another command holds {tmp_path}/queue.db; stop it, or name another file\n"
        assert ended(other) == (3, holds)
        assert not (tmp_path / "socket").exists()
        with Wire(server.connect()) as wire:
            assert wire.put(b"unharmed") == 1


def test_a_port_that_is_in_use(tmp_path, program):
    with start_beanlite(tmp_path / "q") as server:
        code, err = ended(program("-p", server.port, "-b", tmp_path / "other.db"))
    assert (code, err) == (5, f"beanlite: can't listen on 127.0.0.1 port {server.port}: Address already in use\n")
    assert not (tmp_path / "other.db").exists()


def test_a_file_that_is_not_ours(tmp_path, program):
    file = tmp_path / "notes.txt"
    file.write_text("mine " * 100)
    code, err = ended(program("-p", 0, "-b", file))
    assert (code, err) == (3, f"beanlite: {file} is not an SQLite file; name another one\n")
    assert file.read_text() == "mine " * 100
    assert list(tmp_path.iterdir()) == [file]


def test_a_unix_socket(tmp_path, program):
    path = tmp_path / "socket"
    flags = ("-l", f"unix:{path}", "--no-journal")
    killed = program(*flags)
    until(lambda: accepts(path))
    killed.kill()
    killed.wait()
    assert path.exists()

    server = program(*flags)  # replaces the socket that was left
    until(lambda: accepts(path))
    code, err = ended(program(*flags))
    assert (code, err) == (5, f"beanlite: can't listen on {path}: Address already in use\n")
    with connect_unix(path) as wire:
        assert wire.put(b"job") == 1
    server.terminate()
    assert ended(server)[0] == 0
    assert not path.exists()


def test_a_file_in_the_sockets_place_is_left_alone(tmp_path, program):
    path = tmp_path / "socket"
    path.write_text("mine")
    code, err = ended(program("--socket", path, "--no-journal"))
    assert (code, err) == (5, f"beanlite: can't listen on {path}: Address already in use\n")
    assert path.read_text() == "mine"


def test_a_socket_handed_over_by_systemd(program):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = os.dup(listener.fileno())
        address = listener.getsockname()

        def as_third():
            os.dup2(kept, 3)
            os.set_inheritable(3, True)

        server = program("--no-journal", program=("-c", LAUNCHER), preexec_fn=as_third, close_fds=False)
        os.close(kept)
    with Wire(socket.create_connection(address, 10)) as wire:  # waits in the backlog of the socket
        assert wire.put(b"job") == 1
    server.terminate()
    code, err = ended(server)
    assert code == 0
    assert "address=systemd" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_serving_as_another_user(program):
    # Not below tmp_path, which lies in a folder that each pytest that starts closes to all other users.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir()
        nobody = pwd.getpwnam("nobody")
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        path = folder / "socket"  # in a folder where nobody, the user, can't write: it is bound before
        server = program("-u", "nobody", "--socket", path, "-b", home)
        until(lambda: accepts(path) or server.poll() is not None)
        with connect_unix(path) as wire:
            assert wire.put(b"job") == 1
            pid = wire.stats()["pid"]
            assert os.stat(f"/proc/{pid}").st_uid == nobody.pw_uid  # noqa: PTH116
        assert (home / "beanlite.db").stat().st_uid == nobody.pw_uid
        server.terminate()
        assert ended(server)[0] == 0


def test_a_user_that_does_not_exist(tmp_path, program):
    code, err = ended(program("-u", "no-such-user", "-p", 0, "-b", tmp_path))
    assert (code, err) == (2, "beanlite: there is no user no-such-user\n")


def test_json_log_lines(tmp_path):
    with start_beanlite(tmp_path, "--log-format", "json") as server:
        server.signal(signal.SIGUSR1)
        until(lambda: "draining" in server.log_text())
    lines = [json.loads(line) for line in server.log_text().splitlines()]
    assert [line["event"].partition(":")[0] for line in lines] == ["recovered", "started", "draining", "stopped"]
    recovered, started, _, stopped = lines
    assert (recovered["file"], recovered["jobs"]) == (str(tmp_path / "queue.db"), 0)
    assert started["address"] == f"127.0.0.1:{server.port}"
    assert stopped["jobs"] == 0
