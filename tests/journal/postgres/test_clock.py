"""The database's clock has no influence on which server has the lease."""

import asyncio
import mmap
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

from tests.journal.postgres.serving import LEASE_S, SOON_S, Postgres, ServingPostgres, served, until
from tests.support.needs import need
from tests.support.postgres import Cluster, new_home, programs

HOUR_S = 3600
APART_S = 60


@pytest.fixture
def shifted():
    """A database, and a function that shifts its clock by a number of seconds."""
    need(programs(), "PostgreSQL is not installed")
    need(shutil.which("cc"), "cc is not installed")
    home = new_home()
    library, shift = home / "shifted.so", home / "shift"
    source = Path(__file__).with_name("shifted.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    shift.write_bytes(struct.pack("l", 0))
    cluster = Cluster(home, "shifted", {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)})
    cluster.make()
    cluster.start()
    with shift.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        yield cluster, lambda seconds: struct.pack_into("l", shared, 0, seconds)
    cluster.kill()
    shutil.rmtree(home)


async def test_steps_of_the_databases_clock_move_no_lease(shifted):
    cluster, shift = shifted
    first = await served(cluster.url(), node="first")
    second = ServingPostgres(Postgres(cluster.url(), node="second"))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    link = first.journal._sender._link
    for seconds in (HOUR_S, -HOUR_S, 0):
        shift(seconds)
        (row,) = await cluster.asql("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
        assert abs(row["now"] - time.time() - seconds) < APART_S
        await first.put()
        await asyncio.sleep(LEASE_S / 2)  # beats
        assert not waiting.done()
        (alive,) = await cluster.asql("SELECT seen_s, status FROM alive")
        assert (abs(alive["seen_s"]) < APART_S, alive["status"]) == (True, "serving")
    assert first.failures == []
    assert first.journal._sender._link is link
    shift(-HOUR_S)
    await first.abandon()
    await asyncio.wait_for(waiting, SOON_S)
    assert len(second.core.engine.jobs) == 3
    await second.stop()
