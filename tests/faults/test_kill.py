"""Killed at any of its file operations, the server starts again without help, and has everything it acknowledged.

FAULTS_AT=17 tries only the 17th operation of a scenario. FAULTS=50 tries 50 pairs of kills in a row, and FAULTS_SEED
repeats the choices of a run.
"""

import os
import random
import shutil

import pytest

from tests.faults.forker import CHANGES, KILL_AMID, Fault
from tests.faults.record import moments, report
from tests.faults.scenarios import BACKUP, NAMES, RESERVE, UPKEEP, check_served, look

WHOLE = 15  # once in this many times a whole server starts again
MOST = 400  # moments of a scenario: compiled, the upkeep has thousands
PAIRS = 8
MODES = ["always", "50ms", "never"]  # of --fsync: a kill loses nothing in any of them


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
                check_served(forker, data, scenario.possible(ended.acked), ended.ids, scenario.migrations)
                beside = set()
            scenario.check(look(data, scenario.migrations), ended.acked, ended.ids, beside)
            scenario.check_copy(data, ended.acked)
        except Exception as error:  # noqa: BLE001 - they are reported together
            return f"killed {'amid' if action == KILL_AMID else 'before'} operation {number}, {operation}", error
        shutil.rmtree(data)
        return None

    found = list(moments(undisturbed[name][0], scenario.from_stop))
    assert len(found) > 20 or "FAULTS_AT" in os.environ
    found = random.sample(found, min(MOST, len(found)))
    report(forkers.map(stop_and_start, found))


@pytest.mark.parametrize("name", dict.fromkeys([*NAMES, BACKUP, UPKEEP]))
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
            scenario.check_copy(data, ended.acked)
        except Exception as error:  # noqa: BLE001 - they are reported together
            moment = f"killed at operation {number}, {operation}, and then at {again}"
            return f"{moment}, --fsync {fsync}, FAULTS_SEED={seed}", error
        shutil.rmtree(data)
        return None

    number = int(os.environ.get("FAULTS", str(PAIRS)))
    pairs = {(chance.choice(found), chance.randrange(1, 60), chance.choice(MODES)) for _ in range(number)}
    report(forkers.map(stop_twice_and_start, pairs))
