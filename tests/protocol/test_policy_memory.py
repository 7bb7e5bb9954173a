"""A change of policies is refused if what tubes would have to know takes more memory than there is."""

import re

import pytest

from beanlite.core.kept import EXPIRY_BYTES, KEPT_BYTES, TWIN_BYTES
from tests.support.core import in_tube
from tests.support.operators import all_jobs

JOBS = 20


@pytest.fixture(params=[1, 5001], ids=["few tubes", "many tubes"])
def tubes(request):
    """How many tubes there are: of many, not each is looked at."""
    return request.param


def filled(core, tubes=1):
    """Put jobs into the tube q, and one into each of other tubes."""
    client = core.client()
    in_tube(core, client, b"q", JOBS)
    for number in range(tubes):
        in_tube(core, client, b"t%d" % number, 1)
    core.store()
    core.send(client, b"use default\r\n")


def leave(core, more_bytes):
    """Bound the memory so that so many bytes more can be taken, beside those for bodies."""
    memory = core.engine.memory
    core.engine.bound_memory(memory.used_bytes + more_bytes, 1 << 60, fetches=False)


def let(operator, **change):
    """Carry out a change that is not refused."""
    assert operator.ask("set-policy", **change)["changes"]


def price(core, operator, **change):
    """Carry out a change that needs memory; return how much it needs, which is all that it must have."""
    leave(core, 0)
    said = operator.refusal("set-policy", **change)
    match = re.fullmatch(r"what tubes have to know can take (\d+) bytes more, and max_memory is too small", said)
    assert match is not None, said
    needed_bytes = int(match[1])
    leave(core, needed_bytes - 1)
    assert operator.refusal("set-policy", **change) == said
    leave(core, needed_bytes)
    before = core.engine.memory.used_bytes
    let(operator, **change)
    core.wait(0)
    assert core.engine.memory.used_bytes - before <= needed_bytes
    return needed_bytes


@pytest.mark.parametrize("pattern", ["q", "q*"])
def test_what_a_policy_takes_is_what_is_then_charged(core, operator, pattern):
    filled(core)
    before = core.engine.memory.used_bytes
    needed = price(core, operator, pattern=pattern, set={"unique": "waiting"})
    assert needed == KEPT_BYTES + JOBS * TWIN_BYTES
    assert core.engine.memory.used_bytes - before == needed
    needed += price(core, operator, pattern=pattern, set={"ttl": "1d"})
    assert needed == KEPT_BYTES + JOBS * (TWIN_BYTES + EXPIRY_BYTES)
    assert core.engine.memory.used_bytes - before == needed


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": "q", "set": {"unique": "present", "ttl": "1d"}},
        {"pattern": "q", "unset": "all"},
        {"policies": [{"pattern": "*", "set": {"unique": "present", "ttl": "1d"}}], "prune": True},
    ],
)
def test_unset_exemption_takes_memory_as_a_set_key_does(core, operator, change, tubes):
    filled(core, tubes)
    let(operator, pattern="q", set={"unique": "off", "ttl": "off"})
    let(operator, pattern="*", set={"unique": "present", "ttl": "1d"})
    core.wait(0)
    assert price(core, operator, **change) == KEPT_BYTES + JOBS * (TWIN_BYTES + EXPIRY_BYTES)


def test_tube_that_has_its_first_rule_takes_memory(core, operator, tubes):
    filled(core, tubes)
    let(operator, pattern="q", set={"max_tries": 3})
    needed = price(core, operator, pattern="*", set={"max_tries": 5})
    assert needed == (len(core.engine.tubes) - 1) * KEPT_BYTES


def test_what_is_known_already_takes_no_memory_again(core, operator, tubes):
    filled(core, tubes)
    let(operator, pattern="*", set={"unique": "waiting", "ttl": "1d"})
    core.wait(0)
    leave(core, 0)
    used_bytes = core.engine.memory.used_bytes
    let(operator, pattern="*", set={"unique": "present", "ttl": "2d", "max_tries": 3})
    let(operator, pattern="q", set={"ttl": "3d"})
    core.wait(0)
    assert core.engine.memory.used_bytes == used_bytes


def test_glob_that_says_unique_otherwise_takes_no_memory(core, operator, tubes):
    filled(core, tubes)
    let(operator, pattern="q*", set={"unique": "waiting"})
    core.wait(0)
    leave(core, 0)
    let(operator, pattern="q*", set={"unique": "present"})


def test_full_memory_lets_policies_go(core, operator, tubes):
    filled(core, tubes)
    let(operator, pattern="*", set={"unique": "waiting", "ttl": "1d"})
    core.wait(0)
    leave(core, -10_000)
    let(operator, pattern="q", set={"unique": "off"})
    let(operator, pattern="*", unset="all")
    core.wait(0)
    assert (core.engine.counts.twins, core.engine.counts.ruled_tubes) == (0, 0)


def test_bodies_on_the_disk_do_not_count_against_another_rule(core, operator):
    filled(core)
    leave(core, 1 << 20)
    for job in all_jobs(core.engine):
        job.body = None  # as if unloaded: no checksum can be worked out
    let(operator, pattern="q", set={"unique": "waiting"})
    core.wait(0)
    leave(core, 0)
    let(operator, pattern="q", set={"unique": "present"})
    assert price(core, operator, pattern="q", set={"ttl": "1d"}) == JOBS * EXPIRY_BYTES


def test_knowledge_that_goes_makes_room_for_what_comes(core, operator):
    filled(core)
    let(operator, pattern="q", set={"unique": "waiting"})
    core.wait(0)
    leave(core, 0)
    let(operator, pattern="q", set={"ttl": "1d"}, unset=["unique"])


def test_job_that_was_looked_at_is_known_again_at_another_ttl(core, operator):
    filled(core)
    let(operator, pattern="q", set={"ttl": "1m"})
    core.wait(60)
    assert core.engine.counts.expiries == 0
    assert price(core, operator, pattern="q", set={"ttl": "1d"}) == JOBS * EXPIRY_BYTES
    assert core.engine.counts.expiries == JOBS
