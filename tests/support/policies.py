"""Policies for the core, without the commands that set them."""

from beanlite.core.policies import PolicyRow, check_row


def set_policy(core, pattern, **values):
    """Set the values of a policy, as an operator does."""
    rows = [PolicyRow(pattern, key, value, 947_000_000.0, "ann") for key, value in values.items()]
    for row in rows:
        check_row(*row[:3])
    core.engine.set_policies(rows, [], core.now_ns)
