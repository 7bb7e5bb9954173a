"""After a kill or power failure amid a restore, a backup or the like, a server finds the old content or the new one.

Each command is killed at some of its file operations; and with its operations as recorded, the disk is a model
(power.py). FAULTS=10 tries ten times as many, of 200 it is certain that no operation is left out. FAULTS_SEED repeats
the choices of a run. FAULTS_AT=17 tries only the 17th operation.
"""

import os
import random
import shutil

import pytest

from tests.faults.commands import make_commands
from tests.faults.forker import CHANGES, KILL_AMID, Fault
from tests.faults.power import VARIANTS, Disk, key_of, write_image
from tests.faults.record import moments, read_trace, report, tried
from tests.faults.scenarios import check_served

IN_PLACE = "restore after a kill in place"
NAMES = [
    "restore where nothing is",
    "restore",
    "restore after a kill",
    IN_PLACE,
    "restore over a rollback journal",
    "restore after a kill in the first start",
    "undo",
    "undo over rollback journals",
    "compact",
    "compact over a rollback journal",
    "backup",
    "backup after a kill",
]
ONCE_MORE = 3  # once in this many times the next start is killed as well
WHOLE = 4  # once in this many times a whole server starts
KILLS = 8 * int(os.environ.get("FAULTS", "1"))  # of each command, at moments by chance


@pytest.fixture(scope="module")
def commands(forkers, scenarios, tmp_path_factory):
    def make(forker, folder):
        return make_commands(forker, scenarios, folder)

    return forkers.map(make, [tmp_path_factory.mktemp("commands")])[0]


@pytest.fixture
def recorded(forkers, commands, tmp_path):
    """Return a function that carries out a command undisturbed, and returns its operations and the folder."""

    def run(forker, command):
        ended = command.run(forker, tmp_path / "undisturbed", trace=tmp_path / "trace")
        assert (ended.code, ended.stderr) == (0, "")
        return read_trace(tmp_path / "trace"), tmp_path / "undisturbed"

    return lambda name: forkers.map(run, [commands[name]])[0]


def test_all_commands_are_tried(commands):
    assert list(commands) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_any_operation(forkers, commands, recorded, tmp_path, name):
    command = commands[name]
    operations, folder = recorded(name)
    seed = int(os.environ.get("FAULTS_SEED") or random.randrange(1 << 32))

    def stop_and_start(forker, moment):
        number, operation, action = moment
        chance = random.Random(seed + number)
        data = tmp_path / f"{number}-{action}"
        ended = command.run(forker, data, fault=Fault(action, CHANGES, number))
        again = chance.randrange(1, 60)
        try:
            assert ended.code == -9, f"it ended with {ended.code}: {ended.stderr}"
            if number % ONCE_MORE == 0:
                second = forker.run(data, fault=Fault(KILL_AMID, CHANGES, again))
                assert second.code in {-9, 0}, f"the server ended with {second.code}: {second.stderr}"
            if number % WHOLE == 0:
                check_served(forker, data, [command.old, command.new], command.ids)
            is_new = command.check(data)
        except Exception as error:  # noqa: BLE001 - they are reported together
            amid = "amid" if action == KILL_AMID else "before"
            return (f"killed {amid} operation {number}, {operation}, then at {again}, FAULTS_SEED={seed}", error), None
        shutil.rmtree(data)
        return None, is_new

    found = list(moments(operations))
    assert len(found) > 10 or "FAULTS_AT" in os.environ
    found = sorted(random.Random(seed).sample(found, min(KILLS, len(found))))
    outcomes = forkers.map(stop_and_start, found)
    report([wrong for wrong, _ in outcomes])
    assert command.check(folder), "what was told done is not there"
    if command.old != command.new:
        done = [is_new for _, is_new in outcomes]
        assert done == sorted(done), "the old content came back"


@pytest.mark.parametrize("name", [name for name in NAMES if name != IN_PLACE])  # the model begins with a copy
def test_a_power_failure_at_any_moment(commands, recorded, tmp_path, name):
    command = commands[name]
    operations, folder = recorded(name)
    disk = Disk(command.data)
    seed = int(os.environ.get("FAULTS_SEED") or random.randrange(1 << 32))
    outcomes, known = [], {}
    for number, operation in enumerate(operations):
        disk.do(operation)
        chance = random.Random(seed + number)
        images = [(variant.__name__, variant(disk)) for variant in (Disk.all, *VARIANTS)]
        images += [("at random", disk.any(chance)) for _ in range(int(os.environ.get("FAULTS", "1")))]
        for variant, image in images:
            key = key_of(image)
            if key not in known:
                known[key] = start(command, image, tmp_path / str(len(known)))
            moment = f"the power failed after operation {number}, {operation}, {variant}, FAULTS_SEED={seed}"
            outcomes.append((moment, known[key]) if isinstance(known[key], Exception) else None)
    write_image(disk.all(), tmp_path / "model")
    assert files_of(tmp_path / "model") == files_of(folder)  # or the model would be wrong
    assert start(command, disk.safe(), tmp_path / "end") is True  # what was told done is durable
    assert len(known) > 10
    report(outcomes)


def files_of(folder):
    """Return the files' contents; the -shm, which is written through mmap, is none of the model's."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


def start(command, image, folder):
    """Return whether a start on an image finds the new content, or the error."""
    tried["images"] += 1
    write_image(image, folder)
    try:
        return command.check(folder)
    except Exception as error:  # noqa: BLE001 - it is reported with the others
        return error
    finally:
        shutil.rmtree(folder)
