"""The server's modules, fitted into a world: what they are given in place of the machine's."""

import gc
import logging
import tempfile
from pathlib import Path

from beanlite.journal.sqlite import heartbeat, journal, mark, migrations, replay, room, writer
from beanlite.journal.sqlite.database import open_database
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
    # Everything is smaller than in life: what is kept in reserve, and what is read at a time of a file's jobs.
    for module, name, value in (
        (room, "RESERVE_BYTES", 256 << 10),
        (replay, "_CHUNK", 8),
        (replay, "_CHUNK_BYTES", 6000),
        (journal, "sched_yield", lambda: None),
    ):
        assert hasattr(module, name)
        setattr(module, name, value)
    _remember_models()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "queue.db"
        open_database(file).close()
        EMPTY.append(file.read_bytes())
    gc.freeze()
    gc.disable()


class _Model:
    """What a schema is compared with: it is always the same, and takes long to make."""

    def __init__(self, shape) -> None:
        self._shape = shape

    def execute(self, _statement):
        return self._shape

    def close(self):
        pass


def _remember_models() -> None:
    make, made = migrations._model, {}

    def remembered(parts):
        if len(parts) not in made:
            model = make(parts)
            made[len(parts)] = _Model(model.execute(migrations._SHAPE).fetchall())
            model.close()
        return made[len(parts)]

    migrations._model = remembered


def enter(world: World) -> None:
    """From now on a server lives in this world."""
    worlds.enter(world)
    ERRORS.lines.clear()
    mark.boot_id = heartbeat.boot_id = lambda: f"boot-{world.boot}"  # type: ignore[attr-defined]
    writer.background_sync = lambda: SimulatedSync(world)  # type: ignore[attr-defined]
