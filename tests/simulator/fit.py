"""Fits the server's modules into a world: replaces what they would take from the machine."""

import gc
import logging
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from beanlite.commit import group
from beanlite.host import log, machine
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file import database, heartbeat, mark, migrations, replay, room, stray
from beanlite.journal.sqlite.served import journal, watch, writer
from beanlite.protocol.replies import FOUND, OFFERED
from beanlite.protocol.session import Session
from beanlite.server import wiring
from tests.simulator import hooks, referee, world as worlds
from tests.simulator.ledger import BrokenPromiseError
from tests.simulator.world import SimulatedSync, World


class _Errors(logging.Handler):
    """Collects what the server logs as errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(f"{record.getMessage()} {getattr(record, 'fields', '')} {record.exc_info or ''}")


ERRORS = _Errors()
# What fills a batch, and what it is in the seeds in which batches are often full.
BATCH = {"BATCH_JOBS": 3, "BATCH_BYTES": 2000, "BATCH_EVENTS": 4, "BATCH_REPLIES": 4, "EVENTS_MAX": 4}
USUAL = {name: getattr(group, name) for name in BATCH}
EMPTY: list[bytes] = []
"""The file of an empty queue: making one is slow, so only some seeds do. It lacks the views, which the server does not
use, because SQLite would parse them whenever the file is opened."""


def prepare() -> None:
    """Prepare the process; to be called once for all seeds."""
    logging.getLogger("beanlite").handlers[:] = [ERRORS]
    logging.getLogger("beanlite").propagate = False
    logging.getLogger("beanlite").setLevel(logging.ERROR)
    logging.getLogger("asyncio").disabled = True
    limit = machine.memory_limit()
    # The sizes are smaller than in production: the reserve file, and the chunks in which a file's jobs are read.
    for module, name, value in (
        (room, "RESERVE_BYTES", 256 << 10),
        (replay, "_CHUNK", 8),
        (replay, "_CHUNK_BYTES", 6000),
        (journal, "sched_yield", lambda: None),
        (wiring, "memory_limit", lambda: limit),
        (log, "setup", lambda *_: None),
    ):
        assert hasattr(module, name)
        setattr(module, name, value)
    _remember_schemas()
    _watch_reservations()
    EMPTY.append(_empty_file())
    gc.freeze()
    gc.disable()


def _empty_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "queue.db"
        database.open_database(file).close()
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall():
                connection.execute(f"DROP VIEW {name}")
            connection.execute("VACUUM")
        return file.read_bytes()


def _remember_schemas() -> None:
    """Cache what is derived from a schema, which is slow, and nearly always from the same one; and the migrations."""
    check, meddling, found = migrations.check_schema, migrations.meddling, find_migrations()
    sound, meddlers = {}, {}

    def check_remembered(connection, path, parts):
        key = (len(parts), *_schema_of(connection))
        if key not in sound:
            sound[key] = check(connection, path, parts)
        return sound[key]

    def meddling_remembered(connection, tables):
        key = (*sorted(tables), *_schema_of(connection))
        if key not in meddlers:
            meddlers[key] = meddling(connection, tables)
        return meddlers[key]

    for modules, name, value in (
        ((migrations, database), "check_schema", check_remembered),
        ((migrations, watch), "meddling", meddling_remembered),
        ((database, watch), "find_migrations", lambda *_: list(found)),
    ):
        for module in modules:
            assert hasattr(module, name)
            setattr(module, name, value)


def _schema_of(connection):
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()


def _watch_reservations() -> None:
    """Check of each single job whose body was fetched, and that is told as reserved, that its client still has it.

    Without a fetch, the reply belongs to the moment of the reservation, even if an operator releases the job in the
    same turn.
    """
    job_reply = hooks.real(Session, "job_reply")

    def checked(self, form, job, body):
        world = worlds.current()
        holder = self.client.offers if form is OFFERED else self.client
        if form is not FOUND and job.body is None and job.holder is not holder and world.broken is None:
            world.broken = BrokenPromiseError(f"job {job.id} is told as reserved to a client that does not have it")
            world.crash()
        return job_reply(self, form, job, body)

    hooks.replace(Session, "job_reply", checked)


def enter(world: World) -> None:
    """Have the servers started from now on live in this world."""
    worlds.enter(world)
    for name, value in (BATCH if world.chance.random() < 0.25 else USUAL).items():
        setattr(group, name, value)
    ERRORS.lines.clear()
    referee.attend(present=world.referee is not None)
    mark.boot_id = stray.boot_id = heartbeat.boot_id = lambda: f"boot-{world.boot}"  # type: ignore[attr-defined]
    writer.background_sync = lambda: SimulatedSync(world)  # type: ignore[attr-defined]
