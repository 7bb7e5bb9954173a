"""A policy as a row of a database, whatever the database, and as a line of an export."""

from collections.abc import Sequence
from typing import Final

from beanlite.core.policies import GLOBS_MAX, ROWS_MAX, PolicyRow, check_row, is_glob
from beanlite.errors import BeanliteError
from beanlite.journal.columns import as_list
from beanlite.journal.lines import line_of
from beanlite.journal.validity import is_time

NAMES: Final = ("pattern", "key", "value", "changed_at", "changed_by")
COLUMNS: Final = as_list(NAMES)
REPLACED: Final = as_list(tuple(f"{name} = excluded.{name}" for name in NAMES))
"""What replaces a row of the same pattern and key."""


def row_of_policy(policy: PolicyRow) -> tuple[str, str, str, float, str]:
    """Return the values of the columns."""
    return policy.pattern.decode(), policy.key, policy.value, float(policy.changed_at), policy.changed_by


def policy_of(values: Sequence[object]) -> PolicyRow:
    """Return the policy with these values of the columns. ValueError: no server writes such a row."""
    pattern, key, value, changed_at, changed_by = values
    if not (
        isinstance(pattern, str)
        and isinstance(key, str)
        and isinstance(value, str)
        and isinstance(changed_by, str)
        and is_time(changed_at)
    ):
        raise ValueError("a policy has texts, but for its changed_at, a time in seconds since 1970")
    row = PolicyRow(pattern.encode(errors="surrogateescape"), key, value, float(changed_at), changed_by)
    check_row(row.pattern, row.key, row.value)
    return row


def check_patterns(patterns: Sequence[str]) -> None:
    """Check that there may be policies with these patterns after an import. BeanliteError: they are too many."""
    if len(patterns) > ROWS_MAX:
        raise BeanliteError(
            f"nothing was imported: there would be {len(patterns)} policies, each key counted; there can be {ROWS_MAX}"
        )
    globs = {pattern for pattern in patterns if is_glob(pattern.encode())}
    if len(globs) > GLOBS_MAX:
        raise BeanliteError(
            f"nothing was imported: there would be {len(globs)} patterns with * or ?; there can be {GLOBS_MAX}"
        )


def line_of_policy(policy: PolicyRow) -> str:
    """Return the line of an export."""
    return line_of("policy", dict(zip(NAMES, row_of_policy(policy), strict=True)))
