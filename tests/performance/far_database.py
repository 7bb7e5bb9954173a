"""What a round trip of some milliseconds to PostgreSQL costs; see docs/performance-lab.md.

::

    python -m tests.performance.far_database

Prints the commands per second of a cycle and the median latency, for several round-trip times that are added to that
of a local connection. The database has no standby, and is on the same machine.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack

from tests.support.cutting import Cutting
from tests.support.postgres import SETTINGS, Cluster, new_home

ROUND_TRIPS_MS = (0, 1, 5, 20)
CONNECTIONS_AND_DEPTHS = ((1, 1), (50, 1), (200, 1), (16, 100))


async def measure(cluster: Cluster, connections: int, depth: int) -> list[str]:
    """Measure, and return one row of the table."""
    async with AsyncExitStack() as stack:
        command = [sys.executable, "-m", "tests.bench", "-c", str(connections), "-d", str(depth), "--json"]
        for round_trip_ms in ROUND_TRIPS_MS:
            way = await stack.enter_async_context(Cutting(cluster.port, round_trip_ms / 1000))
            database = (await asyncio.to_thread(cluster.new_database)).rpartition("/")[2]
            url = f"postgresql://queue@127.0.0.1:{way.port}/{database}"
            command += ["--against", f"beanlite --database {url} --require-sync false"]
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        bench = await asyncio.create_subprocess_exec(*command, "--dir", folder, stdout=asyncio.subprocess.PIPE)
        said, _ = await bench.communicate()
    targets = json.loads(said)["targets"]
    return [f"{target['commands_per_s']:,.0f} | {target['p50_us'] / 1000:.1f} ms" for target in targets]


def main() -> None:
    """Measure everything, and print the table."""
    SETTINGS.update(fsync="on", full_page_writes="on")
    cluster = Cluster(home := new_home(), "alone")
    try:
        cluster.make()
        cluster.start()
        print(" | ".join(["cycle", *(f"{ms} ms | p50" for ms in ROUND_TRIPS_MS)]))
        for connections, depth in CONNECTIONS_AND_DEPTHS:
            row = asyncio.run(measure(cluster, connections, depth))
            print(" | ".join([f"{connections} connections, {depth} at a time", *row]), flush=True)
    finally:
        cluster.kill()
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
