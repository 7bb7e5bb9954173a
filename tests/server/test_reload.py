"""SIGHUP: the settings are read again and applied as far as possible, and the log reports those that are not."""

import os
import pty
import signal
import sys

import pytest

from beanlite.server.reload import APPLIED
from beanlite.settings.config import Settings
from tests.support.servers import start_beanlite
from tests.support.sqlite_tool import ask
from tests.support.wire import Wire, until

# The default needs more open files than a machine may allow, and each reload would say so.
CONNECTIONS = "max_connections = 500\n"


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "beanlite.toml"
    file.write_text(CONNECTIONS)
    return file


@pytest.fixture
def server(tmp_path, file):
    with start_beanlite(tmp_path / "q", "--config", str(file)) as server:
        yield server


@pytest.fixture
def reload(server, file):
    """A function that writes the settings, has the server read them, and returns what it logs about them."""

    def reload(text):
        before = len(server.log_text())
        file.write_text(text if text.startswith("max_connections = ") else CONNECTIONS + text)
        server.signal(signal.SIGHUP)
        until(lambda: "reloaded" in server.log_text()[before:])
        return [line.partition("beanlite: ")[2] for line in server.log_text()[before:].splitlines()]

    return reload


def test_limits_of_tubes_and_bodies(server, reload):
    with Wire(server.connect()) as wire:
        assert wire.ask("watch a") == "WATCHING 2"
        assert reload("max_job_size = 3\nmax_tubes = 1\nmax_watched = 3\n") == [
            "setting changed setting=max_job_size was=65535 now=3",
            "setting changed setting=max_watched was=1000 now=3",
            "setting changed setting=max_tubes was=200000 now=1",
            "reloaded",
        ]
        assert wire.ask("put 0 0 60 4", b"four") == "JOB_TOO_BIG"
        assert wire.ask("watch b") == "OUT_OF_MEMORY"
        assert wire.stats()["max-job-size"] == "3"
        reload("max_watched = 2")
        assert wire.put(b"four") == 1
        assert wire.ask("watch b") == "OUT_OF_MEMORY"
        reload("")
        assert wire.ask("watch b") == "WATCHING 3"


def test_log_tells_the_limit_of_a_line_that_goes_with_max_job_size(server, reload):
    reload("max_job_size = 2000000")
    with Wire(server.connect()) as wire:
        wire.send(b"x" * 2_000_000)
        assert wire.reply() == "BAD_FORMAT"
    until(lambda: "endless line limit=2000000 " in server.log_text())


def test_connections(server, reload):
    with Wire(server.connect()) as wire:
        reload("max_connections = 1")
        with Wire(server.connect()) as refused:
            assert refused.is_closed()
        assert wire.ask("list-tube-used") == "USING default"
        reload("max_connections_per_address = 1")  # connections accepted before are not counted
        with Wire(server.connect()) as second, Wire(server.connect()) as refused:
            assert second.ask("list-tube-used") == "USING default"
            assert refused.is_closed()


def test_operators_that_are_there_lose_the_right_and_get_it_back(server, reload):
    with Wire(server.connect()) as wire:
        assert wire.request("list-jobs")["jobs"] == []
        reload('operators = "none"')
        wire.send(b"list-jobs 2\r\n")
        assert wire.reply() == "UNKNOWN_COMMAND"
        with Wire(server.connect()) as other:
            other.send(b"list-jobs 2\r\n")
            assert other.reply() == "UNKNOWN_COMMAND"
        reload("")
    with Wire(server.connect()) as wire:
        assert wire.request("list-jobs")["jobs"] == []


def test_memory(server, reload):
    with Wire(server.connect()) as wire:
        assert reload('max_memory = "64MiB"')[-1] == "reloaded"
        assert wire.stats()["memory-max"] == str(64 << 20)


def test_jobs_that_are_there_do_not_lower_the_bound_on_memory(server, reload):
    with Wire(server.connect()) as wire:
        before = wire.stats()["memory-max"]
        wire.send(b"put 0 0 60 60000\r\n%b\r\n" % bytes(60_000) * 500)
        for _ in range(500):
            assert wire.reply().startswith("INSERTED")
        reload("max_tubes = 3")
        assert wire.stats()["memory-max"] == before


def test_a_history_begins_and_ends(server, reload):
    def events():
        return ask(server.directory / "queue.db", "select what from events order by n").split()

    with Wire(server.connect()) as wire:
        wire.put(b"unseen")
        reload('history = "1d"')
        wire.put(b"seen")
        reload('history = "2d"\nhistory_bodies = true')
        wire.ask("delete 1")
        reload("")
        wire.ask("delete 2")
        until(lambda: events() == ["put", "delete"])
    assert ask(server.directory / "queue.db", "select body from events where what = 'delete'") == "unseen\n"


def test_backups_begin_and_end(server, reload, tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    reload(f'backup_every = "24h"\nbackup_dir = "{folder}"')
    until(lambda: "backup made" in server.log_text(), within_s=120)  # it has a low priority
    assert len(list(folder.iterdir())) == 1
    reload("")
    with Wire(server.connect()) as wire:
        assert wire.stats()["backup-succeeded-at"] == "0"


def test_the_log(server, reload):
    reload('log_level = "debug"')
    with Wire(server.connect()) as wire:
        wire.put(b"job")
        until(lambda: "commit batch" in server.log_text())
        until(lambda: "connection opened" in server.log_text())
    reload('log_format = "json"')
    assert server.log_text().splitlines()[-1].startswith('{"time"')


def test_what_needs_a_restart_is_said_each_time(reload):
    for _ in range(2):
        assert reload('fsync = "never"') == ["setting needs a restart setting=fsync now=always then=never", "reloaded"]
    assert set(APPLIED) < set(Settings.model_fields)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("max_tubes = 1\nmax_watched = 0", "max_watched = 0 is not allowed"),
        pytest.param(f"max_tubes = {'[' * 5000}", "is not TOML: it is nested too deeply", id="nested lists"),
        pytest.param(f"max_tubes{'.a' * 5000} = 1", "max_tubes = {'a': {'a': ", id="nested tables"),
        ("max_tubes = 1\nbackup_keep = 1\nbackup_every = '1h'", "backup_every and backup_dir need each other"),
        ("max_tubes = ", "is not TOML"),
    ],
)
def test_a_wrong_file_changes_nothing(server, reload, text, why):
    (line,) = reload(text)
    assert line.startswith("not reloaded: settings unchanged")
    assert why in line
    with Wire(server.connect()) as wire:
        assert wire.ask("watch b") == "WATCHING 2"
    assert reload("") == ["reloaded"]


def test_what_is_read_only_once_or_has_no_end_changes_nothing(server, reload, file):
    def refusal():
        before = len(server.log_text())
        server.signal(signal.SIGHUP)
        until(lambda: "reloaded" in server.log_text()[before:])
        assert "not reloaded: settings unchanged" in server.log_text()[before:]
        return server.log_text()[before:]

    reload("max_tubes = 3\n")
    file.unlink()
    os.mkfifo(file)
    assert "is no regular file, and is not read again" in refusal()
    for device in ("/dev/zero", "/dev/null"):
        file.unlink()
        file.symlink_to(device)
        assert "is no regular file, and is not read again" in refusal()
    file.unlink()
    file.touch()
    assert "is empty; a comment alone is a file without settings" in refusal()
    with Wire(server.connect()) as wire:
        assert [wire.ask("watch a"), wire.ask("watch b"), wire.ask("watch c")][-1] == "OUT_OF_MEMORY"


def test_closed_terminal_stops_the_server(tmp_path):
    command = [sys.executable, "-m", "beanlite", "--no-journal", "--socket", str(tmp_path / "socket")]
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        os.execv(command[0], command)  # noqa: S606 - this is the new process
    said = b""
    while b"started" not in said:
        said += os.read(terminal, 4096)
    os.kill(pid, signal.SIGHUP)  # the terminal still exists, so the signal means only the settings
    while b"reloaded" not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
