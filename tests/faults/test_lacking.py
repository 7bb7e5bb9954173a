"""A file system that lacks what a database needs, as 9p, virtiofs or NFS may: the line says so, and what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.journal_files import make
from tests.support.servers import start_beanlite
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def library(compiler, tmp_path_factory):
    """The compiled lacking.c."""
    del compiler
    library = tmp_path_factory.mktemp("library") / "lacking.so"
    source = Path(__file__).with_name("lacking.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("flock", "has no locks by flock (No locks available)"),
        ("fcntl", "has no locks by fcntl (No locks available)"),
        ("mmap", "has no shared memory in files (mmap) (No such device)"),
    ],
)
def test_a_file_system_that_can_have_no_database_is_named(lacks, said, is_new, library, tmp_path):
    folder = tmp_path / "q"
    folder.mkdir()
    if not is_new:
        make(folder / "queue.db")
    command = [sys.executable, "-m", "beanlite", "serve", "-p", "0", "--db", folder / "queue.db"]
    environment = {**os.environ, "LD_PRELOAD": str(library), "LACKS": lacks}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 3, ran.stderr
    assert ran.stderr.count("\n") == 1
    assert said in ran.stderr
    assert "put the database on a file system of this machine" in ran.stderr
    assert "another program" not in ran.stderr
    left = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert ("queue.db" in left) == (not is_new)
    assert left.get("queue.db-wal", 0) == 0


def test_one_that_lacks_only_extended_attributes_will_do(library, tmp_path):
    environment = {"LD_PRELOAD": str(library), "LACKS": "xattr"}
    for stopped in ("stopped jobs=0", "stopped jobs=1"):
        with start_beanlite(tmp_path, environment=environment) as server:
            if stopped.endswith("1"):
                with server.connect() as client:
                    assert Wire(client).put(b"job") == 1
            assert server.stop() == 0
            assert stopped in server.log_text()
