"""What rules do to many jobs is done in slices, and nobody waits for it."""

from beanlite.core.job import SECOND_NS, SLICE
from beanlite.core.policies import PolicyRow
from tests.support.core import Core, put


def policy(core, pattern=b"default", **values):
    """Set a policy, as an operator does."""
    core.engine.set_policies(
        [PolicyRow(pattern, key, str(value), 0.0, "ann") for key, value in values.items()], [], core.now_ns
    )


def test_wait_ends_while_a_policy_is_applied_to_many_jobs():
    core = Core()
    producer, worker = core.client(), core.client()
    for _ in range(4 * SLICE):
        put(core, producer)
    assert core.send(worker, b"watch empty\r\nignore default\r\nreserve-with-timeout 1\r\n").endswith(b"WATCHING 1\r\n")
    core.now_ns += 2 * SECOND_NS
    policy(core, unique="present")
    core.engine.tick(core.now_ns)
    core._wake()
    assert worker.take_replies() == b"TIMED_OUT\r\n"
    assert core.engine.timers.next_ns <= core.now_ns
