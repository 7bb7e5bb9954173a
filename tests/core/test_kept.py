"""What a tube knows of the bodies of its jobs, where very many have the same."""

import gc
import random
import sys

from beanlite.core.kept import TWINS_MAX, Kept
from beanlite.core.wide import PART, WideDict

JOBS = 20 * PART


def dicts_of(thing):
    """Return all dicts that something refers to, however far from it."""
    found = [thing] if isinstance(thing, dict) else []
    for each in gc.get_referents(thing):
        if isinstance(each, dict | list | WideDict):
            found += dicts_of(each)
    return found


def kept_of(ids):
    kept = Kept()
    for job_id in ids:
        kept.add_twin(job_id, Kept.twin_key(1, 7))
    return kept


def test_no_dict_is_large_where_very_many_have_a_body():
    """A large one stalls the server as it grows, and as a put passes the holes of those that have left."""
    assert max(map(len, dicts_of(kept_of(range(1, JOBS))))) < 8 * PART


def test_memory_is_given_back_where_one_of_very_many_is_left():
    kept = kept_of(range(1, JOBS))
    full = sum(map(sys.getsizeof, dicts_of(kept)))
    for job_id in range(2, JOBS):
        kept.remove_twin(job_id)
    assert sum(map(sys.getsizeof, dicts_of(kept))) < full / 20
    assert list(kept.twins(Kept.twin_key(1, 7))) == [1]


def test_hidden_jobs_leave_no_memory_behind():
    kept = kept_of(range(1, JOBS))
    full = len(kept._twins), len(kept._beside)
    for _ in range(2):  # what is hidden can be hidden again, and what is shown can be shown
        for job_id in range(1, JOBS):
            kept.hide_twin(job_id)
    assert (len(kept._twins), len(kept._beside)) == (0, 0)
    for _ in range(2):
        for job_id in range(1, JOBS):
            kept.show_twin(job_id)
    assert (len(kept._twins), len(kept._beside)) == full


def test_jobs_with_a_body_are_in_the_order_in_which_they_came():
    chance, kept = random.Random(1), Kept()
    keys = [Kept.twin_key(1, 7), Kept.twin_key(2, 7)]
    shown: dict[int, list[int]] = {key: [] for key in keys}
    key_of: dict[int, int] = {}
    for _ in range(6_000):
        job_id = chance.randrange(1, 3 * TWINS_MAX)
        key = key_of.get(job_id)
        if key is None:
            key = key_of[job_id] = chance.choice(keys)
            kept.add_twin(job_id, key)
            shown[key].append(job_id)
        elif chance.random() < 0.4:
            kept.show_twin(job_id)
            if job_id not in shown[key]:
                shown[key].append(job_id)
        else:
            if chance.random() < 0.5:
                kept.hide_twin(job_id)
            else:
                del key_of[job_id]
                assert kept.remove_twin(job_id)
            if job_id in shown[key]:
                shown[key].remove(job_id)
        for each, ids in shown.items():
            assert list(kept.twins(each)) == ids[::-1][:TWINS_MAX]
