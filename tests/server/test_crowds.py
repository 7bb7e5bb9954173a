"""Memory has a bound whatever crowds of clients do, and what they do is counted."""

import resource

import pytest

from tests.performance.crowds import MEMORY, MIB, measure_memory

pytestmark = pytest.mark.nightly

BOUND_MIB = 256


@pytest.fixture(autouse=True)
def _many_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("kind", MEMORY, ids=lambda kind: kind.__name__)
def test_a_crowd_takes_little_more_than_the_bound(kind):
    empty_bytes, resident_bytes, counted_bytes = measure_memory(kind, BOUND_MIB)
    assert resident_bytes - empty_bytes < 1.25 * BOUND_MIB * MIB
    assert counted_bytes < 1.25 * BOUND_MIB * MIB
