"""Schedules across the lives of servers, in simulated time and in real servers."""

import asyncio
import json
import sqlite3

import pytest

from beanlite.console.live import Live
from tests.support.operators import told
from tests.support.servers import start_beanlite
from tests.support.simulated import Client, settle, simulated
from tests.support.wire import until


async def ask(client, word, **what):
    body = json.dumps(what).encode()
    return told(await client.ask(b"%b %d\r\n%b\r\n" % (word.encode(), len(body), body)))


def test_an_hour_of_a_minutely_schedule_puts_60_jobs():
    async def play(server, _journal):
        operator = Client(server)
        await ask(operator, "set-schedule", name="x", when="* * * * *", tube="t", body="x", if_absent=False)
        await asyncio.sleep(3600)
        await settle()
        assert len(server.parts.engine.jobs) == 60

    assert simulated(play) is None


def test_worker_is_given_a_scheduled_job_once_it_is_stored():
    async def play(server, journal):
        operator, worker = Client(server), Client(server)
        await ask(operator, "set-schedule", name="x", when="every 1h", tube="default", body="x")
        assert await worker.ask(b"reserve\r\n") == b""
        journal.holds = True
        await asyncio.sleep(3600)
        await settle()
        assert worker.said == b""
        journal.holds = False
        journal.let_go()
        await settle()
        assert worker.said == b"RESERVED 1 1\r\nx\r\n"

    assert simulated(play) is None


def test_set_schedule_is_answered_once_it_is_stored():
    async def play(server, journal):
        operator = Client(server)
        journal.holds = True
        body = b'{"name": "x", "when": "every 1h", "tube": "t", "body": "x"}'
        assert await operator.ask(b"set-schedule %d\r\n%b\r\n" % (len(body), body)) == b""
        journal.holds = False
        journal.let_go()
        await settle()
        assert operator.said.startswith(b"OK ")

    assert simulated(play) is None


def test_next_time_is_stored_even_if_nothing_was_put():
    async def play(server, journal):
        def commit(changes):
            batches.extend((name, schedule.next_at) for name, schedule in changes.schedules)
            store(changes)

        batches, store = [], journal.commit
        operator = Client(server)
        await ask(operator, "set-schedule", name="x", when="every 1h", tube="t", body="x")
        await asyncio.sleep(3600)
        await settle()
        journal.commit = commit
        await asyncio.sleep(3600)
        await settle()
        assert len(server.parts.engine.jobs) == 1
        assert batches == [("x", server.parts.engine.schedules["x"].next_at)]

    assert simulated(play) is None


# -- with a file


def _wait_for_jobs(live, more):
    before = live.stats()["current-jobs-ready"]
    until(lambda: live.stats()["current-jobs-ready"] >= before + more)


def _tick(live):
    (schedule,) = live.ask("list-schedules", {})["schedules"]
    return schedule


def test_schedule_outlives_kills_and_each_second_is_put_once(tmp_path):
    """Seconds that no server has seen are made up for by the next one."""
    request = {"name": "tick", "when": "every 1s", "tube": "t", "body": "x", "if_absent": False}
    for life in range(4):
        with start_beanlite(tmp_path) as server:
            with Live((server.host, server.port)) as live:
                if not life:
                    first_at = live.ask("set-schedule", request)["next_at"]
                _wait_for_jobs(live, 2)
            server.kill()
    with start_beanlite(tmp_path) as server, Live((server.host, server.port)) as live:
        jobs, before, after = [], None, _tick(live)
        while before != after:  # a second may come in between
            before, jobs = after, live.list_jobs({"tube": "t", "limit": 200})["jobs"]
            after = _tick(live)
    assert (len(jobs), jobs[-1]["id"]) == (after["next_at"] - first_at, after["last_job"])


def test_schedule_is_in_the_file_and_its_changes_are_in_the_history(tmp_path):
    with start_beanlite(tmp_path) as server, Live((server.host, server.port)) as live:
        request = {"name": "nightly", "when": "0 3 * * *", "tube": "reports", "body": "x", "by": "ann"}
        live.ask("set-schedule", request)
        live.ask("run-schedule", {"name": "nightly", "by": "bob"})
        live.ask("set-schedule", request | {"name": "other"})
        live.ask("unset-schedule", {"name": "other", "by": "ann"})
    with sqlite3.connect(f"file:{tmp_path / 'queue.db'}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT name, last_job, changed_by FROM schedules").fetchall()
        events = connection.execute("SELECT what, job, tube, by FROM history ORDER BY n").fetchall()
    connection.close()
    assert rows == [("nightly", 1, "ann")]
    assert [event[:3] for event in events] == [("schedule", 0, "reports")] * 3
    assert all(event[3].startswith("operator 127.0.0.1") and event[3].endswith(" for ann") for event in events)


@pytest.mark.parametrize("if_absent", [True, False])
def test_last_job_is_known_after_a_restart(if_absent, tmp_path):
    request = {"name": "tick", "when": "every 1s", "tube": "t", "body": "x", "if_absent": if_absent}
    with start_beanlite(tmp_path) as server, Live((server.host, server.port)) as live:
        live.ask("set-schedule", request)
        until(lambda: live.stats()["current-jobs-ready"] >= 1)
    with start_beanlite(tmp_path) as server, Live((server.host, server.port)) as live:
        before = live.ask("list-schedules", {})["schedules"][0]["next_at"]
        until(lambda: live.ask("list-schedules", {})["schedules"][0]["next_at"] >= before + 2)
        assert (live.stats()["current-jobs-ready"] == 1) == if_absent
