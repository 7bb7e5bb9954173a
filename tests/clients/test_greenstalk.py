"""A client of the field (greenstalk) at work on a real server; ``ALL_ON_POSTGRESQL=1``: on both kinds of database."""

import signal
import threading

import greenstalk
import pytest

from tests.support.postgres import PART
from tests.support.servers import start_beanlite
from tests.support.wire import until


@pytest.fixture(scope="module", params=["file", "postgresql"][: 2 if PART == 1 else 1])
def server(tmp_path_factory, request):
    flags = ["--max-job-size", "1000"]
    if request.param == "postgresql":
        flags += ["--database", request.getfixturevalue("postgres").new_database(), "--require-sync", "false"]
    with start_beanlite(tmp_path_factory.mktemp("clients"), *flags) as server:
        yield server
    assert "Traceback" not in server.log_text()


@pytest.fixture
def client(server, request):
    """A client that uses and watches a tube of its own."""
    tube = request.node.originalname
    with greenstalk.Client((server.host, server.port), use=tube, watch=tube) as client:
        yield client


@pytest.fixture
def other(server, request):
    """A second client of the same tube."""
    tube = request.node.originalname
    with greenstalk.Client((server.host, server.port), use=tube, watch=tube) as client:
        yield client


def test_put_reserve_delete(client):
    job_id = client.put("häuser", priority=7, ttr=9)
    job = client.reserve()
    assert (job.id, job.body) == (job_id, "häuser")
    stats = client.stats_job(job)
    assert (stats["state"], stats["pri"], stats["ttr"], stats["reserves"]) == ("reserved", 7, 9, 1)
    client.delete(job)
    with pytest.raises(greenstalk.NotFoundError):
        client.stats_job(job_id)


def test_bodies_are_bytes(server):
    body = bytes(range(256)) + b"\r\n"
    with greenstalk.Client((server.host, server.port), encoding=None) as client:
        client.put(body)
        job = client.reserve()
        assert job.body == body
        client.delete(job)


def test_priorities_come_first_and_then_the_order_of_puts(client):
    for number, priority in enumerate((5, 1, 5, 0)):
        client.put(str(number), priority=priority)
    assert [client.reserve().body for _ in range(4)] == ["3", "1", "0", "2"]


def test_release_with_a_delay(client):
    client.put("again")
    job = client.reserve()
    client.release(job, priority=3, delay=1000)  # so long that it does not end while the test looks
    stats = client.stats_job(job)
    assert (stats["state"], stats["pri"], stats["delay"], stats["releases"]) == ("delayed", 3, 1000, 1)
    assert client.peek_delayed().id == job.id
    with pytest.raises(greenstalk.TimedOutError):
        client.reserve(timeout=0)
    client.kick_job(job)
    client.release(client.reserve(timeout=0), delay=1)
    assert client.reserve(timeout=10).id == job.id


def test_bury_and_kick(client):
    for body in "abc":
        client.put(body)
    jobs = [client.reserve() for _ in range(3)]
    for job in reversed(jobs):
        client.bury(job, priority=1)
    assert client.peek_buried().body == "c"
    assert client.kick(2) == 2
    client.kick_job(jobs[0])
    assert client.stats_job(jobs[0])["kicks"] == 1
    assert [client.reserve().body for _ in range(3)] == ["a", "b", "c"]


def test_touch_begins_the_ttr_anew(client, other):
    client.put("long", ttr=6)  # either half of it may pass between two commands, if the machine is slow
    job = client.reserve()
    until(lambda: client.stats_job(job)["time-left"] < 3)
    client.touch(job)
    assert client.stats_job(job)["time-left"] >= 3
    assert client.stats_job(job)["timeouts"] == 0
    assert other.reserve(timeout=10).id == job.id  # its ttr has ended
    assert client.stats_job(job)["timeouts"] == 1
    with pytest.raises(greenstalk.NotFoundError):
        client.delete(job)


def test_deadline_soon(client):
    client.put("short", ttr=3)
    client.reserve()
    with pytest.raises(greenstalk.DeadlineSoonError):
        client.reserve()


def test_a_worker_waits_while_another_client_puts(client, other):
    got = []
    worker = threading.Thread(target=lambda: got.append(other.reserve(timeout=10)))
    worker.start()
    until(lambda: client.stats_tube(client.using())["current-waiting"] == 1)
    job_id = client.put("now")
    worker.join()
    assert [(job.id, job.body) for job in got] == [(job_id, "now")]


def test_several_tubes(client, other):
    for tube in ("first", "second"):
        client.use(tube)
        client.put(tube)
        other.watch(tube)
    assert {"first", "second"} <= set(client.tubes())
    assert client.using() == "second"
    assert sorted(other.watching()) == ["first", "second", "test_several_tubes"]
    assert [other.reserve().body for _ in range(2)] == ["first", "second"]
    other.ignore("first")
    assert sorted(other.watching()) == ["second", "test_several_tubes"]


def test_the_only_tube_can_not_be_ignored(client):
    with pytest.raises(greenstalk.NotIgnoredError):
        client.ignore("test_the_only_tube_can_not_be_ignored")


def test_a_paused_tube_serves_nothing(client):
    tube = client.using()
    client.put("later")
    client.pause_tube(tube, 60)
    assert client.stats_tube(tube)["pause"] == 60
    with pytest.raises(greenstalk.TimedOutError):
        client.reserve(timeout=0)
    assert client.peek_ready().body == "later"
    client.pause_tube(tube, 0)
    assert client.reserve(timeout=0).body == "later"


def test_a_job_that_is_too_big(client):
    assert client.put("x" * 1000)
    with pytest.raises(greenstalk.JobTooBigError):
        client.put("x" * 1001)
    assert client.put("small")


def test_stats_are_read_as_numbers_and_words(client):
    client.put("urgent", priority=1023)
    stats = client.stats()
    assert stats["max-job-size"] == 1000
    assert stats["current-jobs-urgent"] >= 1
    assert stats["draining"] in {False, "false"}
    tube = client.stats_tube(client.using())
    assert (tube["name"].strip('"'), tube["current-jobs-ready"], tube["total-jobs"]) == (client.using(), 1, 1)


def test_drain_mode(tmp_path):
    with (
        start_beanlite(tmp_path, "--no-journal") as server,
        greenstalk.Client((server.host, server.port)) as client,
    ):
        client.put("before")
        server.signal(signal.SIGUSR1)
        until(lambda: client.stats()["draining"] in {True, "true"})
        with pytest.raises(greenstalk.DrainingError):
            client.put("after")
        client.delete(client.reserve(timeout=0))
