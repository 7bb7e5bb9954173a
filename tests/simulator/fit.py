"""Fits the server's modules into a world: replaces what they would take from the machine."""

import gc
import logging
import tempfile
from pathlib import Path

from beanlite.commit import group
from beanlite.host import log, machine
from beanlite.journal.sqlite.file import database, heartbeat, mark, migrations, replay, room, stray
from beanlite.journal.sqlite.served import journal, writer
from beanlite.protocol.replies import FOUND, OFFERED
from beanlite.protocol.session import Session
from beanlite.server import wiring
from tests.simulator import referee, world as worlds
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
"""The file of an empty queue: making one is slow, so only some seeds do."""


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
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "queue.db"
        database.open_database(file).close()
        EMPTY.append(file.read_bytes())
    gc.freeze()
    gc.disable()


def _remember_schemas() -> None:
    """Cache the results of schema checks: they are slow, and nearly always compare the same schemas."""
    check, sound = migrations.check_schema, {}

    def remembered(connection, path, parts):
        schema = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
        key = (len(parts), *schema)
        if key not in sound:
            sound[key] = check(connection, path, parts)
        return sound[key]

    for module in (migrations, database):
        module.check_schema = remembered  # type: ignore[attr-defined]


def _watch_reservations() -> None:
    """Check of each single job whose body was fetched, and that is told as reserved, that its client still has it.

    Without a fetch, the reply belongs to the moment of the reservation, even if an operator releases the job in the
    same turn.
    """
    job_reply = Session.job_reply

    def checked(self, form, job, body):
        world = worlds.current()
        holder = self.client.offers if form is OFFERED else self.client
        if form is not FOUND and job.body is None and job.holder is not holder and world.broken is None:
            world.broken = BrokenPromiseError(f"job {job.id} is told as reserved to a client that does not have it")
            world.crash()
        return job_reply(self, form, job, body)

    Session.job_reply = checked  # type: ignore[method-assign]


def enter(world: World) -> None:
    """Have the servers started from now on live in this world."""
    worlds.enter(world)
    for name, value in (BATCH if world.chance.random() < 0.25 else USUAL).items():
        setattr(group, name, value)
    ERRORS.lines.clear()
    referee.attend(present=world.referee is not None)
    mark.boot_id = stray.boot_id = heartbeat.boot_id = lambda: f"boot-{world.boot}"  # type: ignore[attr-defined]
    writer.background_sync = lambda: SimulatedSync(world)  # type: ignore[attr-defined]
