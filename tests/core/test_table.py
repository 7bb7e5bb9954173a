"""A job is found by its id, whether it is among the newest or in a segment."""

import os
import random
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from beanlite.core import table as table_module
from beanlite.core.table import JobTable
from tests.support.jobs import Numbered
from tests.support.ruled_sessions import RULED, RuledChance
from tests.support.sessions import ACTIONS, Twins, explore

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(table_module, "NEWEST_MAX", 3)


@given(st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "make room"]), st.integers(0, 99)), max_size=200))
def test_has_all_jobs_and_keeps_no_segment_that_is_empty(steps):
    jobs: Any = JobTable()
    model, last_id = {}, 0
    for step, number in steps:
        if step == "add":
            last_id += 1 + number % 3
            jobs.newest[last_id] = model[last_id] = Numbered(last_id)
        elif step == "remove" and model:
            job_id = list(model)[number % len(model)]
            if job_id in jobs.newest:
                del jobs.newest[job_id]
            else:
                jobs.remove_older(job_id)
            del model[job_id]
        elif step == "make room":
            jobs.make_room()
            assert len(jobs.newest) < 3
        assert len(jobs) == len(model)
        assert all(segment.count for segment in jobs._segments)
        assert [job_id for _, part in reversed(jobs.segments()) for job_id in part] == sorted(model)
    for job_id in range(last_id + 2):
        assert jobs.find(job_id) is model.get(job_id)
        if job_id in model:
            assert jobs[job_id] is model[job_id]
        else:
            with pytest.raises(KeyError):
                jobs[job_id]


@pytest.mark.parametrize("step", [1, 10])
def test_a_few_jobs_left_of_many_take_little_room(step):
    jobs: Any = JobTable()
    ids = range(step, step * 4 * max(table_module._SHRINK_AT), step)
    jobs.newest.update((job_id, Numbered(job_id)) for job_id in ids)
    jobs.make_room()
    (segment,) = jobs._segments
    assert bool(segment._places) == (step == 1)
    for number, job_id in enumerate(ids[1:], 2):
        jobs.remove_older(job_id)
        if number % 100 == 0:
            assert size(segment) < 500 + 500 * len(jobs)
    assert len(jobs) == 1
    assert size(segment) < 500


def test_ids_of_a_few_jobs_left_in_each_segment_are_found_at_once():
    """Thousands of ids were probed in each segment, most of them below its first one."""
    jobs: Any = JobTable()
    kept = [*range(0, 1_000_000, 100_000), 1_000_001]
    for first_id in kept:
        jobs.newest.update((first_id + more, Numbered(first_id + more)) for more in (0, 10_000, 20_000))
        jobs.make_room()
    jobs.newest[2_000_000] = Numbered(2_000_000)
    for segment in jobs._segments:
        segment._few = Probed(segment._few)
    jobs.newest = Probed(jobs.newest)
    found = jobs.ids_after(-1, 4000)
    assert len(found) == 3 * len(kept) + 1
    assert sum(segment._few.probes for segment in jobs._segments) + jobs.newest.probes <= len(found)


class Probed(dict):
    """A dict that counts how often it is asked whether it has a key."""

    probes = 0

    def __contains__(self, key):
        self.probes += 1
        return super().__contains__(key)


def size(segment):
    return sys.getsizeof(segment._places) + sys.getsizeof(segment._few)


class TwinsThatStore(Twins):
    """A batch ends after each action, and so segments are made all the time."""

    segments = 0

    def play(self, action):
        super().play(action)
        self.core.store()
        type(self).segments = max(self.segments, len(self.core.engine.jobs._segments))


def think(rng, twins):
    chance = RuledChance(rng, jobs_max=(60,))  # fewer hardly ever make a segment
    kinds = rng.choice((ACTIONS, (*ACTIONS, *RULED)))
    while True:
        yield chance.ruled_action(twins.model, kinds)


def test_sessions_see_no_difference(record_property):
    explore(SEED, 4000, TwinsThatStore, think)
    assert TwinsThatStore.segments > 5
    record_property("model steps", (4000, f"MODEL_SEED={SEED}"))
