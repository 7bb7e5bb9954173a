"""Totals that take long to write: while a transaction is open, PostgreSQL keeps all earlier versions of their rows."""

import pytest

from beanlite.core.totals import Tally
from beanlite.journal.postgres import journal, postponed
from beanlite.journal.postgres.postponed import PostponedTotals
from beanlite.journal.totals import DAY_S, HOUR_S
from tests.journal.postgres.serving import served, sql, until

PUTS = "SELECT coalesce(sum(put), 0)::bigint AS put FROM totals WHERE span_s = 3600"
SLOW_S = 1.0


def tallies(*names):
    made = [Tally(name) for name in names]
    for tally in made:
        tally.put = 1
    return made


def puts(rows):
    return {(row[0], row[1], row[2]): row[3] for row in rows}


@pytest.fixture
def totals():
    """Totals of which one round, at the beginning of a day, has taken long."""
    totals = PostponedTotals()
    assert len(totals.rows(tallies(b"mail"), DAY_S)) == 2
    totals.note(2, SLOW_S)
    return totals


def test_totals_that_are_written_soon_are_written_at_once():
    totals = PostponedTotals()
    for _ in range(3):
        assert puts(totals.rows(tallies(b"mail"), DAY_S)) == {(HOUR_S, DAY_S, "mail"): 1, (DAY_S, DAY_S, "mail"): 1}
        totals.note(2, 0.001)
    assert not totals.waiting


def test_totals_that_take_long_gather_for_longer_each_time(totals):
    rounds, now_s, gathered = [], float(DAY_S), 0
    while len(rounds) < 9:
        now_s += 1
        gathered += 1
        rows = totals.rows(tallies(b"mail"), now_s)
        if rows:
            assert puts(rows)[DAY_S, DAY_S, "mail"] == gathered
            rounds.append(gathered)
            gathered = 0
            totals.note(2, SLOW_S)
        else:
            totals.note(0, 0.0)  # other batches are stored meanwhile
    assert rounds == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    totals.rows([], now_s + 60)
    totals.note(2, 0.001)
    assert totals.rows(tallies(b"mail"), now_s + 60)


def test_time_for_many_totals_is_not_long():
    totals = PostponedTotals()
    totals.rows(tallies(b"mail"), DAY_S)
    totals.note(1000, 0.02)
    assert totals.rows(tallies(b"mail"), DAY_S)


def test_totals_that_gather_keep_their_hour(totals):
    assert totals.rows(tallies(b"mail"), DAY_S + 0.5) == []
    assert puts(totals.rows(tallies(b"mail"), DAY_S + HOUR_S)) == {
        (HOUR_S, DAY_S, "mail"): 1,
        (HOUR_S, DAY_S + HOUR_S, "mail"): 1,
        (DAY_S, DAY_S, "mail"): 2,
    }


def test_many_totals_that_have_gathered_are_written_in_parts(totals):
    for n in range(1000):
        assert totals.rows(tallies(b"%d" % n), DAY_S) == []
    parts = []
    while rows := totals.rows([], DAY_S + 1):
        parts.append(rows)
        totals.note(len(rows), SLOW_S)
    assert [len(part) for part in parts] == [400] * 5
    assert not totals.waiting


async def stored(serving):
    await until(lambda: not (serving.core.engine.ledger.tallied or serving.journal.busy))


async def test_totals_that_took_long_are_postponed_and_stored_at_the_stop(postgres, database, monkeypatch):
    for name, value in (("_SLOW_S", 0.4), ("_LEAST_S", 1e6), ("_LONGEST_S", 1e6)):
        monkeypatch.setattr(postponed, name, value)
    monkeypatch.setattr(journal, "LOOK_AFTER_S", 60.0)
    serving = await served(database, lease_s=100)
    for statement in (
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END'",
        "CREATE TRIGGER hold BEFORE UPDATE ON totals FOR EACH ROW EXECUTE FUNCTION hold()",
    ):
        await sql(postgres, database, statement)
    for _ in range(2):
        await serving.put()
        await stored(serving)
    assert [row["put"] for row in await sql(postgres, database, PUTS)] == [2]
    await serving.put()
    await stored(serving)
    assert [row["put"] for row in await sql(postgres, database, PUTS)] == [2]
    await sql(postgres, database, "DROP TRIGGER hold ON totals")
    await serving.stop()
    assert [row["put"] for row in await sql(postgres, database, PUTS)] == [3]
