"""The file is removed, replaced, truncated or renamed while it is served."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from beanlite.errors import JournalFailed
from tests.support.inside import PUT, ask, connect, serving, until
from tests.support.needs import need
from tests.support.servers import ServerDied, start_beanlite
from tests.support.sqlite_tool import tell
from tests.support.wire import Wire, put_bytes


def removed(file):
    file.unlink()


def renamed(file):
    file.rename(file.with_name("elsewhere.db"))


def replaced(file):
    copy = file.with_name("copy.db")
    shutil.copy(file, copy)
    copy.rename(file)


def renamed_and_replaced(file):
    file.rename(file.with_name("elsewhere.db"))
    shutil.copy(file.with_name("elsewhere.db"), file)


def emptied(file):
    os.truncate(file, 0)


def cut(file):
    os.truncate(file, file.stat().st_size - 4096)


def overwritten(file):
    """Overwrite the file with a larger one, so that it is not shortened, and keeps its name and -wal."""
    other = file.with_name("other.db")
    shutil.copy(file, other)
    with closing(sqlite3.connect(other)) as connection:
        connection.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(100000)); DROP TABLE t")
    with file.open("r+b") as there:
        there.write(other.read_bytes())
    other.unlink()


def moved_folder(file):
    file.parent.rename(file.parent.with_name(f"{file.parent.name}.old"))


def replaced_folder(file):
    moved_folder(file)
    file.parent.mkdir()


def followed_by_its_files(file):
    old = file.parent.with_name(f"{file.parent.name}.old")
    replaced_folder(file)
    for each in old.iterdir():
        each.rename(file.parent / each.name)


def linked(file):
    file.with_name("link.db").hardlink_to(file)


def start_in(folder, *flags):
    """Start a server with its database in this folder, and its log beside that."""
    return start_beanlite(folder.parent, "--db", str(folder / "queue.db"), *flags)


def make_old(folder):
    """Make a folder's last change old, so that the names in it are not looked at again at each commit."""
    os.utime(folder, (1e9, 1e9))


def of(suffix, spoil):
    """Return a function that does the same to the file with this suffix."""

    def spoil_it(file):
        spoil(Path(f"{file}{suffix}"))

    return spoil_it


@pytest.mark.parametrize("fsync", ["always", "1000ms"])
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (removed, "queue.db was removed or renamed while it was served"),
        (renamed, "queue.db was removed or renamed while it was served"),
        (replaced, "queue.db was replaced while it was served"),
        (renamed_and_replaced, "queue.db was replaced while it was served"),
        (emptied, "queue.db was cut short while it was served"),
        (cut, "queue.db was cut short while it was served"),
        (overwritten, "queue.db was overwritten while it was served"),
        (linked, "queue.db was given another name (a hard link) while it was served; remove that"),
        (moved_folder, "{folder} was removed or renamed while it was served"),
        (replaced_folder, "queue.db was removed or renamed while it was served"),
        (followed_by_its_files, "queue.db was replaced while it was served"),
        (of("-wal", removed), "queue.db-wal was removed or renamed while it was served"),
        (of("-wal", renamed), "queue.db-wal was removed or renamed while it was served"),
        (of("-wal", replaced), "the -wal or the -shm of {folder}/queue.db was removed or replaced while it was served"),
        (of("-wal", emptied), "queue.db-wal was cut short while it was served"),
        (of("-wal", cut), "queue.db-wal was cut short while it was served"),
        (of("-shm", removed), "the -wal or the -shm of {folder}/queue.db was removed or replaced while it was served"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_nothing_more_is_acknowledged(tmp_path, spoil, why, fsync):
    folder = tmp_path / "data"
    folder.mkdir()
    with start_in(folder, "--fsync", fsync) as server, Wire(server.connect()) as wire:
        make_old(folder)
        for _ in range(20):
            wire.put(b"x" * 5000)
        spoil(folder / "queue.db")
        wire.send(put_bytes(b"after"))
        with pytest.raises(ConnectionError):
            wire.reply()
        assert server.process.wait(20) == 4
    said = [line for line in server.log_text().splitlines() if line.startswith("beanlite: ")]
    assert [line.removeprefix("beanlite: ").removeprefix(f"{folder}/") for line in said] == [why.format(folder=folder)]
    assert "Traceback" not in server.log_text()


def test_a_file_that_is_overwritten_after_a_checkpoint(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        before = (tmp_path / "queue.db").stat().st_size
        while (tmp_path / "queue.db").stat().st_size == before:
            wire.put(b"x" * 60_000)
        wire.put(b"in a new -wal")
        overwritten(tmp_path / "queue.db")
        wire.send(put_bytes(b"after"))
        with pytest.raises(ConnectionError):
            wire.reply()
        assert server.process.wait(20) == 4
    assert f"{tmp_path}/queue.db was overwritten while it was served" in server.log_text()


def test_the_whole_folder_is_removed(tmp_path):
    folder = tmp_path / "q"
    with start_beanlite(folder) as server, Wire(server.connect()) as wire:
        wire.put(b"before")
        shutil.rmtree(folder)
        wire.send(put_bytes(b"after"))
        with pytest.raises(ConnectionError):
            wire.reply()
        assert server.process.wait(20) == 4


def unmounted(folder):
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mounted_over(folder):
    subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)


@pytest.mark.parametrize("spoil", [unmounted, mounted_over])
def test_nothing_is_acknowledged_once_the_folder_is_mounted_away(tmp_path, spoil):
    need(os.geteuid() == 0, "only root can mount")
    folder = tmp_path / "data"
    folder.mkdir()
    mounted_over(folder)
    try:
        with start_in(folder) as server, Wire(server.connect()) as wire:
            make_old(folder)
            wire.put(b"before")
            spoil(folder)
            wire.send(put_bytes(b"after"))
            with pytest.raises(ConnectionError):
                wire.reply()
            assert server.process.wait(20) == 4
    finally:
        while folder.is_mount():
            unmounted(folder)
    assert f"{folder}/queue.db was removed or renamed while it was served" in server.log_text()


def test_a_stop_leaves_another_server_its_files_in_a_new_folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    with start_in(folder) as server, Wire(server.connect()) as wire:
        make_old(folder)
        wire.put(b"before")
        replaced_folder(folder / "queue.db")
        with start_in(folder) as other, Wire(other.connect()) as its_wire:
            its_wire.put(b"theirs")
            names = sorted(path.name for path in folder.iterdir())
            assert server.stop() == 4
            assert sorted(path.name for path in folder.iterdir()) == names
            its_wire.put(b"theirs, too")
        assert other.process.returncode == 0


def test_a_file_that_another_program_rightly_shortens_is_still_served(tmp_path):
    """Another program's checkpoint truncates the file by the pages that the server has freed."""
    file = tmp_path / "queue.db"
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        for _ in range(100):
            wire.put(b"x" * 60_000)
        assert not tell(file, "PRAGMA wal_checkpoint(TRUNCATE)")
        for job_id in range(1, 101):
            assert wire.ask(f"delete {job_id}") == "DELETED"
        before = file.stat().st_size
        assert not tell(file, "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
        assert file.stat().st_size < before
        for _ in range(3):
            wire.put(b"after")
        server.kill()
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert wire.stats()["current-jobs-ready"] == "3"


def test_a_bind_mount_of_the_file_has_no_second_wal(tmp_path):
    need(os.geteuid() == 0, "only root can mount")
    other = tmp_path / "other" / "queue.db"
    other.parent.mkdir()
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        job_id = wire.put(b"job")
        other.touch()
        subprocess.run(["mount", "--bind", str(tmp_path / "queue.db"), str(other)], check=True)
        try:
            with pytest.raises(ServerDied, match="a server or another command holds"):
                start_beanlite(other.parent)
            server.kill()
            with pytest.raises(ServerDied, match=r"was last served as .*/queue\.db, and its -wal may be"):
                start_beanlite(other.parent)
        finally:
            subprocess.run(["umount", str(other)], check=True)
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert wire.ask(f"peek {job_id}") == f"FOUND {job_id} 3"


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_what_is_cut_while_it_is_synced_is_not_acknowledged(tmp_path, disk, suffix):
    async with serving(tmp_path / "queue.db") as (server, task):
        client = await connect(server)
        disk.free.clear()
        client[1].write(PUT)
        await until(lambda: disk.under_way)
        os.truncate(tmp_path / f"queue.db{suffix}", 4000)
        disk.free.set()
        with pytest.raises(JournalFailed, match="was cut short while it was served"):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert not client[0]._buffer


async def test_removal_in_the_tick_in_which_names_were_checked_is_noticed(tmp_path):
    """The kernel's clock has not moved on, so that the folder has the same modification time as before."""
    tick_ns = time.time_ns() + 10_000_000_000  # in the future, so that it is not over however slow this is
    async with serving(tmp_path / "queue.db") as (server, task):
        client = await connect(server)
        os.utime(tmp_path, ns=(tick_ns, tick_ns))
        server.parts.journal._writer._watch.check_names()
        removed(tmp_path / "queue.db")
        os.utime(tmp_path, ns=(tick_ns, tick_ns))
        client[1].write(PUT)
        with pytest.raises(JournalFailed, match="was removed or renamed while it was served"):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert not client[0]._buffer


async def test_a_wal_that_is_cut_during_a_commit_has_a_hole(tmp_path):
    """The next write makes it long enough again."""
    async with serving(tmp_path / "queue.db") as (server, task):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        writer = server.parts.journal._writer
        count = writer._count_frames

        def cut_and_count():
            size = (tmp_path / "queue.db-wal").stat().st_size
            for length in (0, size):
                os.truncate(tmp_path / "queue.db-wal", length)
            count()

        writer._count_frames = cut_and_count
        client[1].write(PUT)
        with pytest.raises(JournalFailed, match="was cut short while it was served"):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert not client[0]._buffer


async def test_a_file_that_is_cut_during_a_checkpoint_has_a_hole(tmp_path):
    path = tmp_path / "queue.db"
    async with serving(path) as (server, task):
        client = await connect(server)
        for number in range(1, 101):
            put = b"put 0 0 60 5000\r\n%b\r\n" % bytes(5000)
            assert await ask(client, put) == b"INSERTED %d\r\n" % number
        await server.parts.journal._writer.checkpoint()
        note_size = server.parts.journal._writer._watch.note_size

        def cut_and_note():
            os.truncate(path, 0)
            with path.open("r+b") as file:
                file.seek(90 * 4096)
                file.write(bytes(4096))
            note_size()

        server.parts.journal._writer._watch.note_size = cut_and_note
        server.parts.journal._writer.frames.added = 1000
        client[1].write(PUT)
        with pytest.raises(JournalFailed, match=r"queue\.db was cut short while it was served"):
            await asyncio.wait_for(asyncio.shield(task), 10)
