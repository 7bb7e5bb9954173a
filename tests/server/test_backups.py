"""Scheduled backups: made while clients are served, reported in stats and the log, and never in the server's way."""

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from beanlite.beside.backups import Backups
from beanlite.beside.beside import Beside
from beanlite.host import log
from beanlite.journal.sqlite.file.dated import dated_backups, dated_path
from beanlite.journal.sqlite.tools.verify import verify
from beanlite.settings.config import Settings
from tests.support.journal_files import make
from tests.support.servers import start_beanlite
from tests.support.wire import Wire


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder


def wait_for(condition, within_s=120.0):  # a backup has a low priority, and other tests keep the cores busy
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


async def until(condition):
    """The same for a test in the loop of what it tests."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


def backups_in(folder):
    return [file for file, _ in dated_backups(folder, Path("queue.db"))]


def test_a_server_makes_backups_and_keeps_some(tmp_path, folder):
    flags = ["--backup-every", "1s", "--backup-dir", str(folder), "--backup-keep", "2"]
    began_s = int(time.time())
    with start_beanlite(tmp_path / "server", *flags) as server, server.connect() as connection:
        wire = Wire(connection)
        wire.put(b"job")
        wait_for(lambda: len(backups_in(folder)) == 2)
        first = backups_in(folder)
        wait_for(lambda: not set(first) & set(backups_in(folder)))
        stats = wire.stats()
        assert server.stop() == 0
    assert began_s <= int(stats["backup-succeeded-at"]) <= time.time()
    assert [key for key in stats if key.startswith("backup")] == ["backup-succeeded-at", "backup-failed-at"]
    assert stats["backup-failed-at"] == "0"
    assert len(backups_in(folder)) in {2, 3}  # the stop may have come before the oldest was deleted
    newest = backups_in(folder)[-1]
    assert {finding.check: finding.said for finding in verify(newest)}["jobs"] == "1 ready"
    assert f"backup made file={folder}/queue-" in server.log_text()
    assert not (tmp_path / "server" / "queue.db-wal").exists()


def test_one_that_fails_is_told_and_tried_again(tmp_path, folder):
    folder.rmdir()
    flags = ["--backup-every", "1s", "--backup-dir", str(folder)]
    with start_beanlite(tmp_path / "server", *flags) as server, server.connect() as connection:
        wire = Wire(connection)
        wait_for(lambda: wire.stats()["backup-failed-at"] != "0")
        assert wire.stats()["backup-succeeded-at"] == "0"
        assert f'backup failed error="{folder} is not a folder" next_in_s=1' in server.log_text()
        folder.mkdir()
        wait_for(lambda: backups_in(folder))
        wait_for(lambda: wire.stats()["backup-succeeded-at"] != "0")
        assert wire.put(b"job") == 1


def test_settings_from_the_environment_do_not_confuse_it(tmp_path, folder):
    # The backup itself would see only one of the two settings that require each other.
    environment = {"BEANLITE_BACKUP_DIR": str(folder)}
    with start_beanlite(tmp_path / "server", "--backup-every", "24h", environment=environment) as server:
        wait_for(lambda: "backup made" in server.log_text())


class Made(Backups):
    """Makes backups with a command given by the test."""

    def __init__(self, folder, every_s, code):
        super().__init__(asyncio.get_running_loop(), folder.parent / "queue.db", folder, every_s, 7)
        self._command = [sys.executable, "-c", code]


@pytest.fixture
def told(monkeypatch):
    """The lines that are logged."""
    lines = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(log, level, lambda event, level=level, **fields: lines.append((level, event, fields)))
    return lines


async def test_the_first_is_due_so_long_after_the_newest(folder):
    now_s = time.time()
    make(dated_path(folder, Path("queue.db"), now_s - 900))
    backups = Made(folder, 3600, "")
    backups.begin()
    await until(lambda: backups.succeeded_at)
    assert backups.succeeded_at == int(now_s - 900)
    assert backups._timer.when() - asyncio.get_running_loop().time() == pytest.approx(2700, abs=60)
    backups.end()


@pytest.mark.parametrize("made_s_ago", [1_000_000, None])
async def test_an_overdue_one_is_made_at_once(folder, made_s_ago):
    if made_s_ago is not None:
        make(dated_path(folder, Path("queue.db"), time.time() - made_s_ago))
    backups = Made(folder, 3600, 'print(\'{"file": "f", "jobs": 1, "size": 2, "seconds": 3}\')')
    began_s = int(time.time())
    backups.begin()
    await until(lambda: backups.succeeded_at >= began_s)
    backups.end()
    await backups.wait()


@pytest.mark.parametrize(("written_s_ago", "age_s"), [(900, 900), (-1_000_000, 0)])
async def test_age_is_by_the_file_where_a_name_is_ahead_of_the_clock(folder, written_s_ago, age_s):
    """The clock was put back: the newest one would have no age, and the next one be put off."""
    now_s = int(time.time())
    newest = dated_path(folder, Path("queue.db"), now_s + 1_000_000)
    make(newest)
    os.utime(newest, (now_s - written_s_ago, now_s - written_s_ago))
    backups = Made(folder, 3600, "")
    backups.begin()
    await until(lambda: backups.succeeded_at)
    assert backups.succeeded_at == pytest.approx(now_s - age_s, abs=60)
    assert backups._timer.when() - asyncio.get_running_loop().time() == pytest.approx(3600 - age_s, abs=60)
    backups.end()


async def test_one_is_killed_before_the_queue_if_memory_runs_out(folder):
    backups = Made(folder, 3600, "import time; time.sleep(100)")
    backups.begin()
    await until(lambda: backups._child is not None)
    adjusted = Path(f"/proc/{backups._child.process.pid}/oom_score_adj")
    await until(lambda: adjusted.read_text() == "500\n")
    backups.end()
    await backups.wait()


async def test_the_end_cuts_one_short(folder, told):
    backups = Made(folder, 3600, "import time; time.sleep(100)")
    backups.begin()
    await until(lambda: backups._child is not None)
    process = backups._child.process
    backups.end()
    await backups.wait()
    assert process.returncode == -15
    assert told == [("info", "stopped during a backup", {})]


async def test_a_stop_amid_the_wait_for_its_end_waits_for_it_as_well(folder, told):
    """A reload of the settings waits for it first, and is cancelled by the stop."""
    backups = Made(folder, 3600, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(0.5)")
    backups.begin()
    await until(lambda: backups._child is not None)
    process = backups._child.process
    backups.end()
    reload = asyncio.create_task(backups.wait())
    await asyncio.sleep(0)
    reload.cancel()
    await backups.wait()
    assert process.returncode is not None
    assert told == [("info", "stopped during a backup", {})]


@pytest.fixture
def hanging(folder, monkeypatch):
    """Have the folder hang, as on NFS, until this is set; but whoever asks for it in the loop is wrong."""
    answers = threading.Event()

    def hang(call, path, *args, **keys):
        if str(path).startswith(str(folder)):
            assert threading.current_thread() is not threading.main_thread(), f"{call.__name__} may hang"
            answers.wait()
        return call(path, *args, **keys)

    for name in ("stat", "lstat", "listdir", "statvfs", "readlink"):
        monkeypatch.setattr(os, name, partial(hang, getattr(os, name)))
    yield answers
    answers.set()


async def test_a_folder_that_hangs_at_the_start_is_waited_for(folder, told, hanging):
    backups = Made(folder, 3600, "import time; time.sleep(100)")
    backups.begin()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "backups"]
    assert thread.daemon, "the end of the server would wait for it"
    backups._make()
    assert told == [("warning", "backup takes longer than backup_every", {"seconds": 3600})]
    hanging.set()
    await until(lambda: backups._child is not None)
    backups.end()
    await backups.wait()


async def test_one_is_not_begun_while_the_folder_hangs(folder, told, hanging):
    hanging.set()
    backups = Made(folder, 3600, 'print(\'{"file": "f", "jobs": 1, "size": 2, "seconds": 3}\')')
    backups.begin()
    await until(lambda: told)
    hanging.clear()
    backups._make()
    backups.end()
    hanging.set()
    await until(lambda: not backups._is_looking)
    assert backups._child is None
    assert [line[1] for line in told] == ["backup made"]


@pytest.mark.usefixtures("hanging")
def test_the_page_is_started_while_the_folder_hangs(folder):
    settings = Settings(web="127.0.0.1:0", backup_dir=folder, backup_every="1h")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = Beside([listening])._page_command(settings)
    assert json.loads(command[-1])["backups"] == str(folder)


async def test_one_that_takes_too_long_is_left_alone(folder, told):
    backups = Made(folder, 0.05, "import time; time.sleep(100)")
    backups.begin()
    await until(lambda: backups._child is not None and told)
    process = backups._child.process
    backups.end()
    await backups.wait()
    assert process.returncode == -15
    assert told[0] == ("warning", "backup takes longer than backup_every", {"seconds": 0.05})


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('beanlite: no room'); raise SystemExit(1)", "no room"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ],
)
async def test_why_one_has_failed(folder, told, code, why):
    backups = Made(folder, 3600, code)
    backups.begin()
    await until(lambda: told)
    assert told == [("error", "backup failed", {"error": why, "next_in_s": 60})]
    assert backups._timer.when() - asyncio.get_running_loop().time() < 61  # the time from one to the next is an hour
    assert backups.failed_at > 0
    backups.end()
    await backups.wait()


async def test_one_whose_report_can_not_be_read_is_made(folder, told):
    """The process may have been unable to write all of it."""
    backups = Made(folder, 3600, 'print(\'{"file": "f", "jo\')')
    backups.begin()
    await until(lambda: told)
    assert told == [("warning", "backup made, but its report can't be read", {"report": '{"file": "f", "jo'})]
    assert backups.succeeded_at > 0
    assert backups._timer.when() - asyncio.get_running_loop().time() == pytest.approx(3600, abs=60)
    backups.end()
    await backups.wait()


async def test_one_made_where_an_old_one_can_not_be_deleted_is_made(folder, told):
    code = 'import sys; print(\'{"file": "f", "jobs": 1, "size": 2, "seconds": 3}\', flush=True); '
    backups = Made(folder, 3600, f"{code}sys.exit('beanlite: f is made, but an older one stays')")
    backups.begin()
    await until(lambda: len(told) == 2)
    assert told[0] == ("info", "backup made", {"file": "f", "jobs": 1, "bytes": 2, "seconds": 3})
    assert told[1] == ("warning", "backup made with an error", {"error": "f is made, but an older one stays"})
    assert (backups.succeeded_at > 0, backups.failed_at) == (True, 0)
    assert backups._timer.when() - asyncio.get_running_loop().time() == pytest.approx(3600, abs=60)
    backups.end()
    await backups.wait()


async def test_a_report_is_read_without_a_disk_and_amid_others(folder, told, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/none/such")
    backups = Made(folder, 3600, 'print(\'{"file": "f", "jobs": 1, "size": 2, "seconds": 3}\\n{"more": "words"}\')')
    backups.begin()
    await until(lambda: told)
    assert told == [("info", "backup made", {"file": "f", "jobs": 1, "bytes": 2, "seconds": 3})]
    backups.end()
    await backups.wait()


async def test_one_on_the_disk_of_the_database_leaves_room_for_jobs(folder, told, monkeypatch):
    make(folder.parent / "queue.db")
    free = shutil.disk_usage(folder)._replace(free=16 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    backups = Made(folder, 3600, "")
    backups.begin()
    await until(lambda: len(told) == 2)
    assert told[0] == ("warning", "backup_dir is on the disk of the database", {"backup_dir": folder})
    assert "it would leave too little room for jobs" in told[1][2]["error"]
    assert backups.failed_at > 0
    backups.end()


async def test_one_that_can_not_even_be_started(folder, told):
    backups = Made(folder, 3600, "")
    backups._command = ["/none/such"]
    backups.begin()
    await until(lambda: told)
    assert "No such file" in told[0][2]["error"]
    backups.end()
    await backups.wait()
