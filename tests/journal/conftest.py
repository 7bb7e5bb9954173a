"""Where the files of the tests are, and what locks there are."""

import errno
import fcntl
import os

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.db"


@pytest.fixture(params=["EBADF", "ENOLCK"])
def poor_locks(request, monkeypatch):
    """Of a file that is only to be read there is no exclusive lock, as on NFS, or none at all."""
    flock, code = fcntl.flock, getattr(errno, request.param)

    def refuse(file, operation):
        how = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
        if how == os.O_RDONLY and (operation & fcntl.LOCK_EX or code == errno.ENOLCK):
            raise OSError(code, os.strerror(code))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
