"""Export, import and salvage of policies and schedules."""

import json
import shutil
from contextlib import closing

import pytest

from beanlite.cli import main
from beanlite.errors import BeanliteError
from beanlite.journal.migrations import find_migrations
from beanlite.journal.policy_rows import row_of_policy
from beanlite.journal.schedule_rows import row_of_schedule
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.policy_tables import SET_POLICY, SET_SCHEDULE
from beanlite.journal.sqlite.file.replay import read_state
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.compact import compact
from beanlite.journal.sqlite.tools.load import load
from beanlite.journal.sqlite.tools.salvage import salvage
from beanlite.journal.sqlite.tools.verify import verify
from tests.journal.test_dump import exported, lines_of
from tests.journal.test_salvage import root_of, wipe
from tests.support.journal_files import put, unchecked
from tests.support.policies import AT_S, policy, schedule
from tests.support.sqlite_tool import tell

POLICIES = [policy("a", "fair", "off"), policy("mail.*", "retry", "5s..1h", changed_at=1.8e9)]
SCHEDULES = [
    schedule("nightly", body="größer".encode(), last_job=2, next_at=1.9e9),
    schedule("zero", last_at=None, last_job=None, body=b"\xff" * 10_000, if_absent=False, once_if_missed=True),
]
LINES = [
    {
        "kind": "policy",
        "pattern": "mail.*",
        "key": "retry",
        "value": "5s..1h",
        "changed_at": 1.8e9,
        "changed_by": "10.0.0.1:1 for änn",
    },
    {
        "kind": "schedule",
        "name": "nightly",
        "timing": "0 3 * * *",
        "zone": "Europe/Berlin",
        "tube": "reports",
        "body": "größer",
        "pri": 7,
        "ttr_s": 60,
        "if_absent": True,
        "once_if_missed": False,
        "next_at": 1.9e9,
        "last_at": AT_S + 1 / 3,
        "last_job": 2,
        "changed_at": AT_S,
        "changed_by": "ann",
    },
]
POLICY, SCHEDULE = LINES
JOB = {
    "kind": "job", "tube": "a", "state": "ready", "pri": 1, "delay_s": 0, "ttr_s": 1, "created_at": 1.0, "since": 1.0,
    "reserves": 0, "timeouts": 0, "releases": 0, "buries": 0, "kicks": 0, "body": "x",
}  # fmt: skip


def make(path, policies=POLICIES, schedules=SCHEDULES):
    """Make a stopped file with them, and with two jobs."""
    with closing(open_database(path)) as database:
        put(database.connection, 1)
        put(database.connection, 2)
        database.connection.executemany(SET_POLICY, map(row_of_policy, policies))
        database.connection.executemany(SET_SCHEDULE, map(row_of_schedule, schedules))
        database.connection.execute("UPDATE meta SET last_id = 9, jobs = 2")
        database.connection.execute(
            "INSERT INTO server (one, version, pid, address, started_at, seen_at) VALUES (1, '', 1, '', 1, 1)"
        )


@pytest.fixture
def path(tmp_path):
    make(tmp_path / "queue.db")
    return tmp_path / "queue.db"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target.db"


def stored(path):
    """Return the rows of policies and of schedules."""
    with closing(open_database(path)) as database:
        state = read_state(database.connection, path)
    return state.policies, list(map(row_of_schedule, state.schedules))


def as_lines(*records):
    return [json.dumps(record).encode() for record in records]


# -- export and import


def test_import_of_an_export_is_exact(path, target):
    lines = list(map(json.loads, lines_of(path)))
    assert [line["kind"] for line in lines] == ["queue", *["policy"] * 2, *["schedule"] * 2, "job", "job", "end"]
    assert [lines[2], lines[3]] == LINES
    result = load(lines_of(path), target)
    assert (result.jobs, result.pauses, result.policies, result.schedules) == (2, 0, 2, 2)
    assert exported(target) == exported(path)
    assert stored(target) == stored(path)
    assert [finding for finding in verify(target) if not finding.sound] == []


def test_import_replaces_what_is_there(path):
    load(as_lines(POLICY | {"value": "off"}, SCHEDULE | {"pri": 8}), path)
    policies, schedules = stored(path)
    assert [each.value for each in policies] == ["off", "off"]
    assert [row[5] for row in schedules] == [8, 7]


def test_import_with_new_ids_follows_the_last_job(path, target):
    make(target, [], [])
    others = SCHEDULE | {"name": "of-no-job", "last_job": 1}
    lines = [line for line in lines_of(path) if b'"id": 1,' not in line]
    load([*as_lines(others), *lines], target, new_ids=True)
    assert [(row[0], row[11]) for row in stored(target)[1]] == [("nightly", 10), ("of-no-job", None), ("zero", None)]


def test_import_takes_no_job_of_others_for_a_last_job(target):
    """Such a job would keep an if_absent schedule from putting any."""
    make(target, [], [])
    load(as_lines(SCHEDULE, SCHEDULE | {"name": "own", "last_job": 7}, JOB | {"id": 7}), target)
    assert [(row[0], row[11]) for row in stored(target)[1]] == [("nightly", None), ("own", 7)]
    # A schedule that was removed, and comes back, still has its job.
    load(as_lines(SCHEDULE | {"name": "back", "tube": "a", "body": "x", "last_job": 7}), target)
    assert [row[11] for row in stored(target)[1]] == [7, None, 7]


def test_job_that_comes_by_the_id_of_a_last_job_is_no_schedules(target):
    """The last job of a schedule that is there was deleted long ago."""
    schedules = [SCHEDULE | {"last_job": 7}, SCHEDULE | {"name": "own", "tube": "a", "body": "x", "last_job": 7}]
    load(as_lines(*schedules), target)
    load(as_lines(JOB | {"id": 7}), target)
    assert [(row[0], row[11]) for row in stored(target)[1]] == [("nightly", None), ("own", 7)]
    assert [finding for finding in verify(target) if not finding.sound] == []


def test_job_that_is_imported_with_its_schedule_is_its_last_one(target):
    """The schedule was changed after it had put that job."""
    load(as_lines(SCHEDULE | {"last_job": 7}), target)
    load(as_lines(SCHEDULE | {"last_job": 7}, JOB | {"id": 7}), target)
    assert [(row[0], row[11]) for row in stored(target)[1]] == [("nightly", 7)]


def test_import_gives_no_job_the_id_of_a_last_job(target):
    load(as_lines(SCHEDULE | {"last_job": 77}), target)
    with closing(open_database(target)) as database:
        assert read_state(database.connection, target).last_id == 77


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (POLICY | {"key": "fare"}, "'fare' is no key of a policy"),
        (POLICY | {"pattern": "mail!*"}, "'mail!*' is neither the name of a tube nor a pattern"),
        (POLICY | {"value": "soon"}, "retry: 'soon' is no duration"),
        (POLICY | {"value": 5}, "a policy has texts, but for its changed_at"),
        (POLICY | {"changed_at": 1795383356500000}, "a policy has texts, but for its changed_at"),
        (POLICY | {"tube": "a"}, "a policy has no tube"),
        ({"kind": "policy"}, "a policy has texts, but for its changed_at"),
        (SCHEDULE | {"tube": "a b"}, "a schedule has a name, a timing, a zone, a tube"),
        (SCHEDULE | {"name": ""}, "a schedule has a name, a timing, a zone, a tube"),
        (SCHEDULE | {"body": 5}, 'a "body" is a text'),
        (SCHEDULE | {"base64": "AA=="}, 'a schedule has either a "body" or a "base64"'),
        (SCHEDULE | {"pri": -1}, "the pri, the ttr_s or the last_job of the schedule is not a valid number"),
        (SCHEDULE | {"ttr_s": 0}, "the pri, the ttr_s or the last_job of the schedule is not a valid number"),
        (SCHEDULE | {"last_job": True}, "the pri, the ttr_s or the last_job of the schedule is not a valid number"),
        (SCHEDULE | {"last_job": 1 << 61}, "its last_job is not a valid number"),
        (
            SCHEDULE | {"if_absent": [1]},
            "the if_absent or the once_if_missed of the schedule is neither",
        ),
        (SCHEDULE | {"next_at": None}, "the next_at, the last_at or the changed_at of the schedule is no time"),
        (SCHEDULE | {"crc32": 1}, "a schedule has no crc32"),
        (SCHEDULE | {"name": "a b"}, "a schedule has a name of 1 to 128 printable characters, none of them a blank"),
        (SCHEDULE | {"name": "a\nb"}, "a schedule has a name of 1 to 128 printable characters, none of them a blank"),
        (SCHEDULE | {"name": "x" * 129}, "a schedule has a name of 1 to 128 printable characters, none of them"),
        pytest.param(
            SCHEDULE | {"body": "x" * 65_537}, "the body of a schedule's job has at most 65536 bytes", id="long body"
        ),
        (SCHEDULE | {"timing": "foo"}, "'foo' is neither every with a duration, such as every 5m, nor five fields"),
        (SCHEDULE | {"timing": "0 0 30 2 *"}, "'0 0 30 2 *' "),
        (SCHEDULE | {"timing": "every 5m"}, "every counts from 1970 in UTC, and takes no zone"),
        (SCHEDULE | {"zone": "Europe/Nowhere"}, "'Europe/Nowhere' is no zone such as Europe/Berlin"),
    ],
    ids=str,
)
def test_line_that_is_wrong_is_named_and_nothing_is_imported(path, line, said):
    before = exported(path)
    with pytest.raises(BeanliteError) as caught:
        load(as_lines(POLICY | {"value": "off"}, line), path)
    assert f"nothing was imported: line 2: {said}" in str(caught.value)
    assert exported(path) == before


@pytest.mark.parametrize(
    ("there", "more", "said"),
    [
        (
            [POLICY | {"pattern": f"a{number}.*"} for number in range(60)],
            [POLICY | {"pattern": f"b{number}.*"} for number in range(41)],
            "there would be 101 patterns with * or ?; there can be 100",
        ),
        (
            [POLICY | {"pattern": f"a{number}"} for number in range(600)],
            [POLICY | {"pattern": f"b{number}"} for number in range(401)],
            "there would be 1001 policies, each key counted; there can be 1000",
        ),
        (
            [SCHEDULE | {"name": f"a{number}"} for number in range(600)],
            [SCHEDULE | {"name": f"b{number}"} for number in range(401)],
            "there would be 1001 schedules; there can be 1000",
        ),
    ],
    ids=["patterns", "policies", "schedules"],
)
def test_import_of_more_than_a_server_would_take_is_refused(target, there, more, said):
    load(as_lines(*there), target)
    before = exported(target)
    with pytest.raises(BeanliteError) as caught:
        load(as_lines(*more), target)
    assert str(caught.value) == f"nothing was imported: {said}"
    assert exported(target) == before
    load(as_lines(*more[1:], *there[:5]), target)


def test_console_tells_how_many_were_imported_and_saved(path, target, capsys):
    assert main(["export", "--db", str(path), str(path.with_name("lines"))]) == 0
    assert main(["import", "--db", str(target), str(path.with_name("lines"))]) == 0
    assert main(["salvage", str(path), str(path.with_name("saved.db"))]) == 0
    said = capsys.readouterr().out
    assert "lines: 2 jobs, 0 pauses, 2 policies and 2 schedules exported\n" in said
    assert "target.db: 2 jobs, 0 pauses, 2 policies and 2 schedules imported\n" in said
    assert "saved.db: 2 jobs, 0 pauses, 2 policies, 2 schedules, " in said


# -- copies


def test_backup_and_compact_keep_policies_and_schedules(path, target):
    before = stored(path)
    backup(path, target)
    assert stored(target) == before
    compact(path)
    assert stored(path) == before


def test_file_of_the_version_before_has_none_and_can_be_read(tmp_path, target):
    folder = tmp_path / "four"
    folder.mkdir()
    for migration in find_migrations()[:4]:
        shutil.copy(migration, folder)
    path = tmp_path / "four.db"
    with closing(open_database(path, folder)) as database:
        database.connection.execute("INSERT INTO pauses VALUES ('default', 60, 4e9)")
    assert [json.loads(line)["kind"] for line in lines_of(path)] == ["queue", "pause", "end"]
    backup(path, target)
    assert stored(path) == ([], [])


# -- salvage


def test_salvage_saves_policies_and_schedules(path, target):
    result = salvage(path, target)
    assert (result.policies, result.schedules, result.is_all) == (2, 2, True)
    assert stored(target) == stored(path)
    assert [finding for finding in verify(target) if not finding.sound] == []


@pytest.mark.parametrize("kind", ["policy", "schedule", "pause"])
def test_salvage_saves_what_is_there_without_a_job_or_meta(target, kind):
    pause = {"kind": "pause", "tube": "a", "pause_s": 60, "until": 4e9}
    source = target.with_name("source.db")
    load(as_lines({"policy": POLICY, "schedule": SCHEDULE, "pause": pause}[kind]), source)
    wipe(source, root_of(source, "meta"))
    result = salvage(source, target)
    assert (result.jobs, result.policies + result.schedules + result.pauses) == (0, 1)
    assert [json.loads(line)["kind"] for line in lines_of(target)] == ["queue", kind, "end"]


def test_salvage_gives_no_job_the_id_of_a_last_job(target):
    source = target.with_name("source.db")
    load(as_lines(JOB | {"id": 3}, SCHEDULE | {"last_job": 5_000_000}), source)
    wipe(source, root_of(source, "meta"))
    salvage(source, target)
    with closing(open_database(target)) as database:
        assert read_state(database.connection, target).last_id >= 5_000_000


DAMAGES = [
    ("UPDATE policies SET value = '6s..1h' WHERE key = 'retry'", (1, 1, 2, 0)),
    ("UPDATE policies SET pattern = 'nail.*' WHERE key = 'retry'", (1, 1, 2, 0)),
    ("UPDATE policies SET changed_at = x'' WHERE key = 'retry'", (1, 1, 2, 0)),
    ("UPDATE policies SET said = CAST(said AS BLOB) WHERE key = 'retry'", (1, 1, 2, 0)),
    ("UPDATE policies SET said = replace(said, 'retry', 'rutry')", (1, 1, 2, 0)),
    ("UPDATE schedules SET body = x'00'", (2, 0, 0, 2)),
    ("UPDATE schedules SET next_at = next_at + 1 WHERE name = 'zero'", (2, 0, 1, 1)),
    ("UPDATE schedules SET tube = x'61' WHERE name = 'zero'", (2, 0, 1, 1)),
    ("UPDATE schedules SET name = 'zebra' WHERE name = 'zero'", (2, 0, 1, 1)),
]


@pytest.mark.parametrize(("damage", "counts"), DAMAGES, ids=[damage for damage, _ in DAMAGES])
def test_salvage_tells_of_lost_policies_and_schedules(path, target, damage, counts, capsys):
    with unchecked(path) as connection:
        connection.execute(damage)
    result = salvage(path, target)
    assert (result.policies, result.lost_policies, result.schedules, result.lost_schedules) == counts
    assert not result.is_all
    assert main(["salvage", str(path), str(target.with_name("again.db"))]) != 0
    lost = "1 policy" if counts[1] else "1 schedule" if counts[3] == 1 else "2 schedules"
    assert f"not saved from {path}: {lost}" in capsys.readouterr().err


def test_salvage_takes_no_rows_of_foreign_tables(path, target):
    tell(path, "CREATE TABLE theirs (a TEXT, b TEXT, c TEXT, d REAL, e TEXT, f TEXT)")
    tell(path, "INSERT INTO theirs VALUES ('x', 'fair', 'true', 1.5, 'me', 'a text of some words')")
    tell(path, f"CREATE TABLE wide ({', '.join(f'c{number}' for number in range(15))})")
    tell(path, f"INSERT INTO wide VALUES ({', '.join(['1.5'] * 15)})")  # noqa: S608 - our own words
    result = salvage(path, target)
    assert (result.policies, result.schedules, result.is_all) == (2, 2, True)
