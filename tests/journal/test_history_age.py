"""Which events of the history are too old, also where the clock was wrong or the disk has changed them."""

from collections import Counter
from contextlib import closing

import pytest

from beanlite.core.events import PUT, Event
from beanlite.core.job import SECOND_NS
from beanlite.host.clock import EPOCH_S, Clock
from beanlite.journal.event_rows import ROW_BYTES, HistoryBounds
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served import history as history_module
from beanlite.journal.sqlite.served.history import INSERTS, History
from beanlite.journal.totals import DAY_S
from tests.support.core import Core, put
from tests.support.journal_files import unchecked

ALL = HistoryBounds(7 * DAY_S, 1 << 30, bodies=False)


@pytest.mark.parametrize("n", [(1 << 62), (1 << 63) - 61, (1 << 63) - 1])
def test_event_with_too_high_a_number_does_not_count_and_ages_out(tmp_path, n):
    with closing(open_database(tmp_path / "queue.db")) as database:
        database.connection.executemany(INSERTS[0], [(each, 1e9, 1, "t", "put", None, None, 0, 0) for each in (60, n)])
        history = History(ALL, Clock())
        history.read(database.connection)
        history.prune(database.connection, 500, 1e9)
        core = Core()
        core.engine.ledger.recording = True
        put(core, core.client())
        rows = history.rows_of(core.engine.take_changes(deferred=True).events)
        assert rows.values[0] == 60 + ROW_BYTES
        history.prune(database.connection, 500, 1e9 + 8 * DAY_S)
        assert database.connection.execute("SELECT n FROM history").fetchall() == []


@pytest.mark.parametrize("value", ["NULL", "'text'", "x'ff'", "CAST(x'ff' AS TEXT)"])
def test_an_event_whose_time_is_none_goes_first(tmp_path, value):
    path = tmp_path / "queue.db"
    with closing(open_database(path)) as database:
        database.connection.executemany(INSERTS[0], [(n, 1e9, n, "t", "put", None, None, 0, 0) for n in (60, 120)])
    with unchecked(path) as connection:
        connection.execute(f"UPDATE history SET at = {value} WHERE n = 60")  # noqa: S608 - our own words
    with closing(open_database(path)) as database:
        history = History(ALL, Clock())
        history.read(database.connection)
        history.prune(database.connection, 500, 1e9)
        assert database.connection.execute("SELECT n, at FROM history").fetchall() == [(120, 1e9)]


def test_events_in_the_future_do_not_keep_those_behind_them(tmp_path):
    """The machine's clock was wrong for a while."""
    with closing(open_database(tmp_path / "queue.db")) as database:
        times = [1e9, *[2e9] * 1000, 1e9 + 1, 2e9, 1e9 + 2, 1e9 + 5 * DAY_S]
        events = [(n, at_s, n, "t", "put", None, None, 0, 0) for n, at_s in enumerate(times, 1)]
        database.connection.executemany(INSERTS[0], events)
        history = History(ALL, Clock())
        history.read(database.connection)

        def left(at_s):
            while history.prune(database.connection, 100, at_s):
                pass
            return Counter(at for (at,) in database.connection.execute("SELECT at FROM history"))

        for _ in range(2):
            told = left(1e9 + 8 * DAY_S)
        assert told == {2e9: 1001, 1e9 + 5 * DAY_S: 1}
        assert left(1e9 + 13 * DAY_S) == {2e9: 1001}
        assert left(2e9 + 8 * DAY_S) == {}


def test_search_behind_events_in_the_future_is_no_long_one(tmp_path, monkeypatch):
    monkeypatch.setattr(history_module, "PASSED_MAX", 100)
    with closing(open_database(tmp_path / "queue.db")) as database:
        events = [(n, at_s, n, "t", "put", None, None, 0, 0) for n, at_s in enumerate([*[2e9] * 10_000, 1e9], 1)]
        database.connection.executemany(INSERTS[0], events)
        history = History(ALL, Clock())
        history.read(database.connection)
        steps = 0

        def count():
            nonlocal steps
            steps += 1

        database.connection.set_progress_handler(count, 10)
        calls = 1
        while history.prune(database.connection, 100, 1e9 + 8 * DAY_S):
            assert steps < 300
            steps = 0
            calls += 1
        database.connection.set_progress_handler(None, 0)
        assert calls > 100
        assert database.connection.execute("SELECT count(*) FROM history").fetchone() == (10_000,)
        assert not history.prune(database.connection, 100, 1e9 + 8 * DAY_S)


def test_future_events_keep_none_behind_them_if_the_clock_is_ahead(tmp_path):
    """A server's clock may be, by half a second, so that whatever it records is in the future for a moment."""
    with closing(open_database(tmp_path / "queue.db")) as database:
        database.connection.execute(INSERTS[0], (1, 2e9, 1, "t", "put", None, None, 0, 0))
        history = History(ALL, Clock(lambda: 0, lambda: 0))
        history.read(database.connection)
        tube = Core().engine.tubes[b"default"]
        for number in range(3):
            event = Event(number * SECOND_NS, 1, tube, PUT, None, 0, 0, 0, None, by_operator=False)
            database.connection.execute(INSERTS[0], history.rows_of([event]).values)
            history.prune(database.connection, 100, EPOCH_S + number - 0.4)
        history.prune(database.connection, 100, EPOCH_S + 8 * DAY_S)
        assert database.connection.execute("SELECT at FROM history").fetchall() == [(2e9,)]


def test_bytes_that_no_number_reaches_keep_all_that_is_young(tmp_path):
    """Such as 10EiB, for a history that only its age is to bound."""
    with closing(open_database(tmp_path / "queue.db")) as database:
        events = [(n, at_s, n, "t", "put", None, None, 0, 0) for n, at_s in ((60, 1e9), (120, 1e9 + DAY_S))]
        database.connection.executemany(INSERTS[0], events)
        history = History(HistoryBounds(7 * DAY_S, 10 << 60, bodies=False), Clock())
        history.read(database.connection)
        history.prune(database.connection, 500, 1e9 + 7.5 * DAY_S)
        assert database.connection.execute("SELECT n FROM history").fetchall() == [(120,)]
