"""A small night, for whose server time runs fast."""

import json
import time
from contextlib import ExitStack

import pytest

from tests.night import past
from tests.night.live import Company
from tests.night.questions import QUESTIONS
from tests.night.script import DELETED_JOBS, TUBES, Night
from tests.support.fast_time import TIMES, start_fast
from tests.support.servers import free_port
from tests.support.surfaces import Surfaces
from tests.support.wire import until

# What is wrong for as long as the night lasts; tests of single incidents look at the others on all surfaces.
LASTING = ("hung", "crash loop", "nobody consumes", "refused", "shut", "paused", "left buried")
PASSING = {"growing", "storm due", "late"}


@pytest.fixture
def night():
    return Night(seed=1, scale=0.05)


def test_all_surfaces_tell_the_incidents_of_a_night(night, tmp_path, capsys):
    database, health = past.write(night, tmp_path), f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        server = start_fast(tmp_path, "--health", health, "--db", str(database))
        # Its clients end with the server.
        stack.enter_context(Company(night, server, times=TIMES))
        surfaces = Surfaces(stack.enter_context(server), health, capsys, stack)
        seen = set()
        until(lambda: seen.update(surfaces.why()[1]) or seen >= PASSING)
        for kind in LASTING:
            finding = surfaces.told(kind)
            assert finding["worst"][0]["tube"] in {tube.name for tube in TUBES}


def test_night_is_the_same_by_its_seed(night):
    again = Night(night.seed, night.scale, begins_at=night.begins_at)
    assert again.jobs == night.jobs
    assert Night(2, night.scale, begins_at=night.begins_at).jobs != night.jobs


@pytest.mark.parametrize("hour", range(0, 24, 2))
def test_pause_of_the_night_is_not_over_at_any_time_of_the_day(night, hour):
    at = time.mktime((*time.localtime(night.begins_at)[:3], hour, 15, 0, 0, 0, -1))
    (pause,) = [act for act in Night(1, 0.05, begins_at=at).acts if act.what == "pause"]
    assert 0 <= pause.ago_s < pause.delay_s


def test_deleted_jobs_are_in_the_history_with_their_bodies(night):
    rows = past.history(night)
    bodies = [json.loads(row[-1]) for row in rows if row[4] == "delete"]
    assert [body["customer"] for body in bodies] == DELETED_JOBS * [4711]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


def test_each_of_thirty_questions_has_an_answer(night):
    assert len({question.asks for question in QUESTIONS}) == 30
    assert all(question.answer(night) for question in QUESTIONS)
