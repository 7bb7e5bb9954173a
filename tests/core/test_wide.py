"""A dict for very many entries."""

import random
import sys

import pytest

from beanlite.core.wide import PART, WideDict

ENTRIES = 50 * PART


@pytest.mark.parametrize("step", [1, 2, 1000, 1 << 10, 1 << 20])
def test_parts_stay_small_whatever_the_distance_of_ids_is(step):
    wide = WideDict()
    for each in range(ENTRIES):
        wide.set(7 + each * step, each)
    assert len(wide) == ENTRIES
    assert max(map(len, wide._parts)) < 8 * PART


def test_wide_dict_is_like_a_dict():
    chance, wide, plain = random.Random(1), WideDict(), {}
    for _ in range(4 * ENTRIES):
        key = chance.randrange(2 * ENTRIES)
        if chance.random() < 0.3:
            assert wide.pop(key) == plain.pop(key, None)
        else:
            wide.set(key, key + 1)
            plain[key] = key + 1
        assert len(wide) == len(plain)
    assert all((wide.get(key), key in wide) == (plain.get(key), key in plain) for key in range(2 * ENTRIES))


@pytest.mark.parametrize("rest", [0, 1, ENTRIES // 100])
def test_wide_dict_with_few_entries_left_gives_memory_back(rest):
    wide = WideDict()
    for each in range(ENTRIES):
        wide.set(each, each)
    full = sum(map(sys.getsizeof, wide._parts))
    for each in range(rest, ENTRIES):
        wide.pop(each)
    assert sum(map(sys.getsizeof, wide._parts)) < full / 8


def test_wide_dict_is_freed_part_by_part():
    wide = WideDict()
    assert not wide.free_part()
    for each in range(4 * PART):
        wide.set(each, each)
    parts = 0
    while wide.free_part():
        parts += 1
    assert parts >= 4
