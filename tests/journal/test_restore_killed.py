"""A restore, an undo or a compaction that is killed at any point leaves the old database or the new one, complete."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.file.wholefile import partial_of
from beanlite.journal.sqlite.tools.restore import restore, undo_restore
from tests.journal.test_restore import damage, ids, names, source, target
from tests.support.journal_files import ROOT, make, make_killed, writer

__all__ = ["source", "target"]  # fixtures

# Forks once for each file operation, and the fork, which has its own folder, is killed before it; prints their number.
KILLER = """
import os, shutil, sys
from pathlib import Path
from beanlite.journal.sqlite.tools.compact import compact
from beanlite.journal.sqlite.tools.restore import restore, undo_restore

EVENTS = {"open", "os.rename", "os.remove", "os.chmod", "os.chown", "fcntl.flock", "sqlite3.connect", "shutil.copyfile"}
DO = {"restore": lambda target: restore(source, target), "undo": undo_restore, "compact": compact}
what, source, origin = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
number = code = seen = 0
undisturbed = origin.with_name("undisturbed")
shutil.copytree(origin, undisturbed)
DO[what](undisturbed / "queue.db")  # what this keeps in memory the forks need not find out again

def kill(event, args):
    global seen
    seen += event in EVENTS
    if seen == number:
        os._exit(9)

while code == 0:
    number += 1
    folder = origin.with_name(f"killed-{number}")
    shutil.copytree(origin, folder)
    child = os.fork()
    if not child:
        sys.addaudithook(kill)
        DO[what](folder / "queue.db")
        os._exit(1)
    code = {9: 0, 1: 1}[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
print(number)
"""


def nothing(_path):
    pass


def stopped(path):
    make(path, batches=4)


def killed(path):
    make_killed(path, batches=4)


def restored(path):
    """Make a file that has already been replaced, so that there is a restore to undo."""
    make(path, batches=1)
    make(path.with_name("old.db"), batches=4)
    path.with_name("old.db").rename(path.with_name("queue.db.replaced-20200101T000000.000Z"))


OLD, NEW = list(range(1, 13)), [1, 2, 3]


@pytest.mark.parametrize(
    ("what", "before", "old", "new"),
    [
        ("restore", nothing, [], NEW),
        ("restore", stopped, OLD, NEW),
        ("restore", killed, OLD, NEW),
        ("restore", damage, None, NEW),
        ("undo", restored, NEW, OLD),
        ("compact", stopped, OLD, OLD),
    ],
)
def test_kill_at_any_point_leaves_the_old_or_the_new_in_place(what, before, old, new, source, target):
    before(target)
    found = [jobs_in(folder) for folder in killed_folders(what, source, target)]
    assert len(found) > 10
    assert found[0] == old
    assert found[-1] == new
    assert found == sorted(found, key=lambda each: each == new), "it was neither, or the old one came back"
    assert all(each in (old, new) for each in found)


@pytest.mark.parametrize("what", ["restore", "undo"])
def test_undo_after_a_kill_reverts_the_last_completed_replacement(what, source, target):
    make(target, batches=4)
    make(source.with_name("second.db"), batches=2)
    restore(source.with_name("second.db"), target)
    first, second, third = [list(range(1, 3 * batches + 1)) for batches in (4, 2, 1)]
    done = third if what == "restore" else first
    outcomes = []
    for folder in killed_folders(what, source, target):
        in_place = jobs_in(folder)
        undo_restore(folder / "queue.db")
        outcomes.append((in_place, jobs_in(folder)))
    assert sorted(set(map(repr, outcomes))) == sorted(map(repr, [(second, first), (done, second)]))


def killed_folders(what, source, target):
    """Kill what is done with the target before each of its file operations; returns the folders that are left."""
    command = [sys.executable, "-c", KILLER, what, str(source), str(target.parent)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [target.parent.with_name(f"killed-{number}") for number in range(1, int(done.stdout) + 1)]


def jobs_in(folder):
    """Return the jobs that a server finds in the database of a folder; None if it refuses the file."""
    try:
        return ids(folder / "queue.db")[0]
    except JournalRefused:
        return None  # only a file that was damaged before may still be


def test_what_a_server_holds_of_an_unfinished_restore_stays(source, target):
    make(target, batches=4)
    unfinished = target.with_name("queue.db.replaced-20200101T000000.000Z")
    partial = target.with_name(".queue.db.restored-20200101T000000.000Z.abc.partial")
    partial.touch()
    with writer(unfinished, "idle"):
        restore(source, target)
    assert len(ids(unfinished)[0]) == 30
    assert partial.exists()  # an undo passes over it because of this
    restore(source, target)
    assert not unfinished.exists()


@pytest.mark.parametrize("before", [nothing, stopped, damage])
def test_a_copy_that_a_killed_restore_had_just_begun_goes(before, source, target):
    before(target)
    partial = target.with_name(".queue.db.restored-20200101T000000.000Z.abc.partial")
    for file in (partial, partial.with_name(f"{partial.name}-journal")):
        file.touch()
        os.utime(file, (0, 0))
    restore(source, target)
    assert not [name for name in names(target) if "partial" in name]


def test_what_killed_restores_of_other_databases_have_left_stays(source, target):
    others = [f".{name}.restored-20200101T000000.000Z.abc.partial" for name in ("queue.db.restored-test", "queue.db2")]
    ours = [f".queue.db.replaced-20200101T000000.000Z{end}.abc.partial" for end in ("", "-wal", "-journal")]
    for name in others + ours:
        target.with_name(name).touch()
        os.utime(target.with_name(name), (0, 0))
    restore(source, target)
    assert [name for name in names(target) if "partial" in name] == sorted(others)


def test_what_killed_restores_have_left_may_stay(source, target, monkeypatch):
    make(target, batches=4)
    begun = target.with_name(".queue.db.restored-20200101T000000.000Z.abc.partial")
    unfinished = target.with_name("queue.db.replaced-20200102T000000.000Z")
    partial = target.with_name(".queue.db.restored-20200102T000000.000Z.abc.partial")
    unlink = Path.unlink

    def failing(path, **how):
        if path in (begun, unfinished):
            raise PermissionError(1, "Operation not permitted")
        unlink(path, **how)

    monkeypatch.setattr(Path, "unlink", failing)
    for file in (begun, unfinished, partial):
        file.touch()
        os.utime(file, (0, 0))
    restore(source, target)
    assert ids(target)[0] == [1, 2, 3]
    assert [file.exists() for file in (begun, unfinished, partial)] == [True, True, True]


def test_a_copy_that_another_process_is_making_stays(source, target):
    make(target, batches=4)
    with partial_of(target.with_name("queue.db.restored-20200101T000000.000Z")) as partial:
        os.utime(partial, (0, 0))
        restore(source, target)
        assert partial.exists()
