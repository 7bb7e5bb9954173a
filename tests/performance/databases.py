"""What a journal in PostgreSQL costs compared with the file; see docs/performance-lab.md.

::

    python -m tests.performance.databases

Prints the commands per second of a cycle with the file, with a database alone, and with a database that has a
synchronous standby, in turns, all on the same machine. Ratios are to the file.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack

from tests.support.postgres import SETTINGS, Cluster, Pair, new_home

CONNECTIONS_AND_DEPTHS = ((1, 1), (50, 1), (200, 1), (16, 100))
ROUNDS = 5


def measure(databases: dict[str, str], connections: int, depth: int) -> list[str]:
    """Measure, and return one row of the table."""
    load = f"--connections {connections} --depth {depth} --rounds {ROUNDS}"
    command = [sys.executable, "-m", "tests.bench", *load.split(), "--json", "--against", "beanlite"]
    for url, require_sync in databases.items():
        command += ["--against", f"beanlite --database {url} --require-sync {require_sync}"]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        said = subprocess.run([*command, "--dir", folder], stdout=subprocess.PIPE, check=True).stdout
    row = []
    file, *others = json.loads(said)["targets"]
    for target in file, *others:
        row += [f"{target['commands_per_s']:,.0f}", f"{target['p99_us'] / 1000:.1f} ms"]
        if target is not file:
            row.append(f"{target['commands_per_s'] / file['commands_per_s']:.2f}")
    return row


def main() -> None:
    """Measure everything, and print the table."""
    SETTINGS.update(fsync="on", full_page_writes="on")
    with ExitStack() as stack:
        alone = Cluster(home := new_home(), "alone")
        stack.callback(shutil.rmtree, home)
        stack.callback(alone.kill)
        alone.make()
        alone.start()
        pair = Pair()
        stack.callback(pair.end)
        print(
            "| cycle | file | p99 | PostgreSQL | p99 | ratio | with a synchronous standby | p99 | ratio |", flush=True
        )
        for connections, depth in CONNECTIONS_AND_DEPTHS:
            pair.primary.sql("DROP DATABASE queue")
            pair.primary.sql("CREATE DATABASE queue")
            databases = {alone.new_database(): "false", pair.url(): "true"}
            row = measure(databases, connections, depth)
            print(" | ".join([f"| {connections} connections, {depth} at a time", *row, ""]).rstrip(), flush=True)


if __name__ == "__main__":
    main()
