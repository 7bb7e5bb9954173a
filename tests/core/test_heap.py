"""The heap against a sorted list, and how much of what was removed it keeps."""

import random

import pytest
from hypothesis import given, strategies as st

from beanlite.core.heap import MANY, ROW_MAX, SWEEP, KeyHeap


def filled(keys):
    heap = KeyHeap()
    for key in keys:
        heap.push(key)
    return heap


def emptied(heap):
    return [heap.pop() for _ in range(len(heap))]


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "remove", "again"]), st.integers(0, 1 << 80)), max_size=400))
def test_is_a_sorted_set_that_forgets_what_was_removed(steps):
    heap, model, removed = KeyHeap(), [], []
    for step, number in steps:
        if step == "push" and number not in model:
            heap.push(number)
            model.append(number)
        elif step == "again" and removed:
            key = removed.pop(number % len(removed))
            if key not in model:
                heap.push(key)
                model.append(key)
        elif step == "pop" and model:
            assert heap.pop() == min(model)
            model.remove(min(model))
        elif step == "remove" and model:
            key = model.pop(number % len(model))
            heap.remove(key)
            removed.append(key)
        assert len(heap) == len(model)
        assert (heap.keys[0] if heap.keys else None) == min(model, default=None)
        assert heap.about_up_to(number, 400) == sum(key <= number for key in model)
    assert emptied(heap) == sorted(model)


def test_keys_pushed_in_order_come_out_in_order():
    heap = filled(range(ROW_MAX))
    for key in range(ROW_MAX, 4 * ROW_MAX):  # more and more, beyond what is moved up
        heap.push(key)
        if key % 2:
            assert heap.pop() == key // 2 - ROW_MAX // 2
    assert emptied(heap) == list(range(3 * ROW_MAX // 2, 4 * ROW_MAX))


def test_key_that_does_not_fit_into_the_row_comes_out_in_its_place():
    heap = filled([2, 5, 8])
    heap.push(3)
    heap.push(1)
    heap.push(9)
    assert emptied(heap) == [1, 2, 3, 5, 8, 9]


def test_a_key_that_was_removed_can_come_back_and_is_there_once():
    heap = filled([1, 2, 3])
    for _ in range(1000):
        heap.remove(3)
        heap.push(3)
    assert len(heap.keys) == 3
    assert emptied(heap) == [1, 2, 3]


def test_removals_leave_little_behind():
    chance = random.Random(1)
    heap = filled(range(10_000))
    keys = list(range(1, 10_000))
    chance.shuffle(keys)
    for key in keys:
        heap.remove(key)
        assert len(heap.keys) - len(heap) <= 2 * 10_000 // SWEEP
    assert emptied(heap) == [0]


def test_coming_and_going_below_a_lasting_top_does_not_grow():
    heap = filled([0])
    for key in range(1, 100_000):
        heap.push(key)
        heap.remove(key)
    assert len(heap.keys) < 4 * SWEEP


def test_few_removed_entries_have_to_be_passed_when_the_top_goes():
    heap = filled(range(100_000))
    for key in range(10_000, 0, -1):
        heap.remove(key)
        assert len(heap.keys) - len(heap) <= 3 * MANY
    assert heap.pop() == 0
    assert heap.keys[0] == 10_001


@pytest.mark.parametrize("removed", [0, 3000])
def test_number_of_keys_up_to_a_bound_is_exact_or_estimated(removed):
    rng = random.Random(4)
    heap = KeyHeap()
    keys = rng.sample(range(100_000), 20_000)
    for key in keys:
        heap.push(key)
    for key in keys[:removed]:
        heap.remove(key)
    left = keys[removed:]
    for bound in (-1, 0, 50, 2000, 30_000, 99_999):
        count = sum(key <= bound for key in left)
        about = heap.about_up_to(bound, 1000)
        assert about == count if count <= 1000 else abs(about - count) < 0.2 * count
    assert KeyHeap().about_up_to(5, 10) == 0
