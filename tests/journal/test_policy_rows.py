"""Policies and schedules in the file: a restart keeps them, damage is noticed, and nobody else may write them."""

import asyncio
import sqlite3
import time
from contextlib import closing

import pytest

from beanlite.core.events import BURY, POLICY, SCHEDULE, Event
from beanlite.core.recurrence import next_after
from beanlite.core.totals import Tally
from beanlite.core.tube import Peer, Tube
from beanlite.errors import JournalFailed, JournalRefused
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import WHAT_TO_DO
from beanlite.journal.sqlite.file.replay import read_state
from beanlite.journal.sqlite.served.batch import FRAMES_BESIDE_ROWS, FRAMES_PER_ROW, batch_of
from beanlite.journal.sqlite.tools.look import looking
from beanlite.journal.sqlite.tools.verify import verify
from beanlite.journal.totals import DAY_S
from tests.journal.test_audit import around_the_guards
from tests.journal.test_base import Serving, Sqlite
from tests.journal.test_history import ALL, keep
from tests.support.inside import ask, connect, serving
from tests.support.journal_files import unchecked
from tests.support.policies import policy, schedule, set_policies, set_schedules, told, unset_schedule

__all__ = ["keep"]

LARGE = b"x" * 100_000
COUNTED = "dead, expired, refused, duplicates, client_gone, delay_over"
RETRY = policy("mail.*", "retry", "5s..1h")


@pytest.fixture
def medium(tmp_path, disk):
    return Sqlite(tmp_path / "q.db", disk)


def yearly(name, **others):
    """Return a schedule that a server finds in time, so that it has nothing to do about it."""
    when, zone = "0 3 1 1 *", "Europe/Berlin"
    return schedule(name, when=when, zone=zone, next_at=next_after(when, zone, time.time()), **others)


@pytest.fixture
async def stopped(medium):
    """The file of a stopped server with policies and schedules."""
    serving = await Serving(medium).start()
    set_policies(serving.core.engine, RETRY, policy("mail.*", "max_tries", "5"), policy("a", "fair", "off"))
    set_schedules(serving.core.engine, yearly("nightly"), yearly("new", last_at=None, last_job=None, body=LARGE))
    await serving.put()
    await serving.stop()
    return medium._path


@pytest.mark.usefixtures("stopped")
async def test_restart_keeps_policies_and_schedules(medium):
    again = await Serving(medium).start()
    policies, schedules = told(again.core.engine)
    assert policies == [policy("a", "fair", "off"), policy("mail.*", "max_tries", "5"), RETRY]
    assert list(schedules) == ["new", "nightly"]
    before = Serving(medium).core
    set_schedules(before.engine, yearly("nightly"), yearly("new", last_at=None, last_job=None, body=LARGE))
    assert schedules == told(before.engine)[1]
    await again.stop()


@pytest.mark.usefixtures("stopped")
async def test_restart_knows_policies_before_it_restores_jobs(medium, monkeypatch):
    serving = Serving(medium)
    engine, policies = serving.core.engine, []
    restore = type(engine).restore
    monkeypatch.setattr(type(engine), "restore", lambda *some: (policies.extend(engine.policies.rows), restore(*some)))
    await serving.start()
    assert (b"mail.*", "retry") in policies
    await serving.stop()


async def test_batch_that_sets_and_unsets_a_key_stores_what_came_last(medium):
    serving = await Serving(medium).start()
    engine = serving.core.engine
    set_policies(engine, RETRY, policy("a", "ttl", "1h"))
    set_schedules(engine, schedule("gone"), schedule("back"))
    await serving.put()
    set_policies(engine, policy("b", "ttl", "1h"))
    set_policies(engine, unset=[(b"b", "ttl"), (b"mail.*", "retry"), (b"a", "ttl")])
    set_policies(engine, policy("a", "ttl", "2h"))
    unset_schedule(engine, "gone")
    unset_schedule(engine, "back")
    set_schedules(engine, schedule("back", pri=9), schedule("short-lived"))
    unset_schedule(engine, "short-lived")
    await serving.put()
    before = told(engine)
    await serving.stop()
    again = await Serving(medium).start()
    assert told(again.core.engine) == before
    assert before[0] == [policy("a", "ttl", "2h")]
    assert {name: values["pri"] for name, values in before[1].items()} == {"back": 9}
    await again.stop()


async def test_schedule_is_stored_as_it_was_when_its_batch_was_taken(keep):
    kept = await keep(ALL)
    engine = kept.core.engine
    each = schedule("nightly")
    set_schedules(engine, each)
    batch = batch_of(engine.take_changes(deferred=True), kept.writer.chronicle.history)
    before, each.next_at = each.next_at, 1.0
    kept.writer.write(batch)
    assert kept.ask("SELECT next_at FROM schedules") == [(before,)]


async def test_frames_of_policies_and_schedules_are_counted(keep):
    kept = await keep(ALL)
    engine = kept.core.engine
    set_policies(engine, *(policy(f"tube{number}", "max_tries", "5") for number in range(300)))
    set_schedules(engine, schedule("large", body=LARGE))
    batch = batch_of(engine.take_changes(deferred=True), kept.writer.chronicle.history)
    assert batch.frames == FRAMES_BESIDE_ROWS + FRAMES_PER_ROW * 301 + len(LARGE) // 4000
    before = kept.writer.frames.committed
    kept.writer.write(batch)
    assert kept.writer.frames.committed - before <= batch.frames


async def test_forgiven_reservations_outlive_a_restart(medium):
    serving = await Serving(medium).start()
    job = serving.core.engine.jobs[await serving.put()]
    job.reserves = 3
    job.own_past().forgiven = 2
    serving.core.engine.ledger.note(job)
    await serving.put()
    await serving.stop()
    assert [finding.said for finding in verify(medium._path) if not finding.sound] == []
    with looking(medium._path) as look:
        assert look.list_jobs({"limit": 1})["jobs"][0]["forgiven"] == 2
        assert look._rows("SELECT forgiven, tries FROM all_jobs WHERE id = 1", {}) == [{"forgiven": 2, "tries": 1}]
    again = await Serving(medium).start()
    assert (again.core.engine.jobs[1].past.forgiven, again.core.engine.jobs[1].tries) == (2, 1)
    await again.stop()


async def test_totals_have_what_happens_without_a_command(keep):
    kept = await keep(ALL)
    tally = Tally(b"mail")
    tally.put, tally.dead, tally.expired, tally.refused, tally.duplicates = 1, 2, 3, 4, 5
    tally.client_gone, tally.delay_over = 6, 7
    for _ in range(2):
        kept.writer._db.execute("BEGIN")
        changes = kept.core.engine.take_changes(deferred=True)
        changes.tallies = [tally]
        kept.writer._db.execute("COMMIT")
        kept.writer.write(batch_of(changes, kept.writer.chronicle.history))
    for view in ("hours", "days"):
        assert kept.ask(f"SELECT put, {COUNTED} FROM {view}") == [(2, 4, 6, 8, 10, 12, 14)]  # noqa: S608
    (rates,) = kept.ask(f"SELECT {COUNTED} FROM rates")  # noqa: S608
    assert [0, *rates] == sorted({0, *rates})


# -- history


def event(kept, what, body, *, by=None, key="", operator=False, tube=b"mail.*"):
    peer = Peer(f"policy {key}", 0) if key else by
    return Event(kept.core.now_ns, 0, Tube(tube, 1), what, peer, 0, 0, 0, body, by_operator=operator)


@pytest.mark.parametrize("bodies", [False, True])
async def test_history_has_what_was_set_and_which_policy_did_it(keep, bodies):
    kept = await keep(HistoryBounds(7 * DAY_S, 1 << 30, bodies=bodies))
    ann = Peer("10.0.0.1:1", 1, "ann")
    text = b'{"max_tries": "5"}'
    kept.core.engine.ledger.events += [
        event(kept, POLICY, text, by=ann, operator=True),
        event(kept, SCHEDULE, b"unset", by=ann, operator=True, tube=b"nightly"),
        event(kept, BURY, None, key="max_tries"),
    ]
    kept.store()
    by = "operator 10.0.0.1:1 for ann"
    assert kept.ask("SELECT what, tube, by, conn, text, body FROM events ORDER BY n") == [
        ("policy", "mail.*", by, 1, text.decode(), text),
        ("schedule", "nightly", by, 1, "unset", b"unset"),
        ("bury", "mail.*", "policy max_tries", None, None, None),
    ]
    (first, second, third) = kept.ask("SELECT n FROM history ORDER BY n")
    assert second[0] - first[0] == third[0] - second[0] + len("ann") + len("unset")
    assert first[0] > len(text)


async def test_look_tells_which_policy_did_it(keep):
    kept = await keep(ALL)
    kept.core.engine.ledger.events.append(event(kept, BURY, None, key="ttl"))
    kept.store()
    with looking(kept.writer._database.path) as look:
        job = look.show_job(0)
    assert job is not None
    (record,) = job["history"]
    assert (record["by"], record["policy"]) == (None, "ttl")


# -- damage


CHANGED = "the policy retry of mail.* has changed"
IMPOSSIBLE = "row of policies has impossible values ("
ROWS = [
    ("UPDATE policies SET value = '6s..1h' WHERE key = 'retry'", CHANGED),
    ("UPDATE policies SET changed_at = changed_at + 0.0001 WHERE key = 'retry'", CHANGED),
    ("UPDATE policies SET changed_by = 'bob' WHERE key = 'retry'", CHANGED),
    ("UPDATE policies SET said = NULL WHERE key = 'retry'", CHANGED),
    ("UPDATE policies SET pattern = 'mail!*' WHERE key = 'retry'", f"{IMPOSSIBLE}'mail!*' is neither"),
    ("UPDATE policies SET key = 'retri' WHERE key = 'retry'", f"{IMPOSSIBLE}'retri' is no key of a policy"),
    ("UPDATE policies SET value = 'soon' WHERE key = 'retry'", f"{IMPOSSIBLE}retry: 'soon' is"),
    ("UPDATE policies SET value = x'35' WHERE key = 'max_tries'", f"{IMPOSSIBLE}a policy has texts"),
    ("UPDATE policies SET changed_at = 9e999", f"{IMPOSSIBLE}a policy has texts"),
    ("UPDATE policies SET changed_by = NULL", f"{IMPOSSIBLE}a policy has texts"),
    ("UPDATE policies SET value = CAST(x'ff' AS TEXT)", ""),
    *(
        (f"UPDATE schedules SET {change} WHERE name = 'nightly'", "the schedule 'nightly' has changed")  # noqa: S608
        for change in (
            "timing = '0 4 * * *'",
            "zone = 'UTC'",
            "tube = 'other'",
            "body = x'00'",
            "body = 'text'",
            "pri = pri + 1",
            "ttr_s = NULL",
            "if_absent = 0",
            "once_if_missed = 1",
            "next_at = next_at + 0.0001",
            "last_at = NULL",
            "last_job = last_job + 1",
            "changed_at = 'x'",
            "changed_by = ''",
            "crc32 = NULL",
        )
    ),
    ("UPDATE schedules SET name = 'knightly' WHERE name = 'nightly'", "the schedule 'knightly' has changed"),
    ("UPDATE schedules SET zone = CAST(x'ff' AS TEXT)", ""),
]


@pytest.mark.parametrize(("damage", "said"), ROWS, ids=[damage for damage, _ in ROWS])
async def test_damaged_row_is_refused_and_found_by_verify(stopped, medium, damage, said):
    with unchecked(stopped) as connection:
        connection.execute(damage)
    with pytest.raises(JournalRefused) as caught:
        await Serving(medium).start()
    assert str(caught.value).startswith(f"{stopped} is damaged")
    assert said in str(caught.value)
    assert str(caught.value).endswith(WHAT_TO_DO)
    assert next(finding.check for finding in verify(stopped) if not finding.sound) in {"state", "sqlite"}


def test_sound_rows_are_counted_by_verify(tmp_path):
    open_database(tmp_path / "q.db").close()
    with unchecked(tmp_path / "q.db") as connection:
        connection.execute(
            "INSERT INTO policies (pattern, key, value, changed_at, changed_by, said)"
            " VALUES ('a', 'fair', 'true', 1.5, 'b', 'a fair true 6291456 b')"
        )
    said = {finding.check: finding.said for finding in verify(tmp_path / "q.db") if finding.sound}
    assert said["state"] == "last id 0, 0 pauses, 1 policies, 0 schedules, 0 notes"


# -- other programs


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO policies (pattern, key, value, changed_at, changed_by) VALUES ('a', 'fair', 'true', 1, 'me')",
        "UPDATE policies SET value = 'off'",
        "DELETE FROM policies",
        "INSERT INTO schedules VALUES ('mine', '', '', 'a', x'', 0, 1, 0, 0, 1.0, NULL, NULL, 1.0, '', 0)",
        "UPDATE schedules SET next_at = 0",
        "DELETE FROM schedules",
    ],
)
async def test_write_of_another_program_is_refused(stopped, statement):
    with closing(open_database(stopped)) as database:
        before = read_state(database.connection, stopped).policies
        with (
            closing(sqlite3.connect(stopped)) as outsider,
            pytest.raises(sqlite3.OperationalError, match="no such function: only_the_beanlite_server_may_write"),
        ):
            outsider.execute(statement)
        assert read_state(database.connection, stopped).policies == before


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE policies SET value = '4' WHERE key = 'max_tries'", "the policy max_tries of mail.*"),
        ("UPDATE policies SET changed_by = 'me' WHERE key = 'retry'", "the policy retry of mail.*"),
        ("DELETE FROM policies WHERE key = 'retry'", "the policy retry of mail.*"),
        (
            "INSERT INTO policies (pattern, key, value, changed_at, changed_by) VALUES ('b', 'fair', 'true', 1, 'me')",
            "the policy fair of b",
        ),
        ("UPDATE schedules SET body = x'00' WHERE name = 'nightly'", "the schedule nightly"),
        ("DELETE FROM schedules WHERE name = 'new'", "the schedule new"),
        ("UPDATE schedules SET name = 'mine' WHERE name = 'new'", "the schedule (mine|new)"),
    ],
)
async def test_change_around_the_guards_is_noticed(stopped, monkeypatch, statement, what):
    monkeypatch.setattr("beanlite.journal.sqlite.served.upkeep.AUDIT_REST_S", 0.0)
    async with serving(stopped) as (server, task):
        client = await connect(server)
        around_the_guards(stopped, statement)
        assert await ask(client, b"delete 1\r\n") == b"DELETED\r\n"
        with pytest.raises(JournalFailed, match=f"another program has changed {what.replace('*', '[*]')} in .*; it no"):
            await asyncio.wait_for(asyncio.shield(task), 10)


async def test_audit_finds_nothing_while_policies_and_schedules_change(stopped, monkeypatch):
    monkeypatch.setattr("beanlite.journal.sqlite.served.upkeep.AUDIT_REST_S", 0.0)
    async with serving(stopped) as (server, task):
        client = await connect(server)
        engine = server.parts.engine
        for number in range(30):
            around_the_guards(stopped, f"CREATE TABLE theirs{number} (x)")
            set_policies(engine, policy("a", "max_tries", str(number + 1)), policy(f"b{number}", "ttl", "1h"))
            set_schedules(engine, schedule("nightly", pri=number), schedule(f"s{number}"))
            assert (await ask(client, b"put 0 0 10 1\r\nx\r\n")).startswith(b"INSERTED")
        assert not task.done()
