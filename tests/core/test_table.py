"""Jobs that stand aside are found as before."""

import os
import random
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from beanlite.core import table as jobs_module
from beanlite.core.table import Jobs
from tests.support.sessions import Chance, Twins, explore

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(jobs_module, "NEWEST_MAX", 3)


@given(st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "set aside"]), st.integers(0, 99)), max_size=200))
def test_is_a_dict_of_all_and_keeps_none_that_is_empty(steps):
    jobs: Any = Jobs()
    model, last_id = {}, 0
    for step, number in steps:
        if step == "add":
            last_id += 1 + number % 3
            jobs[last_id] = model[last_id] = object()
        elif step == "remove" and model:
            job_id = list(model)[number % len(model)]
            if job_id in jobs:
                del jobs[job_id]
            else:
                jobs.remove_older(job_id)
            del model[job_id]
        elif step == "set aside":
            jobs.set_aside()
            assert dict.__len__(jobs) < 3
        assert jobs.count == len(model)
        assert all(jobs._aside)
    for job_id in range(last_id + 2):
        assert jobs.find(job_id) is model.get(job_id)
        if job_id in model:
            assert jobs[job_id] is model[job_id]
        else:
            with pytest.raises(KeyError):
                jobs[job_id]


def test_a_few_that_are_left_of_many_take_little_room():
    jobs: Any = Jobs()
    for job_id in range(4 * max(jobs_module._SHRINK_AT)):
        jobs[job_id] = object()
    jobs.set_aside()
    full = sys.getsizeof(jobs._aside[0])
    for job_id in range(1, len(jobs._aside[0])):
        jobs.remove_older(job_id)
    assert jobs.count == 1
    assert sys.getsizeof(jobs._aside[0]) < full / 1000


class TwinsThatStore(Twins):
    """A batch ends after each action, and with it come the moments at which jobs are set aside."""

    aside = 0

    def play(self, action):
        super().play(action)
        self.core.store()
        type(self).aside = max(self.aside, len(self.core.engine.jobs._aside))


def think(rng, twins):
    chance = Chance(rng, jobs_max=(60,))  # fewer are hardly ever set aside
    while True:
        yield chance.action(twins.model)


def test_sessions_see_no_difference(record_property):
    explore(SEED, 4000, TwinsThatStore, think)
    assert TwinsThatStore.aside > 5
    record_property("model steps", (4000, f"MODEL_SEED={SEED}"))
