"""A file system that disappears under a server, as one of a network or of FUSE may: every call fails."""

import errno
import os
import subprocess
import sys

import pytest

from beanlite.errors import JournalFailed
from beanlite.host.clock import Clock
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served import watch, writer
from beanlite.journal.sqlite.served.writer import Writer
from tests.support.inside import PUT, ask, connect, serving, until
from tests.support.journal_files import NO_HISTORY


def gone(*_):
    raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("wal_size", lambda journal: journal.wal_bytes),
        ("os.pread", lambda journal: journal._count_frames()),
        ("os.fstat", lambda journal: journal._watch.note_size()),
        ("os.fstat", lambda journal: journal._watch._check_shorter_wal()),
        ("os.fstat", lambda journal: journal._watch.check(0)),
        (f"{watch.__name__}._lseek", lambda journal: journal._watch.check(0)),
        (f"{watch.__name__}._lseek", lambda journal: journal._watch.check_wal(1)),
        ("os.pread", lambda journal: journal._watch._check_shorter_file()),
    ],
)
async def test_failed_look_at_a_dying_disk_is_a_failure_of_the_journal(call, use, journal, monkeypatch):
    with monkeypatch.context() as dying:
        dying.setattr(call if "." in call else f"{writer.__name__}.{call}", gone)
        with pytest.raises(JournalFailed, match="can't be looked at: Transport endpoint is not connected"):
            use(journal)


async def test_failed_close_on_a_dying_disk_is_a_failure_of_the_journal(tmp_path, monkeypatch):
    database = open_database(tmp_path / "queue.db")
    journal = Writer(database, "unix:socket", NO_HISTORY, Clock(), 0)
    journal.prepare()
    await journal.start()
    with monkeypatch.context() as dying:
        dying.setattr(type(database), "close", gone)
        with pytest.raises(JournalFailed, match="Transport endpoint is not connected"):
            await journal.close()
    # The connection was closed in the background; the file and the -shm are still open.
    os.close(database.index)
    os.close(database.file)


@pytest.mark.usefixtures("disk")
async def test_an_error_of_the_system_in_our_own_callback_ends_the_server(tmp_path, monkeypatch):
    async with serving(tmp_path / "queue.db", failure=OSError) as (server, task):
        client = await connect(server)
        with monkeypatch.context() as dying:
            dying.setattr(type(server.wiring.turns), "follow_up", gone)
            client[1].write(PUT)
            await until(task.done)
        assert task.exception().errno == errno.ENOTCONN


@pytest.mark.usefixtures("disk")
async def test_error_of_the_system_in_the_loop_itself_ends_no_server(tmp_path):
    async with serving(tmp_path / "queue.db") as (server, task):
        server.loop.call_soon(gone)
        assert await ask(await connect(server), PUT) == b"INSERTED 1\r\n"
        assert not task.done()


# Does what a thread of aiosqlite does when its call has ended.
LATE = """
import asyncio, threading
from beanlite.host.loop import loop_factory, run_loop

over = threading.Event()

def tell(loop):
    over.wait()
    {last}

async def serve():
    global thread
    thread = threading.Thread(target=tell, args=[asyncio.get_running_loop()], daemon=True)
    thread.start()

run_loop(loop_factory(), serve)
over.set()
thread.join()
"""


@pytest.mark.parametrize(
    ("last", "told"), [("loop.call_soon_threadsafe(print)", []), ("raise KeyError(1)", ["KeyError: 1"])]
)
def test_thread_that_outlives_the_server_tells_only_its_own_error(last, told):
    command = [sys.executable, "-c", LATE.format(last=last)]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, told)
