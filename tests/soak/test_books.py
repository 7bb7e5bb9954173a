"""Books that find what a server must not do, and a judge who sees a leak."""

import random
from types import SimpleNamespace

import pytest

from tests.soak.books import Books, body_of, key_of
from tests.soak.judge import ALLOWED, MIB, trend

HERE, THERE = SimpleNamespace(gone=False), SimpleNamespace(gone=False)


@pytest.fixture
def books():
    return Books()


def put(books, job_id, size=100, ttr_s=60):
    made, body = books.put(size, ttr_s)
    books.inserted(made, job_id)
    return body


def delete(books, job_id, body):
    job = books.reserved(job_id, body, 0.0, HERE)
    books.deleting(job)
    books.has_deleted(job)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 100, 65_535, 1 << 20])
def test_a_body_says_which_put_it_comes_from(size):
    body = body_of(7, size)
    assert len(body) == size
    assert key_of(body) == (body if size < 4 else 7)


def test_a_changed_body_comes_from_no_put():
    assert key_of(body_of(7, 100)[:-1] + b"!") is None


def test_a_history_in_order(books):
    bodies = {job_id: put(books, job_id, size) for job_id, size in enumerate((0, 0, 2, 100), 1)}
    for job_id, body in bodies.items():
        delete(books, job_id, body)
    books.all_is_gone()
    assert (books.complaints, books.counts(), books.puts, books.deletes) == ([], (0, 0), 4, 4)


def test_a_lost_job(books):
    put(books, 1)
    books.looked(1, None, was_deleted=False, was_there=True)
    books.all_is_gone()
    assert books.complaints == ["job 1 is lost"] * 2


def test_what_was_never_answered_may_be_either_way(books):
    body = put(books, 1)
    books.deleting(books.reserved(1, body, 0.0, HERE))
    books.put(100, 60)
    assert books.counts() == (0, 2)
    books.all_is_gone()
    assert not books.complaints


def test_a_put_that_was_not_answered_makes_one_job_at_most(books):
    _, body = books.put(100, 60)
    assert books.reserved(5, body, 0.0, HERE)
    assert not books.complaints
    books.reserved(6, body, 0.0, THERE)
    assert "job 6 was never put, or is there twice" in books.complaints[0]


def test_a_worker_may_be_told_before_the_producer(books):
    made, body = books.put(100, 60)
    delete(books, 5, body)
    books.inserted(made, 5)
    books.all_is_gone()
    assert (books.complaints, books.counts()) == ([], (0, 0))


def test_a_deleted_job_that_comes_back(books, monkeypatch):
    body = put(books, 1)
    monkeypatch.setattr("time.monotonic", lambda: 10.0)
    delete(books, 1, body)
    assert books.reserved(1, body, 9.0, THERE) is None  # asked for before the delete: its reply was read late
    assert not books.complaints
    books.reserved(1, body, 11.0, THERE)
    books.looked(1, body, was_deleted=True, was_there=False)
    assert books.complaints == ["job 1 is back after its delete", "job 1 is still there after its delete"]


def test_an_id_that_is_given_twice(books):
    put(books, 1)
    put(books, 1)
    assert books.complaints == ["id 1 was given twice"]


def test_a_job_that_two_hold(books, monkeypatch):
    body = put(books, 1, ttr_s=30)
    monkeypatch.setattr("time.monotonic", lambda: 10.0)
    books.reserved(1, body, 9.0, HERE)
    monkeypatch.setattr("time.monotonic", lambda: 40.0)  # its ttr is over
    job = books.reserved(1, body, 39.5, THERE)
    assert not books.complaints
    books.let_go(job, HERE)  # is not its to give
    books.reserved(1, body, 39.6, HERE)
    assert "while another held it" in books.complaints[0]


def test_a_job_whose_holder_has_gone(books):
    body = put(books, 1)
    books.reserved(1, body, 1e9, SimpleNamespace(gone=True))
    books.reserved(1, body, 1e9, HERE)
    assert not books.complaints
    books.reserved(1, body, 1e9, THERE)
    assert books.complaints


def test_a_holder_that_is_not_known_any_more(books, monkeypatch):
    body = put(books, 1)
    monkeypatch.setattr("time.monotonic", lambda: 10.0)
    job = books.reserved(1, body, 9.0, HERE)
    books.not_found(job, books.held_until_s(job, THERE), "touch")
    assert not books.complaints
    books.not_found(job, books.let_go(job, HERE), "bury")
    assert "NOT_FOUND to bury" in books.complaints[0]


def test_another_body(books):
    put(books, 1)
    books.reserved(1, put(books, 2), 0.0, HERE)
    assert "job 1 has the body b'2:100:" in books.complaints[0]


def waves(leak=0.0, seconds=600, spike=0.0):
    """Ten waves of 60 s after some restarts, with noise; what leaks does so each second."""
    chance = random.Random(1)
    for second in range(seconds):
        jobs = 10_000 * (1 - abs(2 * (second / 60 % 1) - 1)) + chance.uniform(-200, 200)
        extra = leak * second + (spike if chance.random() < 0.1 else 0)
        figures = {"rss": 60 * MIB + 6000 * jobs, "fds": 300 + chance.randrange(10)}
        figures |= dict.fromkeys(("db", "used", "wal"), 6000 * jobs)
        life = second // 30 if second < seconds / 4 else 99
        if life < 99:  # what is young is small
            figures = {key: value / 2 for key, value in figures.items()}
        yield {"t": second, "pid": life, "jobs": jobs} | {key: value + extra for key, value in figures.items()}


@pytest.mark.parametrize("kind", ALLOWED)
def test_waves_are_flat(kind):
    found = trend(waves(spike=10 * ALLOWED[kind][0]), kind)
    assert found.before
    assert found.flat
    assert "flat" in str(found)


@pytest.mark.parametrize("kind", ALLOWED)
def test_a_leak_is_seen_through_the_waves(kind):
    found = trend(waves(leak=ALLOWED[kind][0] / 50), kind)
    assert not found.flat
    assert "GROWS" in str(found)


@pytest.mark.parametrize("seconds", [0, 8, 60])
def test_some_seconds_are_too_short_to_judge(seconds):
    found = trend(waves(leak=MIB, seconds=seconds), "rss")
    assert found.flat
    assert "too short" in str(found)
