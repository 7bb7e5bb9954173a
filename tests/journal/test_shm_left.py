"""The -shm that a killed server has left is emptied, but no other file in its place is."""

import os
from pathlib import Path

import pytest

from beanlite.journal.sqlite.file import database, wholefile
from beanlite.journal.sqlite.file.database import open_database
from tests.support.journal_files import batch_in, refusal, writer


@pytest.fixture
def killed(path):
    """The file of a killed server, with ten batches in its -wal."""
    with writer(path, "idle"):
        pass
    return path


def test_file_to_which_a_link_leads_is_not_emptied(killed, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    shm = Path(f"{killed}-shm")
    shm.unlink()
    shm.symlink_to(other)
    assert f"{shm} can't be opened" in refusal(killed)
    assert other.read_bytes() == b"precious"
    shm.unlink()
    assert batch_in(killed) == 10


def test_shm_that_another_program_has_just_removed_is_not_relied_on(killed, monkeypatch):
    shm = Path(f"{killed}-shm")

    def lock_too_late(*lock):
        shm.unlink(missing_ok=True)
        return wholefile.lock_byte(*lock)

    monkeypatch.setattr(database, "lock_byte", lock_too_late)
    opened = open_database(killed)
    assert os.path.samestat(os.fstat(opened.index), shm.stat())
    assert not opened.lost_batches
    assert opened.close() is None
