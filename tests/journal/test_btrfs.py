"""On Btrfs the -shm is written to in place, as on other file systems: on a full disk a copy would be a SIGBUS."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from beanlite.journal.sqlite.file.database import open_database
from tests.support.needs import need


@pytest.fixture
def btrfs(tmp_path):
    """A folder on Btrfs."""
    need(os.geteuid() == 0, "only root can mount")
    need(shutil.which("mkfs.btrfs"), "mkfs.btrfs is not installed: Debian's btrfs-progs")
    need("btrfs" in Path("/proc/filesystems").read_text(), "this kernel has no Btrfs")
    image, folder = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
    folder.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def is_in_place(path):
    """Whether the file has the attribute "no copy on write"."""
    flags, _ = subprocess.run(["lsattr", str(path)], check=True, capture_output=True, text=True).stdout.split()
    return "C" in flags


def test_shm_on_btrfs_is_written_to_in_place(btrfs):
    path = btrfs / "queue.db"
    path.touch(0o640)
    for start in ("the first one", "after a stop"):
        opened = open_database(path)
        shm = Path(f"{path}-shm")
        assert is_in_place(shm), start
        assert shm.stat().st_size > 0
        assert shm.stat().st_mode & 0o777 == 0o640
        assert opened.close() is None
        assert [each.name for each in btrfs.iterdir()] == [path.name]
