"""A real PostgreSQL whose disk is full: puts are refused, and nothing acknowledged is lost."""

import os
import select
import shutil
import subprocess
from contextlib import suppress

import asyncpg
import pytest

from tests.support.health import ask, start_watched
from tests.support.needs import need
from tests.support.postgres import Cluster, new_home, programs
from tests.support.wire import Wire, put_bytes, until

BODY = b"x" * 60_000
BEATS = "SELECT batch, nextval('beats'), last_id, seen_at FROM lease_now, generate_series(1, 5000)"  # of an hour


class Disk:
    """A small disk, which can be made larger."""

    def __init__(self):
        self.home = new_home()
        self.folder = self.home / "disk"
        self.folder.mkdir()

    def mount(self, size, how="rw"):
        owner = self.home.stat()
        options = f"{how},size={size},mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(self.folder)], check=True)

    def grow(self, size):
        self.mount(size, "remount")

    def fill(self):
        with (self.folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))


@pytest.fixture
def disk():
    need(programs(), "PostgreSQL is not installed")
    need(os.geteuid() == 0, "only root can mount")
    disk = Disk()
    yield disk
    subprocess.run(["umount", "--lazy", str(disk.folder)], check=True)
    shutil.rmtree(disk.home)


@pytest.fixture
def url(postgres, disk):
    """The address of a database whose tables are on a small disk."""
    disk.mount("16m")
    postgres.sql(f"CREATE TABLESPACE small LOCATION '{disk.folder}'")
    postgres.sql("CREATE DATABASE small TABLESPACE small")
    postgres.sql("CHECKPOINT")  # or the database's own files may not be on the disk yet, and find no space there
    yield postgres.url("small")
    postgres.sql("DROP DATABASE small WITH (FORCE)")
    postgres.sql("DROP TABLESPACE small")


def put_until_it_waits(wire, says_so):
    """Put until a put gets no reply while ``says_so()`` holds; return the acknowledged ids."""
    ids = []
    while True:
        wire.send(put_bytes(BODY))
        while not select.select([wire.socket], [], [], 0.1)[0]:
            if says_so():
                return ids
        ids.append(int(wire.reply().split()[1]))


def is_full(where):
    return lambda: ask(where, "/readyz") == (503, "the disk is full\n")


def ready(wire):
    return int(wire.stats()["current-jobs-ready"])


def start(folder, url, lease):
    """Start a server; return it and the address where it answers probes."""
    return start_watched(folder, "--database", url, "--require-sync", "false", "--lease", lease)


def test_a_full_disk_refuses_puts_until_there_is_room(url, disk, tmp_path):
    server, where = start(tmp_path, url, "30s")
    with server, Wire(server.connect()) as wire, Wire(server.connect()) as other:
        ids = put_until_it_waits(wire, is_full(where))
        assert other.ask("put 0 0 60 1", b"x") == "OUT_OF_MEMORY"
        assert other.ask("reserve") == f"RESERVED {ids[0]} {len(BODY)}"
        other.send(b"delete %d\r\n" % ids[0])
        disk.grow("64m")
        assert wire.reply() == f"INSERTED {ids[-1] + 1}"
        assert other.reply() == "DELETED"
        until(lambda: ask(where, "/readyz")[0] == 200)
        other.put(BODY)
        assert ready(other) == len(ids) + 1
        assert server.stop() == 0


def test_rows_of_old_beats_make_room_on_a_full_disk(url, disk, postgres, tmp_path):
    server, _ = start(tmp_path, url, "30s")
    with server, Wire(server.connect()) as wire:
        wire.put(b"x")
        until(lambda: postgres.sql("SELECT FROM totals", "small"))
        disk.fill()
        for beats in (5000, 50, 1):
            # Now and then PostgreSQL makes a file of its own anew for a connection, and says so less clearly.
            with suppress(asyncpg.DiskFullError, asyncpg.InternalServerError):
                for _ in range(200):
                    postgres.sql(f"INSERT INTO batches {BEATS} LIMIT {beats}", "small")
        until(lambda: wire.ask("pause-tube default 0") == "PAUSED" and "database disk full" in server.log_text())
        assert wire.ask("delete 1") == "DELETED"
        disk.grow("64m")  # for the totals


def test_killed_on_a_full_disk_it_starts_there(url, disk, postgres, tmp_path):
    server, where = start(tmp_path, url, "1s")
    with server, Wire(server.connect()) as wire:
        ids = put_until_it_waits(wire, is_full(where))
        server.kill()
    disk.grow("16896k")  # or there may be too little space for the next
    postgres.sql(f"INSERT INTO batches {BEATS}", "small")
    server, _ = start(tmp_path, url, "1s")
    with server, Wire(server.connect()) as wire:
        assert ready(wire) == len(ids)
        disk.grow("64m")
        wire.send(b"".join(b"delete %d\r\n" % job_id for job_id in ids))
        assert {wire.reply() for _ in ids} == {"DELETED"}


def test_a_full_disk_of_the_log_ends_the_database_and_not_the_server(disk, tmp_path):
    """PostgreSQL ends when it can't write its WAL, and has to be started again when there is space."""
    disk.mount("20m")  # one file of 16 MiB
    cluster = Cluster(disk.home, "filled")
    cluster.make()
    subprocess.run(["mv", cluster.data / "pg_wal", disk.folder], check=True)
    (cluster.data / "pg_wal").symlink_to(disk.folder / "pg_wal")
    cluster.start()
    try:
        server, _ = start(tmp_path, cluster.url(), "1s")
        with server, Wire(server.connect()) as wire:
            ids = put_until_it_waits(wire, lambda: cluster.process.poll() is not None)
            disk.grow("400m")
            cluster.start()
            assert wire.reply() == f"INSERTED {ids[-1] + 1}"
            server.kill()
        server, _ = start(tmp_path, cluster.url(), "1s")
        with server, Wire(server.connect()) as wire:
            assert ready(wire) == len(ids) + 1
    finally:
        cluster.kill()
