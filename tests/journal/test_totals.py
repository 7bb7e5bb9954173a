"""The totals of tubes in the file: which tubes have rows of their own, also after a restart, and damaged rows."""

import time
from contextlib import closing

import pytest

from beanlite.core.totals import Tally
from beanlite.host.clock import Clock
from beanlite.journal import totals as totals_module
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served.batch import Batch
from beanlite.journal.sqlite.served.totals import add_totals, resume_totals
from beanlite.journal.sqlite.served.writer import Writer
from beanlite.journal.sqlite.tools.look import looking
from beanlite.journal.sqlite.tools.verify import verify
from beanlite.journal.totals import DAY_S, HOUR_S, REST, TUBES_MAX, Totals
from tests.support.journal_files import NO_HISTORY, unchecked


def tallies_of(names):
    made = [Tally(name) for name in names]
    for tally in made:
        tally.put = 1
    return made


def test_tubes_beyond_a_number_are_one_in_the_totals():
    totals = Totals()
    known = [b"%d" % n for n in range(TUBES_MAX)]
    assert len(totals.rows(tallies_of(known), DAY_S)) == 2 * TUBES_MAX
    later = totals.rows(tallies_of([b"new", b"7", b"newer"]), DAY_S + HOUR_S - 1)
    assert [row[:4] for row in later] == [
        (HOUR_S, DAY_S, "7", 1), (HOUR_S, DAY_S, "[rest]", 2), (DAY_S, DAY_S, "7", 1), (DAY_S, DAY_S, "[rest]", 2)
    ]  # fmt: skip
    next_hour = totals.rows(tallies_of([b"new", b"7"]), DAY_S + HOUR_S)
    assert [row[:4] for row in next_hour] == [
        (HOUR_S, DAY_S + HOUR_S, "new", 1), (HOUR_S, DAY_S + HOUR_S, "7", 1),
        (DAY_S, DAY_S, "7", 1), (DAY_S, DAY_S, "[rest]", 1),
    ]  # fmt: skip


def test_number_of_tubes_in_the_totals_stays_bounded_over_restarts(tmp_path):
    now_s = 400_000.25 * HOUR_S
    with closing(open_database(tmp_path / "queue.db")) as database:
        database.connection.execute("BEGIN")
        add_totals(database.connection, Totals().rows(tallies_of([b"earlier"]), now_s - HOUR_S))
        known = [b"%d" % n for n in range(TUBES_MAX - 2)]
        add_totals(database.connection, Totals().rows(tallies_of([*known, REST]), now_s))
        database.connection.execute("COMMIT")
        totals = Totals()
        resume_totals(database.connection, totals, now_s)
    rows = totals.rows(tallies_of([b"7", b"new", b"newer", b"newest"]), now_s)
    assert [(span_s, tube, count) for span_s, _, tube, count, *_ in rows] == [
        (HOUR_S, "7", 1), (HOUR_S, "new", 1), (HOUR_S, "newer", 1), (HOUR_S, "[rest]", 1),
        (DAY_S, "7", 1), (DAY_S, "new", 1), (DAY_S, "[rest]", 2),
    ]  # fmt: skip


async def test_totals_go_on_where_the_last_server_left_off(tmp_path, monkeypatch):
    monkeypatch.setattr(totals_module, "TUBES_MAX", 2)
    told = []
    for tubes in (b"ab", b"bc"):
        writer = Writer(open_database(tmp_path / "queue.db"), "unix:socket", NO_HISTORY, Clock(), 0)
        writer.prepare()
        await writer.start()
        tallies = tallies_of([b"%c" % tube for tube in tubes])
        writer.chronicle.write(
            Batch(1, 0, 0, 0, changes=[], settings=[], tallies=tallies, events=0, frames=0, body_bytes=0)
        )
        told = writer._db.execute("SELECT tube, sum(put) / 2 FROM totals GROUP BY tube ORDER BY tube").fetchall()
        await writer.close()
    assert told == [("[rest]", 1), ("a", 1), ("b", 2)]


@pytest.mark.parametrize("value", ["NULL", "1.5", "9e999"])
def test_unusable_row_of_totals_is_told_and_begins_anew(tmp_path, caplog, value):
    path = tmp_path / "queue.db"
    rows = Totals().rows(tallies_of([b"bad", b"good"]), DAY_S)
    with closing(open_database(path)) as database:
        add_totals(database.connection, rows)
    with unchecked(path) as connection:
        connection.execute(f"UPDATE totals SET put = {value} WHERE tube = 'bad'")  # noqa: S608 - our own words
    assert any("totals.put" in finding.said for finding in verify(path) if not finding.sound)
    with closing(open_database(path)) as database:
        add_totals(database.connection, rows)
        puts = database.connection.execute("SELECT tube, put FROM totals WHERE span_s = 3600 ORDER BY tube").fetchall()
    assert puts == [("bad", 1), ("good", 2)]
    assert [record.fields["tube"] for record in caplog.records] == ["bad", "bad"]
    assert all(finding.sound for finding in verify(path))


def test_hours_of_a_clock_that_was_ahead_are_not_recent(path):
    now_s = time.time()
    with closing(open_database(path)) as database:
        add_totals(database.connection, Totals().rows(tallies_of([b"now"]), now_s))
        add_totals(database.connection, Totals().rows(tallies_of([b"later"]), now_s + 3 * DAY_S))
    with looking(path) as look:
        assert [row["tube"] for row in look._rows("SELECT tube FROM rates", {})] == ["now"]
        for span_s in (HOUR_S, DAY_S):
            assert [row["tube"] for row in look.totals(span_s, 2, ["now", "later"])] == ["now"]
            assert len(look.totals_of_all(span_s, 2)) == 1
