"""Operators' commands to a real server: what is durable, what a kill leaves, and which clients are allowed."""

import base64
import json
import random
import socket
import struct

import pytest

from tests.support.servers import start_beanlite
from tests.support.wire import Wire, put_bytes

JOBS = 4000


def connect(server):
    return Wire(server.connect())


def request_bytes(word, **what):
    body = json.dumps(what).encode()
    return b"%b %d\r\n%b\r\n" % (word.encode(), len(body), body)


def slices(wire, word, **what):
    """Yield the reply to each slice of a request."""
    after = None
    while True:
        reply = wire.request(word, after=after, **what)
        yield reply
        after = reply["next"]
        if after is None:
            return


def jobs_of(wire, **what):
    """Return all jobs that match a filter."""
    return [job for reply in slices(wire, "list-jobs", limit=200, **what) for job in reply["jobs"]]


def listed(wire, **what):
    """Return the ids of all jobs that match a filter."""
    return [job["id"] for job in jobs_of(wire, **what)]


@pytest.mark.parametrize("flags", [("--operators", "none"), ("--operators", "10.0.0.0/8, unix")])
def test_operators_commands_are_unknown_to_other_clients(tmp_path, flags):
    with start_beanlite(tmp_path, *flags) as server, connect(server) as wire:
        assert wire.ask("show-job 0") == "UNKNOWN_COMMAND"
        assert wire.ask("list-jobs 2", b"{}") == "UNKNOWN_COMMAND"
        assert wire.reply() == "UNKNOWN_COMMAND"  # to the body


def test_early_reset_is_not_taken_for_a_client_of_the_unix_socket(tmp_path):
    """Its address can't be read any more, but what it has sent is still delivered."""
    delete = request_bytes("change-jobs", do="delete", pri_min=0)
    with start_beanlite(tmp_path, "--operators", "unix") as server, connect(server) as wire:
        wire.put(b"x")
        for _ in range(50):
            client = server.connect()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(delete)
            client.close()
            assert wire.ask("peek 1").startswith("FOUND")


def test_a_kill_amid_a_move_leaves_each_job_in_one_place(tmp_path):
    with start_beanlite(tmp_path) as server, connect(server) as wire:
        for at in range(0, JOBS, 500):
            jobs = [{"body": f"body {number}", "pri": number % 7} for number in range(at, at + 500)]
            wire.request("put-jobs", jobs=jobs)
        limit = 100
        for at in range(0, JOBS, limit):
            wire.send(
                request_bytes("change-jobs", do="move", to="other", limit=limit, up_to_id=at + limit, tube="default")
            )
        acknowledged = 0
        for _ in range(random.randrange(3, 12)):
            assert wire.reply().startswith("OK ")
            acknowledged += json.loads(wire.body)["done"]
        server.kill()
    with start_beanlite(tmp_path) as server, connect(server) as wire:
        moved, left = listed(wire, tube="other"), listed(wire, tube="default")
        assert sorted(moved + left) == list(range(1, JOBS + 1))
        assert moved == list(range(1, len(moved) + 1))
        assert len(moved) >= acknowledged > 0
        assert len(moved) % limit == 0
        for job_id in (1, JOBS):
            assert wire.ask(f"show-job {job_id}").startswith("OK ")
            job = json.loads(wire.body)
            assert (base64.b64decode(job["body"]), job["pri"]) == (b"body %d" % (job_id - 1), (job_id - 1) % 7)


def test_a_kill_leaves_a_batch_whole_or_nothing_of_it(tmp_path):
    batch = 50
    with start_beanlite(tmp_path) as server, connect(server) as wire:
        wire.send(request_bytes("put-jobs", jobs=[{"body": "x", "tube": "a"}] * batch) * 100)
        told = []
        for _ in range(random.randrange(3, 20)):
            assert wire.reply().startswith("OK ")
            told += json.loads(wire.body)["ids"]
        server.kill()
    with start_beanlite(tmp_path) as server, connect(server) as wire:
        ids = listed(wire, tube="a")
        assert set(told) <= set(ids)
        assert len(ids) % batch == 0


def test_what_was_changed_outlives_a_restart(tmp_path):
    with start_beanlite(tmp_path) as server, connect(server) as wire, connect(server) as worker:
        for number in range(5):
            worker.put(b"body %d" % number, ttr_s=100)
        worker.ask("reserve-job 1")
        wire.request("change-jobs", do="bury", ids=[1, 2], pri=9)
        wire.request("change-jobs", do="move", ids=[2, 3], to="other")
        wire.request("change-jobs", do="delay", ids=[4], delay_s=1000)
        wire.request("change-jobs", do="reprioritise", ids=[5], pri=77)
        wire.request("change-jobs", do="copy", ids=[5], to="copies")
        before = wire.request("list-jobs", preview=10)["jobs"]
        assert worker.ask("release 1 0 0") == "NOT_FOUND"
    with start_beanlite(tmp_path) as server, connect(server) as wire:
        after = wire.request("list-jobs", preview=10)["jobs"]
        timed = {"age_s", "in_state_s", "left_s", "created_at"}
        assert [without(job, timed) for job in after] == [without(job, timed) for job in before]
        assert [(job["state"], job["why"], job["pri"], job["tube"]) for job in after] == [
            ("buried", "operator", 9, "default"),
            ("buried", "operator", 9, "other"),
            ("ready", None, 0, "other"),
            ("delayed", None, 0, "default"),
            ("ready", None, 77, "default"),
            ("ready", None, 77, "copies"),
        ]


def without(record, keys):
    return {key: value for key, value in record.items() if key not in keys}


def test_bodies_that_are_only_on_the_disk(tmp_path):
    number, size = 400, 60_000
    with (
        start_beanlite(tmp_path, "--body-memory", "16MiB") as server,
        connect(server) as wire,
        connect(server) as worker,
    ):
        for at in range(number):
            wire.send(put_bytes(b"%05d " % at + b"x" * size + (b"needle" if at % 40 == 0 else b"")))
        for _ in range(number):
            assert wire.reply().startswith("INSERTED")
        assert int(wire.stats()["bodies-on-disk"]) > 50
        assert listed(wire, text="needle") == list(range(1, number + 1, 40))
        jobs = jobs_of(wire, preview=5, ids=list(range(300, 350)))
        assert [job["preview"] for job in jobs] == [f"{number - 1:05}" for number in range(300, 350)]
        copies = slices(wire, "change-jobs", do="copy", to="copies", tube="default", text="needle")
        copied = sum(reply["done"] for reply in copies)
        assert copied == number // 40
        assert worker.ask("watch copies") == "WATCHING 2"
        assert worker.ask("ignore default") == "WATCHING 1"
        assert worker.ask("reserve-batch 500 0") == "RESERVED_BATCH 10"
        for at in range(10):
            assert worker.reply().startswith("RESERVED ")
            assert worker.body.startswith(b"%05d " % (at * 40))
            assert worker.body.endswith(b"needle")


def test_watchers_are_told_in_order_and_among_replies(tmp_path):
    with (
        start_beanlite(tmp_path) as server,
        connect(server) as watcher,
        connect(server) as worker,
        connect(server) as other,
    ):
        assert watcher.request("watch-events", tube="a") == {}
        assert other.request("watch-events", what=["delete"]) == {}
        worker.ask("use a")
        worker.ask("watch a")
        job_id = worker.put(b"x", pri=5)
        worker.ask("reserve")
        worker.ask(f"release {job_id} 7 100")
        other.request("change-jobs", do="kick", ids=[job_id], by="ann")
        assert worker.ask(f"delete {job_id}") == "DELETED"
        events = []
        while not events or events[-1]["what"] != "delete":
            assert watcher.reply().startswith("EVENT ")
            events.append(json.loads(watcher.body))
        assert [(event["what"], event["pri"], event["delay_s"]) for event in events] == [
            ("put", 5, 0),
            ("reserve", 5, 0),
            ("release", 7, 100),
            ("kick", 7, 0),
            ("delete", 7, 0),
        ]
        assert [event["by"]["operator"] for event in events] == [False, False, False, True, False]
        assert [event["by"]["person"] for event in events] == [None, None, None, "ann", None]
        assert {event["by"]["number"] for event in events if not event["by"]["operator"]} == {events[0]["by"]["number"]}
        assert other.reply().startswith("EVENT ")
        assert json.loads(other.body)["what"] == "delete"
        assert watcher.ask("list-tube-used") == "USING default"


@pytest.mark.parametrize("flags", [(), ("--no-journal",)])
def test_what_comes_and_goes_at_once_is_told_all_the_same(tmp_path, flags):
    with start_beanlite(tmp_path, *flags) as server, connect(server) as watcher, connect(server) as worker:
        watcher.request("watch-events")
        worker.send(put_bytes(b"x") + b"reserve\r\ndelete 1\r\n")
        what = []
        for _ in range(3):
            assert watcher.reply().startswith("EVENT ")
            what.append(json.loads(watcher.body)["what"])
        assert what == ["put", "reserve", "delete"]
