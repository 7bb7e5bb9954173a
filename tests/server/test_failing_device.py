"""A disk that fails under a server: an ext4 on a loop device whose image becomes unwritable or unreadable.

A broken device behaves like this: the kernel reports errors, from calls of its choosing, and data that it could not
write is lost. Everything acknowledged is there when the image can be used again.
"""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.needs import need
from tests.support.servers import ServerDied, start_beanlite
from tests.support.wire import Wire

MIB = 1 << 20
BLOCK = 4096
LOST_BLOCKS = 20


def run(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


class Device:
    """The device, with a file system on it."""

    def __init__(self, folder):
        self._host, self.disk = folder / "host", folder / "disk"
        self._image = self._host / "image"
        self._host.mkdir()
        self.disk.mkdir()
        run("mount", "-t", "tmpfs", "none", self._host)
        with self._image.open("wb") as image:
            image.truncate(48 * MIB)
        run("mkfs.ext4", "-q", "-m", "0", "-b", BLOCK, "-E", "lazy_itable_init=0,lazy_journal_init=0", self._image)
        self.mount()

    def mount(self):
        run("mount", "-o", "loop", self._image, self.disk)

    def unmount(self):
        run("umount", self.disk)

    def stop_writes(self):
        """Make all writes fail from now on for which the image has no blocks yet."""
        used = shutil.disk_usage(self._host).used
        run("mount", "-o", f"remount,size={used}", self._host)

    def lose(self, file):
        """Make the end of the device unreadable, from the last blocks of a file on."""
        run("sync", "--file-system", self.disk)
        ends = re.findall(r"^ *\d+: +\d+\.\. +\d+: +\d+\.\. +(\d+):", run("filefrag", "-v", file), re.MULTILINE)
        self.unmount()
        self.mount()  # or the kernel would still have them in its cache
        os.truncate(self._image, (max(map(int, ends)) - LOST_BLOCKS) * BLOCK)

    def mend(self):
        self.unmount()
        run("mount", "-o", "remount,size=1G", self._host)
        os.truncate(self._image, 48 * MIB)
        self.mount()

    def close(self):
        with suppress(subprocess.CalledProcessError):
            self.unmount()
        run("umount", self._host)


@pytest.fixture
def device(tmp_path):
    if "CI" not in os.environ:
        need(os.geteuid() == 0, "only root can mount")
        need(Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4"), "there are no loop devices")
    device = Device(tmp_path)
    yield device
    device.close()


def start(device, log):
    return start_beanlite(log, "--db", str(device.disk / "queue.db"), "--log-level", "error")


def put_until_closed(wire, number):
    """Put jobs until the connection is closed; return the acknowledged ids."""
    ids = []
    with suppress(ConnectionError):
        ids.extend(wire.put(b"x" * 5000) for _ in range(number))
    return ids


def ended(server):
    """Wait until the server has failed, and return the only line of its log."""
    assert server.process.wait(20) == 4
    (line,) = server.log_text().splitlines()
    return line


def all_there(device, log, ids):
    with start(device, log) as server, Wire(server.connect()) as wire:
        return all(wire.ask(f"peek {job_id}").startswith("FOUND") for job_id in ids)


def test_writes_fail(device, tmp_path):
    with start(device, tmp_path) as server, Wire(server.connect()) as wire:
        ids = put_until_closed(wire, 50)
        device.stop_writes()
        ids += put_until_closed(wire, 4000)
        assert re.search(r"^beanlite: (writing to|syncing the -wal of) .*/queue\.db failed: ", ended(server))
    assert 50 <= len(ids) < 4050
    device.mend()
    assert all_there(device, tmp_path, ids)


def test_it_is_read_only_from_a_moment_on(device, tmp_path):
    """As ext4 makes itself after an error of the device."""
    with start(device, tmp_path) as server, Wire(server.connect()) as wire:
        ids = put_until_closed(wire, 50)
        run("mount", "-o", "remount,abort", device.disk)
        assert put_until_closed(wire, 1) == []
        assert ended(server).startswith(f"beanlite: writing to {device.disk}/queue.db failed: ")
    with pytest.raises(
        ServerDied, match=r"ended with 3: beanlite: .*/queue\.db can't be opened: Read-only file system;"
    ):
        start(device, tmp_path)
    device.mend()
    assert all_there(device, tmp_path, ids)


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_what_can_not_be_read_at_a_start_is_not_damaged(device, tmp_path, suffix):
    with start(device, tmp_path) as server, Wire(server.connect()) as wire:
        put_until_closed(wire, 200)
        if suffix:
            server.kill()
    device.lose(device.disk / f"queue.db{suffix}")
    with pytest.raises(ServerDied) as died:
        start(device, tmp_path)
    assert re.search(
        rf"ended with 3: beanlite: \S+/queue\.db{suffix} can't be read: Input/output error", str(died.value)
    )
    assert "damaged" not in str(died.value)
