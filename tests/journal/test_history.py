"""The history of jobs in the file: every event, in order, for as long as it is to be kept."""

import random
from collections import Counter
from contextlib import closing

import pytest

from beanlite.core.job import RESERVED, SECOND_NS, SLICE
from beanlite.core.totals import Tally
from beanlite.errors import JournalFull
from beanlite.host.clock import Clock, utc_s
from beanlite.journal.event_rows import OPERATORS_KEPT_S, ROW_BYTES, HistoryBounds
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.room import Room
from beanlite.journal.sqlite.file.wal import commit_frames
from beanlite.journal.sqlite.served.batch import batch_of
from beanlite.journal.sqlite.served.history import INSERTS
from beanlite.journal.sqlite.served.totals import prune_totals
from beanlite.journal.sqlite.served.writer import Writer
from beanlite.journal.totals import DAY_S, HOUR_S, Totals
from tests.support.core import Core, put
from tests.support.inside import serving
from tests.support.operators import Operator

ALL = HistoryBounds(7 * DAY_S, 1 << 30, bodies=False)


class Kept:
    """A core whose batches are written when a test calls for it."""

    def __init__(self, writer):
        self.core = Core()
        self.core.now_ns = Clock()()  # or all events would be too old
        self.writer = writer

    def store(self):
        engine = self.core.engine
        while True:
            changes = engine.take_changes(deferred=True, totals=True)
            self.writer.write(batch_of(changes, self.writer.chronicle.history))
            engine.stored(changes.batch, changes.last_id)
            if not engine.ledger.has_deferred and not engine.ledger.tallied:
                break

    def ask(self, sql):
        return self.writer._db.execute(sql).fetchall()


@pytest.fixture
async def keep(tmp_path):
    writers = []

    async def begin(bounds, *, recording=True):
        writers.append(Writer(open_database(tmp_path / f"{len(writers)}.db"), "unix:socket", bounds, Clock(), 0))
        writers[-1].prepare()
        await writers[-1].start()
        kept = Kept(writers[-1])
        kept.core.engine.ledger.recording, kept.core.engine.ledger.keeps_bodies = recording, bounds.bodies
        return kept

    yield begin
    for writer in writers:
        await writer.close()


async def test_a_start_on_a_full_disk_goes_on_behind_what_the_file_has(tmp_path, monkeypatch):
    told = []
    for _ in range(2):
        writer = Writer(open_database(tmp_path / "queue.db"), "unix:socket", ALL, Clock(), 0)
        assert writer.prepare() is not bool(told)  # the second time there is no room
        await writer.start()
        kept = Kept(writer)
        kept.core.engine.ledger.recording = True
        kept.core.engine.recovered(len(told), len(told))
        put(kept.core, kept.core.client())
        kept.store()
        told = kept.ask("SELECT n, job FROM history ORDER BY n")
        await writer.close()
        monkeypatch.setattr(Room, "take_reserve", lambda _: False)
    assert [job for _, job in told] == [1, 2]


async def test_job_made_ready_by_a_start_on_a_full_disk_is_written_later(tmp_path, monkeypatch):
    path = tmp_path / "queue.db"
    writer = Writer(open_database(path), "unix:socket", ALL, Clock(), 0)
    writer.prepare()
    await writer.start()
    kept = Kept(writer)
    kept.core.send(kept.core.client(), b"put 0 0 3600 0\r\n\r\nreserve\r\n")
    kept.store()
    assert kept.ask("SELECT state FROM jobs") == [("reserved",)]
    await writer.close()

    def write(_writer, _batch):
        monkeypatch.undo()
        raise JournalFull("no room")

    monkeypatch.setattr(Writer, "write", write)
    async with serving(path, history="1d"):
        pass
    with closing(open_database(path)) as database:
        assert database.connection.execute("SELECT state FROM jobs").fetchall() == [("ready",)]


def life(core):
    """Do everything that can happen to a job; return the events that the history must have."""
    first, second = core.client(), core.client()
    a, b = (core.sessions[each].client.peer.address for each in (first.client, second.client))
    job_id = put(core, first, b"body", pri=5, delay_s=3, ttr_s=2)
    core.wait(3)
    core.send(second, b"reserve\r\ntouch %d\r\n" % job_id)
    core.wait(2)
    core.send(second, b"reserve\r\nrelease %d 7 4\r\nkick-job %d\r\nreserve\r\nbury %d 9\r\n" % ((job_id,) * 3))
    core.send(first, b"kick 1\r\nreserve\r\n")
    core.close(first)
    core.send(second, b"delete %d\r\n" % job_id)
    return job_id, [
        ("put", a, 5, 3), ("delay over", None, 5, 0), ("reserve", b, 5, 0), ("touch", b, 5, 0),
        ("ttr over", b, 5, 0), ("reserve", b, 5, 0), ("release", b, 7, 4), ("kick", b, 7, 0), ("reserve", b, 7, 0),
        ("bury", b, 9, 0), ("kick", a, 9, 0), ("reserve", a, 9, 0), ("client gone", a, 9, 0), ("delete", b, 9, 0),
    ]  # fmt: skip


async def test_history_has_pauses(keep):
    kept = await keep(ALL)
    client = kept.core.client()
    by = client.client.peer
    kept.core.send(client, b"pause-tube default 600\r\npause-tube nowhere 5\r\npause-tube default 0\r\n")
    kept.store()
    told = kept.ask("SELECT what, job, tube, delay_s, by, conn FROM events ORDER BY n")
    assert told == [("pause", 0, "default", pause_s, by.address, by.number) for pause_s in (600, 0)]


async def test_history_has_all_of_a_life_within_one_batch(keep):
    kept = await keep(ALL)
    job_id, told = life(kept.core)
    kept.store()
    assert kept.ask("SELECT what, by, pri, delay_s FROM history ORDER BY n") == told
    assert kept.ask("SELECT DISTINCT job, tube, body FROM history") == [(job_id, "default", None)]
    assert kept.ask("SELECT count(*) FROM jobs") == [(0,)]


async def test_nothing_is_kept_unless_asked_for_but_what_operators_do(keep):
    kept = await keep(HistoryBounds(None, 1 << 30, bodies=False), recording=False)
    life(kept.core)
    kept.store()
    assert kept.ask("SELECT * FROM history") == []
    kept.core.engine.ledger.recording = True  # as while somebody watches events
    session = kept.core.client()
    job_id = put(kept.core, session)
    job = kept.core.engine.jobs[job_id]
    kept.core.engine.ledger.record(job, "move", session.client.peer, kept.core.now_ns, by_operator=True)
    kept.store()
    address = session.client.peer.address
    assert kept.ask("SELECT job, what, by FROM history") == [(job_id, "move", f"operator {address}")]


async def test_on_whose_behalf_something_was_done_stands_beside_the_address(keep):
    kept = await keep(ALL)
    operator = Operator(kept.core)
    operator.ask("put-jobs", jobs=[{"body": "x"}], by="ann")
    operator.ask("change-jobs", do="bury", ids=[1], by="Ann for Bob")
    operator.ask("change-jobs", do="kick", ids=[1])
    kept.store()
    address = operator.session.client.peer.address
    by = [f"{address} for ann", f"operator {address} for Ann for Bob", f"operator {address}"]
    assert [row for (row,) in kept.ask("SELECT by FROM history ORDER BY n")] == by
    ((n,),) = kept.ask("SELECT max(n) FROM history")
    assert n == 3 * ROW_BYTES + len("annAnn for Bob")


async def test_job_and_the_events_that_led_to_its_state_share_a_batch(keep):
    """A reservation is deferred, and its event waits with it."""
    kept = await keep(ALL)
    client = kept.core.client()
    job_id = put(kept.core, client)
    kept.store()
    kept.core.send(client, b"reserve\r\n")
    changes = kept.core.engine.take_changes(deferred=False)
    assert (changes.jobs, changes.events) == ([], [])
    kept.core.send(client, b"touch %d\r\n" % job_id)
    changes = kept.core.engine.take_changes(deferred=True)
    assert [job.id for job in changes.jobs] == [job_id]
    assert [event.what for event in changes.events] == ["reserve", "touch"]
    kept.core.send(client, b"touch %d\r\nrelease %d 0 0\r\nreserve\r\n" % (job_id, job_id))
    changes = kept.core.engine.take_changes(deferred=False)
    assert [job.state for job in changes.jobs] == [RESERVED]
    assert [event.what for event in changes.events] == ["touch", "release", "reserve"]


async def test_what_happens_to_several_jobs_is_in_its_order(keep):
    kept = await keep(ALL)
    client = kept.core.client()
    for _ in range(3):
        put(kept.core, client)
    kept.store()
    kept.core.send(client, b"reserve\r\n" * 3)
    kept.store()
    told = kept.ask("SELECT what, job FROM history ORDER BY n")
    assert told == [(what, job) for what in ("put", "reserve") for job in (1, 2, 3)]


async def test_an_event_of_an_operator_has_the_delay_of_the_job(keep):
    kept = await keep(ALL)
    session = kept.core.client(operator=True)
    put(kept.core, session, delay_s=100)
    for what in ('"move","to":"a"', '"reprioritise","pri":5', '"copy","to":"b","delay_s":50', '"copy","to":"b"'):
        request = b'{"ids":[1],"do":%b}' % what.encode()
        kept.core.send(session, b"change-jobs %d\r\n%b\r\n" % (len(request), request))
    kept.store()
    told = kept.ask("SELECT job, what, delay_s, by LIKE 'operator %' FROM history ORDER BY n")
    assert told == [
        (1, "put", 100, 0), (1, "move", 100, 1), (1, "reprioritise", 100, 1), (2, "put", 50, 1), (2, "copy", 50, 1),
        (3, "put", 0, 1), (3, "copy", 0, 1),
    ]  # fmt: skip


async def test_touches_in_a_row_are_one_event_until_it_is_stored(keep):
    kept = await keep(ALL)
    core = kept.core
    client = core.client()
    touch = b"".join(b"touch %d\r\n" % put(core, client) for _ in range(2))
    kept.store()
    core.send(client, b"reserve\r\nreserve\r\n" + touch)
    core.wait(1)
    core.send(client, touch)
    events = core.engine.take_changes(deferred=True).events
    assert sorted((event.job_id, event.what) for event in events) == [
        (1, "reserve"), (1, "touch"), (2, "reserve"), (2, "touch"),
    ]  # fmt: skip
    assert {event.at_ns for event in events if event.what == "touch"} == {core.now_ns}
    core.send(client, b"touch 1\r\n")
    core.wait(1)
    core.send(client, b"bury 1 0\r\nkick 1\r\nreserve\r\ntouch 1\r\ntouch 1\r\n")
    events = core.engine.take_changes(deferred=True).events
    assert [event.what for event in events] == ["touch", "bury", "kick", "reserve", "touch"]


async def test_touch_is_told_though_recording_ended_since_the_last_one(keep):
    kept = await keep(ALL)
    core = kept.core
    client = core.client()
    put(core, client)
    kept.store()
    core.send(client, b"reserve\r\n")
    core.engine.take_changes(deferred=True)
    ledger = core.engine.ledger
    core.send(client, b"touch 1\r\n")
    ledger.stop_recording()
    ledger.start_recording()
    core.send(client, b"touch 1\r\n")
    assert [event.what for event in core.engine.take_changes(deferred=True).events] == ["touch"]


@pytest.mark.parametrize("where", ["in memory", "in its row", "apart"])
async def test_the_bodies_of_deleted_jobs_are_kept_if_asked_for(keep, where):
    kept = await keep(ALL._replace(bodies=True))
    client = kept.core.client()
    body = b"x" * (5000 if where == "apart" else 100)
    job_id = put(kept.core, client, body)
    if where != "in memory":
        kept.store()
        kept.core.engine.bodies.unload(kept.core.engine.jobs[job_id])
    kept.core.send(client, b"delete %d\r\n" % job_id)
    kept.store()
    assert kept.ask("SELECT what, body FROM history ORDER BY n") == [("put", None), ("delete", body)]
    ((n,),) = kept.ask("SELECT max(n) - min(n) FROM history")
    assert n == ROW_BYTES + len(body)


async def test_what_is_too_old_goes_and_what_follows_it_stays(keep):
    kept = await keep(ALL)
    core, history = kept.core, kept.writer.chronicle.history
    client = core.client()
    for _ in range(10):
        put(core, client)
        core.now_ns += 10 * SECOND_NS
    kept.store()
    end_s = utc_s(core.now_ns)

    def prune(rows, now_s):
        return history.prune(kept.writer._db, rows, now_s), [job for (job,) in kept.ask("SELECT job FROM history")]

    assert prune(5, end_s) == (False, list(range(1, 11)))
    assert prune(5, end_s + 7 * DAY_S - 65) == (False, list(range(5, 11)))
    assert prune(2, end_s + 7 * DAY_S) == (True, list(range(7, 11)))
    assert prune(20, end_s + 7 * DAY_S) == (False, [])
    put(core, client)
    kept.store()
    assert prune(20, end_s + 1) == (False, [11])


async def test_the_oldest_goes_when_there_are_too_many_bytes(keep):
    kept = await keep(HistoryBounds(7 * DAY_S, 100 * ROW_BYTES, bodies=False))
    client = kept.core.client()
    for _ in range(30):
        for _ in range(10):
            put(kept.core, client)
        kept.store()
    ((first, last, count),) = kept.ask("SELECT min(job), max(job), count(*) FROM history")
    assert (last, count) == (300, last - first + 1)
    assert 100 <= count <= 110


async def test_what_operators_do_is_kept_where_nothing_else_is(keep):
    kept = await keep(HistoryBounds(None, 1 << 30, bodies=False), recording=False)
    core = kept.core
    client = core.client()
    job = core.engine.jobs[put(core, client)]
    core.engine.ledger.record(job, "move", client.client.peer, core.now_ns, by_operator=True)
    kept.store()
    history, now_s = kept.writer.chronicle.history, utc_s(core.now_ns)
    history.prune(kept.writer._db, SLICE, now_s + OPERATORS_KEPT_S - 1)
    assert len(kept.ask("SELECT * FROM history")) == 1
    history.prune(kept.writer._db, SLICE, now_s + OPERATORS_KEPT_S + 1)
    assert kept.ask("SELECT * FROM history") == []


MARKS = ", ".join("?" * 18)
WORDS = {"put": "put", "reserve": "reserved", "delete": "deleted", "release": "released", "ttr over": "timed_out"}
WORDS |= {"bury": "buried", "kick": "kicked", "client gone": "client_gone", "delay over": "delay_over"}
LINES = (
    b"put 0 0 2 1\r\nx\r\n", b"put 0 3 1 1\r\nx\r\n", b"reserve-with-timeout 0\r\n", b"release %d 0 0\r\n",
    b"release %d 0 2\r\n", b"bury %d 0\r\n", b"kick 2\r\n", b"kick-job %d\r\n", b"delete %d\r\n", b"touch %d\r\n",
)  # fmt: skip


def recount(history):
    """Compute the totals of each tube anew from the history: time, job, tube, what, delay."""
    counts = Counter()
    ready_since, held_since = {}, {}
    for at_s, job, tube, what, delay_s in history:
        if what in WORDS:
            counts[tube, WORDS[what]] += 1
        if what == "touch":
            continue
        if job in held_since:
            counts[tube, "held_s"] += at_s - held_since.pop(job)
        since = ready_since.pop(job, None)
        if what == "reserve":
            held_since[job] = at_s
            counts[tube, "waited_s"] += at_s - since if since is not None else 0
        elif not delay_s and what not in {"bury", "delete"}:
            ready_since[job] = at_s
    return counts


async def test_totals_are_those_of_the_history(keep):
    kept = await keep(ALL)
    core, rng = kept.core, random.Random(7)

    def connect(tube):
        client = core.client()
        core.send(client, b"use %b\r\nwatch a\r\nwatch b\r\n" % tube)
        return client

    clients = [connect(tube) for tube in (b"a", b"b", b"b")]
    for step in range(3000):
        jobs = list(core.engine.jobs.newest.values())
        job = rng.choice([None, *jobs[-2:], *(each for each in jobs if each.holder)])
        client = core.sessions[job.holder] if job and job.holder else rng.choice(clients)
        core.send(client, rng.choice(LINES).replace(b"%d", b"%d" % job.id if job else b"1"))
        core.wait(rng.choice((0, 0, 0.25)))
        if step % 50 == 0:
            kept.store()
            core.close(clients.pop())
            clients.append(connect(b"b"))
    kept.store()
    told = recount(kept.ask("SELECT at, job, tube, what, delay_s FROM history ORDER BY n"))
    columns = [*WORDS.values(), "waited_s", "held_s"]
    for name in ("a", "b"):
        for span_s in (HOUR_S, DAY_S):
            sums = ", ".join(f"sum({column})" for column in columns)
            rows = kept.ask(f"SELECT {sums} FROM totals WHERE tube = '{name}' AND span_s = {span_s}")  # noqa: S608
            assert rows == [tuple(pytest.approx(told[name, column]) for column in columns)]
            assert all(rows[0]), rows


async def test_totals_are_kept_by_the_hour_and_by_the_day_and_go_in_slices(keep):
    kept = await keep(ALL)
    put(kept.core, kept.core.client())
    (tally,) = kept.core.engine.take_changes(deferred=True, totals=True).tallies
    now_s = 400_000 * HOUR_S + 1234.5
    rows = Totals().rows([tally], now_s)
    assert [row[:4] for row in rows] == [
        (HOUR_S, 400_000 * HOUR_S, "default", 1), (DAY_S, 400_000 * HOUR_S // DAY_S * DAY_S, "default", 1)
    ]  # fmt: skip
    db = kept.writer._db
    for hours in range(0, 500 * 24, 12):
        for span_s in (HOUR_S, DAY_S):
            at_s = (now_s - hours * HOUR_S) // span_s * span_s
            row = (span_s, at_s, "t", *[0] * 15)
            db.execute(f"INSERT OR IGNORE INTO totals VALUES ({MARKS})", row)  # noqa: S608
    assert [prune_totals(db, now_s) for _ in range(2)] == [True, False]
    kept_days = dict(kept.ask("SELECT span_s, count(*) FROM totals GROUP BY span_s"))
    assert kept_days == {HOUR_S: 14 * 2, DAY_S: 400}


async def test_what_is_too_old_goes_in_one_commit(keep):
    """Each further one is one that a power failure could lose, beside the batch that is being synced."""
    writer = (await keep(ALL)).writer
    path = writer._database.path
    for row in Totals().rows([Tally(b"default")], DAY_S):
        writer._db.execute(f"INSERT INTO totals VALUES ({MARKS})", row)  # noqa: S608
    writer._db.execute(INSERTS[0], (60, DAY_S, 1, "default", "put", None, None, 0, 0))
    writer.chronicle.history.read(writer._db)
    before = len(commit_frames(path))
    assert writer.write_slice(3, writer.chronicle.prune) is False
    assert len(commit_frames(path)) == before + 1
    left = writer._db.execute("SELECT (SELECT count(*) FROM totals), (SELECT count(*) FROM history)").fetchall()
    assert left == [(0, 0)]
