"""A few rounds of faults under load, and the ledger that judges them."""

import asyncio

import pytest

from tests.router import ledger, rounds
from tests.router.ledger import Ledger, body_of
from tests.router.load import TUBES


class Holder:
    """A connection to the first router."""

    router = 0
    gone = False


@pytest.fixture
def books():
    return Ledger()


def put(books, job_id=65):
    job = books.new_job(TUBES[0], 60)
    books.inserted(job, job_id)
    return job


def reserve(books, job, job_id=65, holder=None, sent_s=1e9):
    books.reserved(holder or Holder(), job_id, body_of(job), sent_s)


def test_few_rounds_with_a_move_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "MOVE_EACH", 2)
    lines = []
    work = rounds.Rounds(tmp_path, 3, lines.append)
    asyncio.run(work.run(2))
    assert not work.ledger.complaints, "\n".join(lines + work.ledger.complaints)
    assert len(lines) == 2
    assert work.moves == 1
    assert work.ledger.deletes


@pytest.mark.parametrize(
    ("places", "complaint"),
    [
        ({}, "is lost"),
        ({0: ["s1:1", "s2:1"]}, "more than once"),
        ({0: ["s1:1"], 7: ["s1:2"]}, "job 7 was never put"),
    ],
)
def test_ledger_tells_what_the_servers_should_not_have(books, places, complaint):
    put(books)
    books.audit(places)
    assert [complaint in each for each in books.complaints] == [True]


def test_ledger_tells_of_a_job_that_is_back_after_its_delete(books):
    job = put(books)
    books.has_deleted(Holder(), job)
    reserve(books, job)
    books.audit({0: ["s1:1"]})
    assert ["after its delete" in each for each in books.complaints] == [True, True]


def test_ledger_tells_of_an_id_of_two_jobs(books):
    put(books)
    put(books)
    assert books.complaints == ["id 65 is that of the jobs 0 and 1"]


@pytest.mark.parametrize("loss", [None, "client", "server", "router"])
def test_ledger_tells_of_a_job_with_two_clients_unless_one_was_lost(books, monkeypatch, loss):
    monkeypatch.setattr(ledger, "SEEN_WITHIN_S", 0)
    first = Holder()

    async def twice():
        job = put(books)
        reserve(books, job, holder=first)
        reserve(books, job)
        if loss == "client":
            first.gone = True
        elif loss is not None:
            books.begin_outage((loss, {"server": 1, "router": 0}[loss]))
        await asyncio.sleep(0.01)

    asyncio.run(twice())
    assert bool(books.complaints) == (loss is None)
