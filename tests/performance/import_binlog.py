"""A full-size binlog of beanstalkd: jobs in every state are imported, and compared one by one.

``python -m tests.performance.import_binlog`` prints the memory that `beanlite import-binlog` needed, and its exit code.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.beanstalkd_jobs import TUBES, Producer, as_beanstalkd_reads, kick_order, stats_of_all
from tests.support.servers import start_beanlite, start_beanstalkd
from tests.support.wire import Wire


def main():
    """Have beanstalkd write a binlog, import it, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="how many there are in the end, at least")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    directory = Path(tempfile.mkdtemp(prefix="binlog-"))
    try:
        run(directory, options.jobs, options.seed)
    finally:
        shutil.rmtree(directory)


def count(wire):
    """Return the number of jobs."""
    stats = wire.stats()
    return sum(int(stats[f"current-jobs-{state}"]) for state in ("ready", "delayed", "reserved", "buried"))


def run(directory, jobs, seed):
    log, db = directory / "log", directory / "queue.db"
    log.mkdir()
    producer = Producer(seed)
    with start_beanstalkd(directory, "-b", str(log), "-F") as server, Wire(server.connect()) as wire:
        producer.begin(wire)
        while count(wire) < jobs:
            producer.go(10_000, puts=4)
        migrated = int(wire.stats()["binlog-records-migrated"])
        server.kill()
    files = list(log.glob("binlog.*"))
    print(f"binlog: {len(files)} files, {sum(file.stat().st_size for file in files) >> 20} MiB, {migrated} migrated")
    command = [sys.executable, "-m", "beanlite", "import-binlog", str(log), "--db", str(db)]
    _, status, usage = os.wait4(subprocess.Popen(command).pid, 0)
    print(f"exit code {os.waitstatus_to_exitcode(status)}, at most {usage.ru_maxrss >> 10} MiB of memory")
    last_id = len(producer.tubes)
    expected = as_beanstalkd_reads(log, last_id)
    with start_beanlite(directory) as server:
        found = stats_of_all(server, last_id)
        different = [job_id for job_id in expected.keys() | found.keys() if expected.get(job_id) != found.get(job_id)]
        order = {tube: kick_order(server, tube) for tube in TUBES}
    states = dict(Counter(stats["state"] for stats, _ in expected.values()))
    print(f"{len(expected)} jobs by beanstalkd's own account, {states}; {len(different)} differ: {different[:10]}")
    for tube, job_ids in producer.buried.items():
        in_order = [job_id for job_id in job_ids if job_id in expected and expected[job_id][0]["state"] == "buried"]
        print(f"{tube}: {len(in_order)} buried, {'in order' if order[tube] == in_order else 'NOT in order'}")


if __name__ == "__main__":
    main()
