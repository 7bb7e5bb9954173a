"""The disk is full or fails."""

import os
import resource
import shutil
import signal
import subprocess
from contextlib import suppress

import pytest

from beanlite.journal.sqlite.file.fileformat import ADVICE
from tests.support.needs import need
from tests.support.servers import ServerDied, start_beanlite
from tests.support.sqlite_tool import ask, tell
from tests.support.wire import Wire, put_bytes, until

DISK_BYTES = 17 << 20  # a server wants twice its reserve of 8 MiB


@pytest.fixture
def mount(tmp_path):
    """A function that mounts a folder with the given arguments."""
    need(os.geteuid() == 0, "only root can mount")
    folder = tmp_path / "disk"
    folder.mkdir()

    def do(*arguments):
        subprocess.run(["mount", *arguments, str(folder)], check=True)
        return folder

    yield do
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def disk(mount):
    """A disk of 17 MiB with nothing else on it."""
    return mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none")


@pytest.fixture
def disk_of_small_blocks(mount, tmp_path):
    """A disk of 32 MiB in blocks of 1 KiB."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-b", "1024", str(image)], check=True)
    return mount("-o", "loop", str(image))


def fill(disk, leave=0):
    """Leave this many bytes free; return the file that takes up the rest."""
    path = disk / "filler"
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 14, 1 << 10):
            with suppress(OSError):
                while shutil.disk_usage(disk).free >= leave + size:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
    return path


def put_all(wire, bodies):
    """Put these bodies without waiting for each reply; return the ids."""
    for at in range(0, len(bodies), 50):
        wire.send(b"".join(map(put_bytes, bodies[at : at + 50])))
    return [int(wire.reply().split()[1]) for _ in bodies]


def put_until_full(wire, body):
    """Put until the first OUT_OF_MEMORY, and return the acknowledged ids."""
    ids = []
    while (reply := wire.ask(f"put 0 0 60 {len(body)}", body)) != "OUT_OF_MEMORY":
        word, job_id = reply.split()
        assert word == "INSERTED"
        ids.append(int(job_id))
    return ids


# -- full


@pytest.mark.parametrize("size", [pytest.param(200, marks=pytest.mark.nightly), 1000, 60_000])
def test_a_full_disk_refuses_puts_and_the_queue_drains(disk, size):
    """The queue drains one command at a time, which uses the most of the space reserved for that."""
    with start_beanlite(disk) as server, Wire(server.connect()) as wire:
        ids = put_until_full(wire, b"x" * size)
        assert len(ids) * size > DISK_BYTES / 10
        assert wire.stats()["disk-full"] == "true"
        for job_id in ids:
            assert wire.ask(f"delete {job_id}") == "DELETED"
        until(lambda: wire.stats()["disk-full"] == "false")
        assert wire.ask(f"put 0 0 60 {size}", b"x" * size).startswith("INSERTED")
        log = server.log_text()
        assert log.index("disk full") < log.index("disk has room again")


def test_nothing_acknowledged_is_lost_by_a_crash_on_a_full_disk(disk):
    with start_beanlite(disk) as server, Wire(server.connect()) as wire:
        first = put_until_full(wire, b"x" * 10_000)
        for job_id in first[::2]:
            assert wire.ask(f"delete {job_id}") == "DELETED"
        assert wire.ask("reserve").startswith(f"RESERVED {first[1]}")
        assert wire.ask(f"bury {first[1]} 5") == "BURIED"
        server.kill()
    with start_beanlite(disk) as server, Wire(server.connect()) as wire:
        assert int(wire.stats()["current-jobs-ready"]) == len(first[1::2]) - 1
        assert wire.stats(f"stats-job {first[1]}")["state"] == "buried"
        for job_id in first[1::2]:
            assert wire.ask(f"peek {job_id}") == f"FOUND {job_id} 10000"


def test_puts_are_accepted_when_others_make_room(disk):
    with start_beanlite(disk) as server, Wire(server.connect()) as wire:
        filler = fill(disk)
        ids = put_until_full(wire, b"x" * 60_000)
        filler.unlink()
        until(lambda: wire.stats()["disk-full"] == "false")
        assert wire.put(b"x" * 60_000) > max(ids, default=0)


def test_server_started_on_a_full_disk_serves_what_it_has(disk):
    """The server serves the jobs that it has, and accepts puts as soon as there is space."""
    with start_beanlite(disk) as server, Wire(server.connect()) as wire:
        wire.put(b"one")
        wire.put(b"two")
        server.kill()
    (disk / "queue.db-reserve").unlink()
    filler = fill(disk)
    with start_beanlite(disk) as server, Wire(server.connect()) as wire:
        assert wire.ask("put 0 0 60 3", b"no!") == "OUT_OF_MEMORY"
        assert wire.ask("reserve") == "RESERVED 1 3"
        assert wire.ask("delete 1") == "DELETED"
        filler.unlink()
        until(lambda: wire.stats()["disk-full"] == "false")
        assert wire.put(b"yes") > 2


def test_killed_server_takes_what_is_free_for_a_while_and_then_drains(disk):
    """Too little for puts, and less than twice the reserve; another program takes it again."""
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        ids = put_all(wire, [b"x" * 20_000] * 100)
        fill(disk)
        server.kill()
    reserve = disk / "q" / "queue.db-reserve"
    reserve.unlink()
    filler = fill(disk)
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        assert wire.ask("put 0 0 60 3", b"no!") == "OUT_OF_MEMORY"
        os.truncate(filler, filler.stat().st_size - (3 << 20))
        until(reserve.exists)
        assert wire.ask("put 0 0 60 3", b"no!") == "OUT_OF_MEMORY"
        fill(disk)
        for job_id in ids:
            assert wire.ask(f"delete {job_id}") == "DELETED"
        filler.unlink()
        until(lambda: wire.stats()["disk-full"] == "false")


def test_a_put_larger_than_the_disk_stops_nobody(disk):
    size = DISK_BYTES + (8 << 20)
    with (
        start_beanlite(disk, "--max-job-size", str(size)) as server,
        Wire(server.connect()) as wire,
        Wire(server.connect()) as other,
    ):
        assert other.put(b"job") == 1
        assert wire.ask(f"put 0 0 60 {size}", b"x" * size) == "OUT_OF_MEMORY"
        assert other.ask("delete 1") == "DELETED"
        until(lambda: other.stats()["disk-full"] == "false")
        assert other.ask("put 0 0 60 3", b"job").startswith("INSERTED")


def test_a_stop_on_a_full_disk_loses_nothing(disk):
    with start_beanlite(disk) as server, Wire(server.connect()) as wire:
        ids = put_until_full(wire, b"x" * 10_000)
        fill(disk)
        server.signal(signal.SIGTERM)
        assert server.process.wait(20) in {0, 4}
    assert "Traceback" not in server.log_text()
    (disk / "filler").unlink()
    with start_beanlite(disk) as server, Wire(server.connect()) as wire:
        assert int(wire.stats()["current-jobs-ready"]) == len(ids)


def test_shrinking_takes_the_room_there_is(mount):
    """Freeing many pages at once takes space in the -wal for all pages that have to be moved: more than there is."""
    disk = mount("-t", "tmpfs", "-o", "size=64M", "none")
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        first = put_all(wire, [b"x" * 60_000] * 140)  # about 2,000 pages
        others = put_all(wire, [b"x" * 60_000] * 500)
        for job_id in first:
            assert wire.ask(f"delete {job_id}") == "DELETED"
    size = (disk / "q" / "queue.db").stat().st_size
    fill(disk, 500 << 10)
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        assert wire.stats()["disk-full"] == "true"
        for job_id in others[:20]:
            assert wire.ask(f"delete {job_id}") == "DELETED"
        until(lambda: (disk / "q" / "queue.db").stat().st_size < size)
        assert wire.ask(f"delete {others[20]}") == "DELETED"
        server.kill()
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        assert int(wire.stats()["current-jobs-ready"]) == len(others) - 21


def test_server_killed_on_a_disk_others_fill_drains_with_its_reserve(disk):
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        ids = put_all(wire, [b"x" * 20_000] * 100)
        fill(disk)
        server.kill()
    assert (disk / "q" / "queue.db-reserve").exists()
    fill(disk)
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        assert wire.ask("put 0 0 60 3", b"no!") == "OUT_OF_MEMORY"
        for job_id in ids:
            assert wire.ask(f"delete {job_id}") == "DELETED"
        (disk / "filler").unlink()
        until(lambda: wire.stats()["disk-full"] == "false")


def test_server_stopped_on_a_disk_others_fill_says_what_it_lacks(disk):
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        job_id = wire.put(b"job")
    fill(disk, 28 << 10)
    with pytest.raises(ServerDied, match=r"ended with 4: beanlite: no space left on the disk of .*\n$"):
        start_beanlite(disk / "q")
    (disk / "filler").unlink()
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        assert wire.ask(f"peek {job_id}") == f"FOUND {job_id} 3"


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("free", [12 << 10, 24 << 10, 40 << 10])
def test_in_small_blocks_a_full_disk_is_no_bus_error(disk_of_small_blocks, end, free):
    """SQLite allocates the -shm by writing one byte in each 4 KiB, and then writes to all of it."""
    disk = disk_of_small_blocks
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        ids = put_all(wire, [b"x" * 3000] * 300)
        # The next start is to find few frames, and so touch little of the -shm, but much unused space in the -wal.
        assert tell(disk / "q" / "queue.db", "PRAGMA wal_checkpoint(RESTART)") == ""
        ids.append(wire.put(b"x" * 3000))
        fill(disk)
        if end == "killed":
            server.kill()
    fill(disk, free)
    try:
        server = start_beanlite(disk / "q")
    except ServerDied as died:
        assert "ended with 4: beanlite: no space left on the disk" in str(died)  # noqa: PT017 - or it may start
        assert end == "stopped"
    else:
        with server, Wire(server.connect()) as wire:
            assert int(wire.stats()["current-jobs-ready"]) == len(ids)
            fill(disk)
            if end == "killed":  # then there is space in the -wal, and a reserve
                for _ in range(100):
                    assert wire.ask(f"delete {ids.pop()}") == "DELETED"
            server.kill()
    (disk / "filler").unlink()
    with start_beanlite(disk / "q") as server, Wire(server.connect()) as wire:
        assert int(wire.stats()["current-jobs-ready"]) == len(ids)


# -- failing


def test_io_error_ends_the_server_and_loses_nothing_acknowledged(tmp_path):
    with (
        start_beanlite(tmp_path, "--max-job-size", str(16 << 20)) as server,
        Wire(server.connect()) as wire,
        Wire(server.connect()) as other,
    ):
        # No file may grow beyond this size; a write beyond it fails, and not for lack of space.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (9 << 20, 9 << 20))
        acknowledged = [other.put(b"before")]
        wire.send(put_bytes(b"x" * (10 << 20)))
        with suppress(ConnectionError):
            while True:
                acknowledged.append(other.put(b"meanwhile"))
        with pytest.raises(ConnectionError):
            wire.reply()
        assert server.process.wait(20) == 4
    said = [line for line in server.log_text().splitlines() if line.startswith("beanlite: ")]
    why = f"disk I/O error; no file may have more than {9 << 20} bytes (ulimit -f)"
    assert said == [f"beanlite: writing to {tmp_path}/queue.db failed: {why}"]
    assert "Traceback" not in server.log_text()
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert {wire.ask(f"peek {job_id}").split()[0] for job_id in acknowledged} == {"FOUND"}


def test_damage_found_while_the_server_serves_is_told_with_advice(tmp_path):
    file = tmp_path / "queue.db"
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        wire.put(b"before")
    root = int(ask(file, "SELECT rootpage FROM sqlite_schema WHERE name = 'totals'"))
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        with file.open("r+b") as content:
            content.seek((root - 1) * 4096)
            content.write(b"\xff" * 4096)
        assert tell(file, "CREATE TABLE mine (x)") == ""  # so that pages are read again
        with suppress(ConnectionError):
            while True:  # the totals are added to now and then
                wire.put(b"after")
        assert server.process.wait(20) == 4
    said = [line for line in server.log_text().splitlines() if line.startswith("beanlite: ")]
    assert said == [f"beanlite: writing to {file} failed: database disk image is malformed; {ADVICE}"]
