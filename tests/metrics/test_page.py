"""What the metrics say, of real servers."""

import asyncio
import contextlib
import gc
import signal
import time

import pytest
import uvloop

from beanlite.metrics import tubes, vitals
from tests.metrics.test_health import place, status_of
from tests.support.health import metrics, samples, start_watched
from tests.support.inside import connect, serving
from tests.support.wire import Wire, until


def wait_for(where, key, value):
    """A page is up to a second old, and what was counted of jobs is taken once a second."""
    end_s = time.monotonic() + 20
    while (found := metrics(where)).get(key) != value:
        assert time.monotonic() < end_s, (key, value, found.get(key))
        time.sleep(0.05)
    return found


def test_what_clients_do_is_in_the_metrics(tmp_path):
    server, where = start_watched(tmp_path)
    with server, server.connect() as connection, server.connect() as other:
        wire, waiting = Wire(connection), Wire(other)
        waiting.ask("watch idle")
        waiting.ask("ignore default")
        waiting.send(b"reserve\r\n")
        wire.ask("use mail")
        wire.ask("watch mail")
        wire.ask("nonsense")
        wire.ask("kick-job 999")
        for _ in range(5):
            wire.put(b"12345")
        wire.put(b"", delay_s=1000)
        for job_id in (1, 2, 3):
            assert wire.ask("reserve").startswith(f"RESERVED {job_id} ")
        wire.ask("delete 1")
        wire.ask("bury 2 0")
        found = wait_for(where, ("beanlite_job_events_total", "buried"), 1)
        server.stop()
    for state, jobs in {"ready": 2, "reserved": 1, "delayed": 1, "buried": 1}.items():
        assert found["beanlite_jobs", state] == jobs
        assert found["beanlite_tube_jobs", state, "mail"] == jobs
        assert found["beanlite_tube_jobs", state, "default"] == 0
    events = {"put": 6, "reserved": 3, "deleted": 1, "buried": 1, "kicked": 0, "timed_out": 0}
    for event, times in (events | {"client_gone": 0, "delay_over": 0}).items():
        assert found["beanlite_job_events_total", event] == times
        assert found["beanlite_tube_job_events_total", event, "mail"] == times
    assert found["beanlite_commands_total", "put"] == 6
    assert found["beanlite_error_replies_total", "NOT_FOUND"] == 1
    assert found["beanlite_error_replies_total", "UNKNOWN_COMMAND"] == 1
    assert found["beanlite_error_replies_total", "BAD_FORMAT"] == 0
    assert found["beanlite_connections",] == 2
    assert found["beanlite_waiting_clients",] == 1
    assert found["beanlite_tube_waiting_clients", "idle"] == 1
    assert found["beanlite_tube_watching_clients", "mail"] == 1
    assert found["beanlite_job_wait_seconds_count",] == 3
    assert found["beanlite_job_hold_seconds_count",] == 2
    assert found["beanlite_journal_sync_seconds_count",] >= 8
    assert found["beanlite_journal_commit_seconds_count",] >= 8
    assert found["beanlite_journal_batch_jobs_sum",] >= 8
    assert found["beanlite_command_seconds_count",] >= 15
    assert found["beanlite_loop_turn_seconds_count",] >= 15
    assert found["beanlite_ready",] == 1
    assert found["beanlite_wal_bytes",] > 0
    assert found["beanlite_database_bytes",] > 0
    assert found["beanlite_open_fds",] > 5
    assert found["process_open_fds",] == found["beanlite_open_fds",] < found["process_max_fds",]
    assert found["process_start_time_seconds",] == found["beanlite_start_time_seconds",]
    assert found["process_virtual_memory_bytes",] > found["process_resident_memory_bytes",] > 1 << 20
    assert found["process_cpu_seconds_total",] > 0
    assert (
        0 < found["beanlite_memory_free_bytes",] < found["beanlite_memory_limit_bytes",] * 15 / 16
    )  # the rest: bodies
    assert abs(time.time() - found["beanlite_start_time_seconds",]) < 60


def test_size_of_a_file_that_was_renamed_is_left_out(tmp_path):
    server, where = start_watched(tmp_path)
    with server:
        (tmp_path / "queue.db").rename(tmp_path / "renamed.db")
        until(
            lambda: ("beanlite_database_bytes",) not in (found := metrics(where)) and found["beanlite_wal_bytes",] > 0
        )
        assert "Traceback" not in server.log_text()


def test_a_tube_goes_and_its_series_with_it(tmp_path):
    server, where = start_watched(tmp_path)
    with server, server.connect() as connection:
        wire = Wire(connection)
        wire.ask("use short")
        wait_for(where, ("beanlite_tube_jobs", "ready", "short"), 0)
        wire.ask("use default")
        found = wait_for(where, ("beanlite_tube_jobs", "ready", "short"), None)
    assert not [key for key in found if "short" in key]


def test_a_paused_tube(tmp_path):
    server, where = start_watched(tmp_path)
    with server, server.connect() as connection:
        Wire(connection).ask("pause-tube default 1000")
        wait_for(where, ("beanlite_tube_paused", "default"), 1)


def test_what_policies_do_is_in_the_metrics(tmp_path):
    server, where = start_watched(tmp_path, "--no-journal")
    with server, server.connect() as connection:
        wire = Wire(connection)
        policy = {"max_tries": 1, "retry": "1s", "max_jobs": 3, "max_reserved": 1, "unique": "present"}
        wire.request("set-policy", pattern="mail", set=policy)
        wire.ask("use mail")
        wire.ask("watch mail")
        wire.put(b"dead")
        wire.ask("reserve")
        wire.ask("release 1 0 0")
        wire.put(b"reserved")
        wire.ask("reserve")
        wire.put(b"waits")
        assert wire.put(b"waits") == 3
        wait_for(where, ("beanlite_job_events_total", "duplicates"), 1)
        assert wire.ask("put 0 0 10 1", b"x") == "OUT_OF_MEMORY"  # and nothing else happens
        found = wait_for(where, ("beanlite_job_events_total", "refused"), 1)
        assert wire.stats()["refused-max-jobs"] == "1"
    counts = {"dead": 1, "expired": 0, "refused": 1, "duplicates": 1}
    assert {name: found["beanlite_job_events_total", name] for name in counts} == counts
    assert {name: found[f"beanlite_tube_{name}_total", "mail"] for name in counts} == counts
    assert found["beanlite_refused_total", "max-jobs"] == 1
    assert found["beanlite_tube_shut", "mail", "max_reserved"] == 1
    assert not [key for key in found if key[0] == "beanlite_tube_dead_total" and "mail" not in key]


def test_beyond_the_bound_tubes_are_summed(tmp_path):
    server, where = start_watched(tmp_path, "--metrics-tubes", "3")
    with server, contextlib.ExitStack() as stack:
        wire = stack.enter_context(Wire(server.connect()))
        for number in range(10):
            wire.ask(f"use tube-{number}")
            for _ in range(number):
                wire.put(b"")
        found = wait_for(where, ("beanlite_jobs", "ready"), sum(range(10)))
    # tube-0 went when it was used no more; the default tube is the first.
    assert {key[2]: value for key, value in found.items() if key[:2] == ("beanlite_tube_jobs", "ready")} == {
        "default": 0,
        "tube-1": 1,
        "tube-2": 2,
        tubes.REST: sum(range(3, 10)),
    }
    assert {key[2] for key in found if key[0] == "beanlite_tube_job_events_total"} == {"default", "tube-1", "tube-2"}


def test_without_a_journal_there_are_no_metrics_of_one(tmp_path):
    server, where = start_watched(tmp_path, "--no-journal")
    with server, server.connect() as connection:
        Wire(connection).put(b"")
        found = wait_for(where, ("beanlite_jobs", "ready"), 1)
    assert not [key for key in found if "journal" in key[0] or key[0] == "beanlite_wal_bytes"]
    assert found["beanlite_command_seconds_count",] >= 1


@pytest.mark.parametrize("fsync", ["20ms", "never"])
def test_timed_syncs_are_measured_and_syncs_of_the_system_are_not(tmp_path, fsync):
    server, where = start_watched(tmp_path, "--fsync", fsync)
    with server, server.connect() as connection:
        Wire(connection).put(b"")
        found = wait_for(where, ("beanlite_jobs", "ready"), 1)
        if fsync != "never":
            while not metrics(where)["beanlite_journal_sync_seconds_count",]:
                time.sleep(0.05)
            wait_for(where, ("beanlite_journal_unsynced_seconds",), 0)
    assert (("beanlite_journal_unsynced_seconds",) in found) == (fsync != "never")


def test_backups_by_the_clock(tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    server, where = start_watched(tmp_path / "server", "--backup-every", "1h", "--backup-dir", str(folder))
    with server:
        key = ("beanlite_backup_last_success_timestamp_seconds",)
        until(lambda: metrics(where)[key] >= time.time() - 600)


def test_settings_that_are_read_again_are_in_the_metrics(tmp_path):
    file, folder = tmp_path / "beanlite.toml", tmp_path / "backups"
    folder.mkdir()
    file.write_text("max_connections = 500\n")
    server, where = start_watched(tmp_path / "server", "--config", str(file))
    made_at, most = ("beanlite_backup_last_success_timestamp_seconds",), ("beanlite_connections_max",)
    with server:
        assert made_at not in wait_for(where, most, 500)
        file.write_text(f"max_connections = 400\nbackup_every = '1h'\nbackup_dir = '{folder}'\n")
        server.signal(signal.SIGHUP)
        wait_for(where, most, 400)
        until(lambda: metrics(where).get(made_at, 0) >= time.time() - 600)
        file.write_text("max_connections = 500\n")
        server.signal(signal.SIGHUP)
        until(lambda: made_at not in metrics(where))


async def test_whoever_asks_within_a_second_is_given_the_same_page(tmp_path, monkeypatch):
    monkeypatch.setattr(vitals, "_FRESH_S", 1000.0)  # a second may be over before the last one asks
    async with serving(tmp_path / "queue.db", health="127.0.0.1:0") as (server, _):
        client = await connect(server)
        pages = await asyncio.gather(*(status_of(server, "/metrics") for _ in range(3)))
        client[1].write(b"use fresh\r\n")
        await client[0].readline()
        assert [await status_of(server, "/metrics"), *pages] == [pages[0]] * 4
        monkeypatch.setattr(vitals, "_FRESH_S", 0.0)
        _, after = await status_of(server, "/metrics")
    assert ("beanlite_tube_jobs", "ready", "fresh") in samples(after)


async def test_clients_are_served_between_the_slices(tmp_path):
    async with serving(tmp_path / "queue.db", health="127.0.0.1:0") as (server, _):
        client = await connect(server)
        for number in range(2 * tubes.SLICE):
            client[1].write(b"watch tube-%d\r\n" % number)
            await client[0].readline()
        reader, writer = await asyncio.open_connection(*place(server))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        turns = 0
        first = asyncio.ensure_future(reader.read(1))
        while not first.done():
            client[1].write(b"list-tube-used\r\n")
            await client[0].readline()
            turns += 1
        await first
        await reader.read()
        writer.close()
    assert turns > 5


def test_the_metrics_leave_no_garbage(tmp_path, monkeypatch):
    """In uvloop, as the server has it: the streams that this test asks by leave some in asyncio's own loop."""
    monkeypatch.setattr(vitals, "_FRESH_S", 0.0)

    async def garbage_of(pages):
        async with serving(tmp_path / "queue.db", health="127.0.0.1:0") as (server, _):
            for path in ("/metrics", "/readyz", "/nothing"):
                await status_of(server, path)
            gc.collect()
            gc.disable()
            try:
                for _ in range(pages):
                    await status_of(server, "/metrics")
                    await status_of(server, "/readyz")
                return gc.collect()
            finally:
                gc.enable()

    assert uvloop.run(garbage_of(10)) == 0
