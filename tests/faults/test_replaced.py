"""After a kill or power failure amid a restore, a backup or the like, a server finds the old database or the new one.

The file operations are recorded once, and the disk is a model (power.py). FAULTS=10 tries ten random images at each
moment instead of one, and FAULTS_SEED repeats the choices of a run.
"""

import os
import random
import shutil
import subprocess
import sys

import pytest

from beanlite.journal.sqlite.database import open_database
from beanlite.journal.sqlite.replay import read_jobs, read_state
from tests.faults.forker import RECORD, ROOT
from tests.faults.power import VARIANTS, Disk, key_of, write_image
from tests.faults.record import read_trace, report, tried
from tests.support.journal_files import make, make_interrupted, make_killed

# The recorded program; only operations in the folder of the target are recorded.
RECORDER = f"""
import ctypes, os, sys
from pathlib import Path
from beanlite.journal.sqlite.backup import backup
from beanlite.journal.sqlite.compact import compact
from beanlite.journal.sqlite.restore import restore, undo_restore

what, library, source, folder, trace = sys.argv[1:]
do = {{
    "restore": lambda target: restore(Path(source), target),
    "undo": undo_restore,
    "compact": compact,
    "backup": lambda target: backup(Path(source), target, replace=True),
}}
shim = ctypes.CDLL(library)
shim.faults_arm(folder.encode(), os.open(trace, os.O_WRONLY | os.O_CREAT), 0, ctypes.c_long(0), {RECORD}, 0)
do[what](Path(folder) / "queue.db")
"""


def stopped(path):
    make(path, batches=4)


def killed(path):
    make_killed(path, batches=4)


def interrupted(path):
    make_interrupted(path, batches=4)


def restored(path):
    """Make a file that has already been replaced, so that there is a restore to undo."""
    make(path, batches=1)
    make(path.with_name("old.db"), batches=4)
    path.with_name("old.db").rename(path.with_name("queue.db.replaced-20200101T000000.000Z"))


def restored_and_interrupted(path):
    """The same; what was replaced, and what has replaced it, have a rollback journal each."""
    make_interrupted(path.with_name("old.db"), batches=4)
    for end in ("", "-journal"):
        path.with_name(f"old.db{end}").rename(path.with_name(f"queue.db.replaced-20200101T000000.000Z{end}"))
    make_interrupted(path, batches=1)


# The jobs, and the last id: after a restore it is that of the database that was replaced.
OLD, NEW, BACKUP = (list(range(1, 13)), 12), ([1, 2, 3], 12), ([1, 2, 3], 3)


def ids(path):
    """Return the ids of the jobs that a server finds in the file, and the last id that was given out."""
    database = open_database(path)
    last_id = read_state(database.connection, path).last_id
    found = [job[0] for jobs in read_jobs(database.connection, path) for job in jobs]
    assert database.close() is None
    return found, last_id


@pytest.mark.parametrize(
    ("what", "before", "old", "new"),
    [
        ("restore", stopped, OLD, NEW),
        ("restore", killed, OLD, NEW),
        ("restore", interrupted, OLD, NEW),
        ("undo", restored, BACKUP, OLD),
        ("undo", restored_and_interrupted, BACKUP, OLD),
        ("compact", stopped, OLD, OLD),
        ("backup", stopped, OLD, BACKUP),
    ],
)
def test_the_old_or_the_new_is_in_place(what, before, old, new, faults_library, tmp_path):
    folder, source, trace = tmp_path / "data", tmp_path / "backup.db", tmp_path / "trace"
    folder.mkdir()
    make(source, batches=1)
    before(folder / "queue.db")
    disk = Disk(folder)
    subprocess.run(
        [sys.executable, "-c", RECORDER, what, str(faults_library), str(source), str(folder), str(trace)],
        cwd=ROOT, env=os.environ | {"LD_PRELOAD": str(faults_library)}, check=True,
    )  # fmt: skip
    seed = int(os.environ.get("FAULTS_SEED") or random.randrange(1 << 32))
    outcomes, known = [], {}
    for number, operation in enumerate(read_trace(trace)):
        disk.do(operation)
        chance = random.Random(seed + number)
        images = [(variant.__name__, variant(disk)) for variant in (Disk.all, *VARIANTS)]
        images += [("at random", disk.any(chance)) for _ in range(int(os.environ.get("FAULTS", "1")))]
        for variant, image in images:
            key = key_of(image)
            if key not in known:
                known[key] = start(image, tmp_path / str(len(known)))
            moment = f"it ended after operation {number}, {operation}, {variant}, FAULTS_SEED={seed}"
            outcomes.append(None if known[key] in (old, new) else (moment, ValueError(f"it has {known[key]}")))
    write_image(disk.all(), tmp_path / "model")
    assert contents(tmp_path / "model") == contents(folder)  # or the model would be wrong
    assert start(disk.safe(), tmp_path / "end") == new  # what was reported done is durable
    assert len(known) > 10
    report(outcomes)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def start(image, folder):
    """Return the jobs and the last id that a start finds in an image, or the error."""
    tried["images"] += 1
    write_image(image, folder)
    try:
        return ids(folder / "queue.db")
    except Exception as error:  # noqa: BLE001 - it is reported with the others
        return error
    finally:
        shutil.rmtree(folder)
