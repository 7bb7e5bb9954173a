"""How many bytes are written to the disk in the life of a job, by the number of jobs in a batch.

``python -m tests.performance.disk_cost`` measures no times; it counts the bytes that this process writes, to the -wal
and in checkpoints (Linux).
"""

import asyncio
import tempfile
from pathlib import Path

from beanlite.core.engine import Engine
from beanlite.host.clock import Clock
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served.batch import batch_of
from beanlite.journal.sqlite.served.writer import Writer

BODY_SIZES = (100, 1000, 65535)  # bytes
BATCHES = (1, 10, 100, 1000)
JOBS = 1000
BACKLOG = 2000  # jobs that remain in the file throughout
NOW_NS = 800_000_000 * 1_000_000_000


async def bytes_a_job(body: bytes, batch: int, *, stored_reservation: bool = False, at_once: bool = False) -> int:
    """Put, reserve and delete JOBS jobs, ``batch`` at a time. ``at_once``: the put and the delete share a batch."""
    engine = Engine()
    client = engine.clients.connect("10.0.0.1:1")

    def put(count: int) -> list[int]:
        return [engine.put(client, 1024, 0, 60, body, NOW_NS).id for _ in range(count)]

    with tempfile.TemporaryDirectory() as directory:
        journal = Writer(
            open_database(Path(directory) / "queue.db"),
            "unix:socket",
            HistoryBounds(None, 1 << 30, bodies=False),
            Clock(),
            0,
        )
        journal.prepare()
        await journal.start()

        def write(*, deferred: bool = False) -> None:
            journal.write(batch_of(engine.take_changes(deferred=deferred), journal.chronicle.history))
            while engine.ledger.deferred and deferred:  # deferred changes come in slices
                journal.write(batch_of(engine.take_changes(deferred=True), journal.chronicle.history))

        put(BACKLOG)
        write()
        await journal.checkpoint()
        before = written()
        for _ in range(JOBS // batch):
            ids = put(batch)
            if not at_once:
                write()
            for job_id in ids:
                engine.reserve_job(client, job_id, NOW_NS)
            if stored_reservation:
                write(deferred=True)
            for job_id in ids:
                engine.delete(client, job_id, NOW_NS)
            write()
            if journal.frames.checkpoint_due:
                await journal.checkpoint()
        await journal.checkpoint()
        total = written() - before
        await journal.close()
    return total // JOBS


def written() -> int:
    """Return the number of bytes that this process has written so far, to any file."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


async def main() -> None:
    """Print the table of performance-lab.md."""
    print("| body | jobs in a batch | put, delete | reservation stored, too | put and delete in one batch |")
    print("|---|---|---|---|---|")
    for size in BODY_SIZES:
        for batch in BATCHES:
            body = b"x" * size
            plain = await bytes_a_job(body, batch)
            stored = await bytes_a_job(body, batch, stored_reservation=True)
            at_once = await bytes_a_job(body, batch, at_once=True)
            print(f"| {size} | {batch} | {plain:,} | {stored:,} | {at_once:,} |")


if __name__ == "__main__":
    asyncio.run(main())
