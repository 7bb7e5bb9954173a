"""The views of policies and schedules."""

import os
import random
import sqlite3
from contextlib import closing

import pytest

from beanlite.core.policies import Policies
from beanlite.journal.policy_rows import row_of_policy
from beanlite.journal.schedule_rows import row_of_schedule
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.policy_tables import SET_POLICY, SET_SCHEDULE
from tests.support.journal_files import put
from tests.support.policies import effective, policies_by_chance, policy, schedule

SEED = int(os.environ.get("POLICIES_SEED") or random.randrange(1 << 32))


@pytest.fixture
def database(tmp_path):
    with closing(open_database(tmp_path / "q.db")) as database:
        yield database


def shown(database, *policies, tubes=()):
    """Return what the view shows to another program, of a file with these policies and tubes."""
    database.connection.executemany(SET_POLICY, map(row_of_policy, policies))
    for number, tube in enumerate(tubes, 1):
        put(database.connection, number, tube=tube)
    with closing(sqlite3.connect(database.path)) as reader:
        return reader.execute("SELECT * FROM tube_policies").fetchall()


def test_view_has_what_holds_for_each_tube(database):
    print(f"POLICIES_SEED={SEED}")  # noqa: T201 - shown if it fails
    policies, names = policies_by_chance(random.Random(SEED), 200)
    expected = effective(policies, names)
    assert len(expected) > 100
    assert shown(database, *policies, tubes=names) == expected


def test_view_shows_tubes_that_are_only_paused_or_named(database):
    database.connection.execute("INSERT INTO pauses VALUES ('paused', 60, 4e9)")
    policies = [policy("*", "ttl", "1h"), policy("named", "fair", "true"), policy("gl?b", "fair", "true")]
    assert shown(database, *policies, tubes=["a"]) == [
        ("a", "ttl", "1h", "*"),
        ("named", "fair", "true", "named"),
        ("named", "ttl", "1h", "*"),
        ("paused", "ttl", "1h", "*"),
    ]


@pytest.mark.parametrize(
    ("patterns", "winner"),
    [
        (["mail.d?", "*", "mail.*"], "mail.d?"),
        (["mail.de", "mail.d?"], "mail.de"),
        (["*.de", "mai*"], "*.de"),
        (["m*l.de", "ma*.de"], "m*l.de"),
        (["?ail.de", "*ail.de"], "*ail.de"),
        (["*ail.de", "**ail.de"], "**ail.de"),
        (["mail*", "mail**", "mail*?"], "mail*"),
    ],
)
def test_most_specific_pattern_wins(database, patterns, winner):
    policies = [policy(pattern, "ttl", "1h") for pattern in patterns]
    assert shown(database, *policies, tubes=["mail.de"])[-1] == ("mail.de", "ttl", "1h", winner)
    all_of_them = Policies()
    all_of_them.change(policies)
    assert all_of_them.effective(b"mail.de")["ttl"].pattern == winner.encode()


def test_schedules_are_shown_with_times_as_text(database):
    each = schedule("nightly", next_at=1.8e9, last_at=1.7e9 + 0.5, changed_at=1.6e9, body="größer".encode())
    database.connection.execute(SET_SCHEDULE, row_of_schedule(each))
    database.connection.execute(SET_SCHEDULE, row_of_schedule(schedule("daily", last_at=None, last_job=None, body=b"")))
    with closing(sqlite3.connect(database.path)) as reader:
        rows = reader.execute("SELECT name, next, last, changed, text, next_at FROM all_schedules").fetchall()
    assert rows[1] == ("nightly", "2027-01-15 08:00:00", "2023-11-14 22:13:20", "2020-09-13 12:26:40", "größer", 1.8e9)
    assert rows[0][2] is None
