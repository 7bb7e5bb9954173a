"""The core against the naive model: random sessions of several clients, with time under the test's control.

::

    MODEL_STEPS=1000000 python -m pytest tests/server/test_model.py     # a long run
    MODEL_SEED=4711 python -m pytest tests/server/test_model.py         # repeats the run with this seed
"""

import os
import random

from hypothesis import HealthCheck, note, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.support.ruled_sessions import RuledTwins, ruled_think
from tests.support.sessions import COMMANDS, Chance, Twins, explore

STEPS = int(os.environ.get("MODEL_STEPS", "20000"))
SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))


def chances(*commands):
    return st.randoms(use_true_random=False).map(lambda rng: Chance(rng, commands or COMMANDS))


class AgainstModel(RuleBasedStateMachine):
    """Finds fewer bugs in a second than the sessions below, but reports them in fewer steps."""

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

    def _send(self, chance):
        model = self.twins.model
        self._play(chance.send(model) if model.clients else ("connect",))  # all may have left

    @rule(chance=chances("put"))
    def put(self, chance):
        self._send(chance)

    @rule(chance=chances("reserve", "reserve-with-timeout", "reserve-with-timeout", "reserve-job"))
    def reserve(self, chance):
        self._send(chance)

    @rule(chance=chances("release", "bury", "touch", "delete", "kick", "kick-job"))
    def move(self, chance):
        self._send(chance)

    @rule(chance=chances("use", "watch", "ignore", "pause-tube"))
    def change_tubes(self, chance):
        self._send(chance)

    @rule(chance=chances())
    def send_anything(self, chance):
        self._send(chance)

    @rule(chance=chances())
    def wait(self, chance):
        self._play(chance.action(self.twins.model, ["wait", "wait", "wait unseen"]))

    @rule(chance=chances())
    def do_anything(self, chance):
        self._play(chance.action(self.twins.model))

    def teardown(self):
        self.twins.compare_all()


def test_short_sessions(record_property):
    run_state_machine_as_test(
        AgainstModel,
        settings=settings(
            max_examples=150,
            stateful_step_count=30,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    record_property("model steps", (AgainstModel.steps, "Hypothesis"))


def think(rng, twins):
    chance = Chance(rng)
    while True:
        yield chance.action(twins.model)


def test_long_sessions(record_property):
    explore(SEED, STEPS // 2, Twins, think)
    record_property("model steps", (STEPS // 2, f"MODEL_SEED={SEED}"))


def test_long_sessions_with_policies(record_property):
    explore(SEED, STEPS // 2, RuledTwins, ruled_think)
    record_property("model steps", (STEPS // 2, f"MODEL_SEED={SEED}, with policies"))
