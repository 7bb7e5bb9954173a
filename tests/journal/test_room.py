"""The reserve on the disk: what is taken of it, and what is in its way."""

import os
import resource
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from beanlite.journal.sqlite.file.room import RESERVE_BYTES, Room
from tests.journal.test_database import unprivileged
from tests.support.needs import need

__all__ = ["unprivileged"]  # a fixture

MIB = 1 << 20


@contextmanager
def room_of(path):
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield Room(path, descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("free", "left", "taken", "has_room"),
    [
        (0.9, 0, 0, False),
        (1, 0, 1, False),
        (3, 0, 1.5, False),
        (12.7, 0, 6.35, False),
        (15.9, 0, 7.95, False),
        (16, 0, 8, True),
        (0, 8, 8, False),
        (1, 2, 2, False),
        (8, 8, 8, True),
    ],
)
def test_room_takes_half_of_the_free_space_from_1_mib_on(tmp_path, monkeypatch, free, left, taken, has_room):
    path = tmp_path / "queue.db"
    reserve = tmp_path / "queue.db-reserve"
    if left:  # by a killed server
        reserve.write_bytes(bytes(left * MIB))
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=int(free * MIB), f_frsize=1))
    with room_of(path) as room:
        assert room.take_reserve() is has_room
        assert (reserve.stat().st_size if reserve.exists() else 0) == int(taken * MIB)
        assert room.give_up_reserve() is (taken > 0)
        assert not reserve.exists()


@pytest.mark.parametrize("left", [3, 8])
def test_reserve_of_a_killed_server_is_kept_where_nothing_allocates(tmp_path, monkeypatch, left):
    """As on ext3 and older versions of NFS. The file system here does not tell what is free."""
    need(os.geteuid() == 0, "only root can mount")
    subprocess.run(["mount", "-t", "ramfs", "none", str(tmp_path)], check=True)
    try:
        reserve = tmp_path / "queue.db-reserve"
        reserve.write_bytes(bytes(left * MIB))
        monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=64 * MIB, f_frsize=1))
        with room_of(tmp_path / "queue.db") as room:
            assert room.take_reserve()
            assert reserve.stat().st_size == RESERVE_BYTES
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("kind", ["another user's", "a link", "a FIFO", "a folder"])
def test_obstacle_in_place_of_the_reserve_is_not_a_full_disk(unprivileged, kind, caplog):
    path = unprivileged / "queue.db"
    reserve = unprivileged / "queue.db-reserve"
    if kind == "another user's":
        reserve.touch(0o400)
    elif kind == "a link":
        reserve.symlink_to("elsewhere")
    elif kind == "a FIFO":
        os.mkfifo(reserve)
    else:
        reserve.mkdir()
    with room_of(path) as room:
        assert room.take_reserve()
        assert room.has_room_for(1000)
        if kind == "a folder":
            (said,) = caplog.messages
            assert said == "no reserve for a full disk: another file has its name"
            assert not room.give_up_reserve()
        else:
            assert (reserve.stat().st_size, reserve.is_symlink()) == (RESERVE_BYTES, False)
            assert room.give_up_reserve()
            assert caplog.messages == []


def test_a_reserve_that_can_not_be_opened_at_present_stays(tmp_path, caplog):
    reserve = tmp_path / "queue.db-reserve"
    with room_of(tmp_path / "queue.db") as room:
        assert room.take_reserve()
        before = reserve.stat()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
        try:
            assert not room.take_reserve()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert os.path.samestat(reserve.stat(), before)
        assert room.take_reserve()
    assert caplog.messages == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user's")
def test_reserve_of_another_user_that_can_not_be_removed_is_told(caplog):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        (folder / "queue.db-reserve").touch(0o600)
        os.seteuid(65534)
        try:
            with room_of(folder / "queue.db") as room:
                assert room.take_reserve()
                assert not room.give_up_reserve()
        finally:
            os.seteuid(0)
    assert caplog.messages == ["no reserve for a full disk: another file has its name"]
