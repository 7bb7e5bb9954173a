"""The core against the naive model: random sessions of several clients, all time under the test's control.

::

    MODEL_STEPS=1000000 python -m pytest tests/test_model.py     # a long one
    MODEL_SEED=4711 python -m pytest tests/test_model.py         # the same as the one that had this seed
"""

import os
import random

from hypothesis import HealthCheck, note, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.sessions import ACTIONS, Chance, Twins, difference, shrink

STEPS = int(os.environ.get("MODEL_STEPS", "20000"))
SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))

chances = st.randoms(use_true_random=False).map(Chance)


class AgainstModel(RuleBasedStateMachine):
    """Finds less in a second than the sessions below, and tells it in fewer steps."""

    steps = 0

    def __init__(self):
        super().__init__()
        self.twins = Twins()

    def _play(self, action):
        note(f"{action}")
        self.twins.play(action)
        type(self).steps += 1

    @initialize()
    def connect(self):
        self._play(("connect",))
        self._play(("connect",))

    @rule(chance=chances)
    def send(self, chance):
        self._play(chance.action(self.twins.model, {"send": 1}))

    @rule(chance=chances)
    def wait(self, chance):
        self._play(chance.action(self.twins.model, {"wait": 2, "wait unseen": 1}))

    @rule(chance=chances)
    def other(self, chance):
        self._play(chance.action(self.twins.model, {kind: ACTIONS[kind] for kind in ("connect", "leave", "refuse puts")}))

    def teardown(self):
        self.twins.compare_all()


def test_the_core_is_the_model(record_property):
    run_state_machine_as_test(
        AgainstModel,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    record_property("model steps", AgainstModel.steps)


def session(seed, length):
    """Play a random session; returns its actions, and what went wrong at the last one."""
    chance = Chance(random.Random(seed))
    twins = Twins()
    actions = []
    try:
        for _ in range(length):
            actions.append(chance.action(twins.model))
            twins.play(actions[-1])
        twins.compare_all()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return actions, error
    return actions, None


def test_the_core_is_the_model_in_long_sessions(record_property):
    rng = random.Random(SEED)
    left = STEPS
    while left > 0:
        length = min(left, rng.choice((50, 500, 2000)))
        actions, error = session(rng.getrandbits(64), length)
        if error is not None:
            least = shrink(actions, difference)
            told = "\n".join(map(str, least))
            raise AssertionError(f"MODEL_SEED={SEED}; the least of it:\n{told}\n{difference(least)}") from error
        left -= length
    record_property("model steps", STEPS)
    record_property("MODEL_SEED", SEED)
