"""Killed at any of its file operations, the server starts again without help, and has everything it acknowledged.

FAULTS_AT=17 tries only the 17th operation of a scenario. FAULTS=50 tries 50 pairs of kills in a row, and FAULTS_SEED
repeats the choices of a run.
"""

import os
import random
import shutil

import pytest

from tests.faults.forker import CHANGES, KILL_AMID, KILL_BEFORE, Fault
from tests.faults.power import SECTOR
from tests.faults.record import report
from tests.faults.scenarios import NAMES, RESERVE, UPKEEP, look

WHOLE = 15  # once in this many times a whole server starts again
PAIRS = 8
MODES = ["always", "50ms", "never"]  # of --fsync: a kill loses nothing in any of them


def moments(operations, from_stop):
    """Yield the number of each operation, and whether to kill before it or, for a write, in the middle of it.

    A kill after an operation is one before the next. A sync changes nothing for a kill, so none is tried before it. A
    write of no more than a sector is done or not done.
    """
    begun = not from_stop
    number = 0
    for operation in operations:
        begun = begun or operation[:2] == ("note", "stop")
        if operation.counted:
            number += 1
            if begun and operation.kind != "sync" and os.environ.get("FAULTS_AT", str(number)) == str(number):
                yield number, operation, KILL_BEFORE
                if operation.kind == "write" and len(operation.data) > SECTOR:
                    yield number, operation, KILL_AMID


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_any_operation(forkers, scenarios, undisturbed, tmp_path, name):
    scenario = scenarios[name]

    def stop_and_start(forker, moment):
        number, operation, action = moment
        data = tmp_path / f"{number}-{action}"
        ended = scenario.run(forker, data, fault=Fault(action, CHANGES, number))
        try:
            # 0: a timer fired at another time than in the undisturbed run, and there were fewer operations.
            assert ended.code in {-9, 0}, f"it ended with {ended.code}: {ended.stderr}"
            beside = {RESERVE} if (data / RESERVE).exists() else set()
            if number % WHOLE == 0:
                again = forker.run(data, migrations=scenario.migrations)
                assert (again.code, again.stderr) == (0, ""), f"the next ended with {again.code}: {again.stderr}"
                beside = set()
            scenario.check(look(data, scenario.migrations), ended.acked, ended.ids, beside)
            scenario.check_copy(data)
        except Exception as error:  # noqa: BLE001 - they are reported together
            return f"killed {'amid' if action == KILL_AMID else 'before'} operation {number}, {operation}", error
        shutil.rmtree(data)
        return None

    found = list(moments(undisturbed[name][0], scenario.from_stop))
    assert len(found) > 20 or "FAULTS_AT" in os.environ
    report(forkers.map(stop_and_start, found))


@pytest.mark.parametrize("name", dict.fromkeys([*NAMES, UPKEEP]))
def test_killed_again_at_the_next_start(forkers, scenarios, undisturbed, tmp_path, name):
    scenario = scenarios[name]
    seed = int(os.environ.get("FAULTS_SEED") or random.randrange(1 << 32))
    chance = random.Random(seed)
    found = list(moments(undisturbed[name][0], scenario.from_stop))

    def stop_twice_and_start(forker, pair):
        (number, operation, action), again, fsync = pair
        data = tmp_path / f"{number}-{action}-{again}-{fsync}"
        ended = scenario.run(forker, data, fault=Fault(action, CHANGES, number), fsync=fsync)
        try:
            again_amid = Fault(KILL_AMID, CHANGES, again)
            second = forker.run(data, migrations=scenario.migrations, fault=again_amid, fsync=fsync)
            assert second.code in {-9, 0}, f"the second ended with {second.code}: {second.stderr}"
            beside = {RESERVE} if (data / RESERVE).exists() else set()
            scenario.check(look(data, scenario.migrations), ended.acked, ended.ids, beside)
            scenario.check_copy(data)
        except Exception as error:  # noqa: BLE001 - they are reported together
            moment = f"killed at operation {number}, {operation}, and then at {again}"
            return f"{moment}, --fsync {fsync}, FAULTS_SEED={seed}", error
        shutil.rmtree(data)
        return None

    number = int(os.environ.get("FAULTS", str(PAIRS)))
    pairs = {(chance.choice(found), chance.randrange(1, 60), chance.choice(MODES)) for _ in range(number)}
    report(forkers.map(stop_twice_and_start, pairs))
