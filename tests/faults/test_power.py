"""After a power failure at any moment the server starts again without help, and has everything it acknowledged.

The disk is a model (power.py). FAULTS=10 tries ten random images at each of 250 moments, instead of one at some of all,
and FAULTS_SEED repeats the choices of a run. FAULTS_AT=17 tries only the moment after the 17th operation. With
FAULTS_EXT4=1 the sync of a new file also makes its name safe.
"""

import errno
import os
import random
import shutil

import pytest

from tests.faults.forker import DATABASE, FAIL_ON, Fault, mask
from tests.faults.power import FOLDER, VARIANTS, Disk, key_of, write_image
from tests.faults.record import read_trace, report, tried
from tests.faults.scenarios import NAMES, RESERVE, look

JOURNAL = f"{DATABASE}-journal"
# How many moments are tried, by chance, if all are too many: compiled, the upkeep has thousands of operations.
TRIED = 25 * int(os.environ.get("FAULTS", "40"))
SOME = 4  # a random image at one in this many moments


class Starts:
    """Starts on images; equal images are tried only once."""

    def __init__(self, folder, scenario) -> None:
        self._folder = folder
        self._scenario = scenario
        self._outcomes = {}

    def outcome(self, image):
        """Return what a start found, or the error."""
        key = key_of(image)
        if key not in self._outcomes:
            self._outcomes[key] = self._start(image)
        return self._outcomes[key]

    def _start(self, image):
        data = self._folder / str(len(self._outcomes))
        tried["images"] += 1
        write_image(image, data)
        try:
            found = look(data, self._scenario.migrations)
            self._scenario.check_copy(data)
        except Exception as error:  # noqa: BLE001 - it is reported with the others
            return error
        shutil.rmtree(data)
        return found


def images(disk, chance):
    """Yield what may be on the disk, each image with its name."""
    for variant in VARIANTS:
        yield variant.__name__, variant(disk)
    if "FAULTS" not in os.environ and chance.random() > 1 / SOME:
        return
    for number in range(int(os.environ.get("FAULTS", "1"))):
        yield f"random image {number}", disk.any(chance)


@pytest.mark.parametrize("name", NAMES)
def test_a_power_failure_at_any_moment(scenarios, undisturbed, tmp_path, name):
    scenario, (operations, ids, _) = scenarios[name], undisturbed[name]
    seed = int(os.environ.get("FAULTS_SEED") or random.randrange(1 << 32))
    only = int(os.environ.get("FAULTS_AT", "0"))
    disk = Disk(scenario.data, journaled="FAULTS_EXT4" in os.environ)
    starts = Starts(tmp_path, scenario)
    outcomes, number, acked, begun = [], 0, 0, not scenario.from_stop
    for operation in operations:
        disk.do(operation)
        number += operation.counted
        if operation.kind == "note":
            acked = max(acked, operation.offset)
            begun = begun or operation.name == "stop"
        if not begun or operation.kind == "read" or (only and number != only):
            continue
        chance = random.Random(seed + number)
        if chance.random() > TRIED / len(operations) and not only:
            continue
        for variant, image in images(disk, chance):
            moment = f"power failed after operation {number}, {operation}, {variant}, FAULTS_SEED={seed}"
            outcomes.append(judge(scenario, starts.outcome(image), acked, ids, moment))
    report(outcomes)


@pytest.mark.parametrize("name", NAMES)
def test_a_power_failure_after_syncs_have_failed(forkers, scenarios, undisturbed, tmp_path, name):
    scenario, (operations, ids, _) = scenarios[name], undisturbed[name]
    seed = int(os.environ.get("FAULTS_SEED") or random.randrange(1 << 32))
    starts = Starts(tmp_path, scenario)
    syncs = range(1, 1 + sum(operation.kind == "sync" for operation in operations))

    def run(forker, number):
        trace = tmp_path / f"{number}.trace"
        scenario.run(
            forker, tmp_path / f"{number}.data", fault=Fault(FAIL_ON, mask("sync"), number, errno.EIO), trace=trace
        )
        return number, read_trace(trace)

    outcomes = []
    for number, done in forkers.map(run, random.Random(seed).sample(syncs, min(TRIED, len(syncs)))):
        disk = Disk(scenario.data, journaled="FAULTS_EXT4" in os.environ)
        for operation in done:
            if operation.kind == "unlink" and operation.name == JOURNAL:
                unsynced = [str(each) for each in disk.names[DATABASE].since]
                assert not unsynced, (
                    f"syncs failed from number {number} on; {JOURNAL} is gone, which could undo {unsynced}"
                )
            disk.do(operation)
        acked = max((each.offset for each in done if each.kind == "note" and each.name == "acked"), default=0)
        for variant, image in images(disk, random.Random(seed + number)):
            moment = f"syncs failed from number {number} on, then the power, {variant}, FAULTS_SEED={seed}"
            outcomes.append(judge(scenario, starts.outcome(image), acked, ids, moment))
    report(outcomes)


def test_emptied_file_is_synced_before_a_failed_starts_journal_goes(forkers, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / DATABASE).touch()
    (tmp_path / "data" / JOURNAL).write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(504))
    ended, trace = forkers.map(
        lambda forker, trace: (forker.run(tmp_path / "data", trace=trace), trace), [tmp_path / "t"]
    )[0]
    assert (ended.code, ended.stderr) == (0, "")
    done = [(operation.kind, operation.name) for operation in read_trace(trace)]
    before = done[: done.index(("unlink", JOURNAL))]
    assert ("synced", DATABASE) in before
    assert ("synced", FOLDER) in before


def judge(scenario, outcome, acked, ids, moment):
    known = scenario.ids | {act.step.names: ids[act.step.names] for act in scenario.acts[:acked] if act.step.names}
    if isinstance(outcome, Exception):
        return moment, outcome
    try:
        scenario.check(outcome, acked, known, beside=outcome.names & {RESERVE})
    except Exception as error:  # noqa: BLE001 - they are reported together
        return moment, error
    return None


@pytest.mark.parametrize("name", NAMES)
def test_the_model_has_what_the_disk_has(scenarios, undisturbed, tmp_path, name):
    operations, _, folder = undisturbed[name]
    disk = Disk(scenarios[name].data)
    for operation in operations:
        disk.do(operation)
    write_image(disk.all(), tmp_path / "image")
    assert {path.name: path.read_bytes() for path in (tmp_path / "image").iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
