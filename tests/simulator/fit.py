"""The server's modules, fitted into a world: what they are given in place of the machine's."""

import gc
import logging
import tempfile
from pathlib import Path

from beanlite import machine, reload
from beanlite.journal.sqlite import database, heartbeat, journal, mark, migrations, replay, room, writer
from tests.simulator import world as worlds
from tests.simulator.world import SimulatedSync, World


class _Errors(logging.Handler):
    """What the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(f"{record.getMessage()} {getattr(record, 'fields', '')} {record.exc_info or ''}")


ERRORS = _Errors()
EMPTY: list[bytes] = []
"""The file of a queue in which nothing is: to make one takes long, so only some seeds do."""


def prepare() -> None:
    """Once for all seeds."""
    logging.getLogger("beanlite").handlers[:] = [ERRORS]
    logging.getLogger("beanlite").propagate = False
    logging.getLogger("beanlite").setLevel(logging.ERROR)
    logging.getLogger("asyncio").disabled = True
    limit = machine.memory_limit()
    # Everything is smaller than in life: what is kept in reserve, and what is read at a time of a file's jobs.
    for module, name, value in (
        (room, "RESERVE_BYTES", 256 << 10),
        (replay, "_CHUNK", 8),
        (replay, "_CHUNK_BYTES", 6000),
        (journal, "sched_yield", lambda: None),
        (reload, "memory_limit", lambda: limit),
    ):
        assert hasattr(module, name)
        setattr(module, name, value)
    _remember_schemas()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "queue.db"
        database.open_database(file).close()
        EMPTY.append(file.read_bytes())
    gc.freeze()
    gc.disable()


def _remember_schemas() -> None:
    """What a schema is compared with is always the same, and so is mostly what is compared: both take long to make."""
    check, sound = migrations.check_schema, {}

    def remembered(connection, path, parts):
        schema = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
        key = (len(parts), *schema)
        if key not in sound:
            sound[key] = check(connection, path, parts)
        return sound[key]

    for module in (migrations, database):
        module.check_schema = remembered  # type: ignore[attr-defined]


def enter(world: World) -> None:
    """From now on a server lives in this world."""
    worlds.enter(world)
    ERRORS.lines.clear()
    mark.boot_id = heartbeat.boot_id = lambda: f"boot-{world.boot}"  # type: ignore[attr-defined]
    writer.background_sync = lambda: SimulatedSync(world)  # type: ignore[attr-defined]
