"""The body of a job may come so late that the client no longer has the job, or that it is gone."""

import pytest

from beanlite.core.access import READER, WORKER
from beanlite.protocol.blocked import REPLETE
from beanlite.protocol.session import REPLIES_MAX
from tests.support.core import Core, put
from tests.support.fetching import FetchingCore
from tests.support.operators import ask

TTR_S = 10


class Late:
    """A client whose bodies come late, and others whose bodies don't. All jobs are in the journal only."""

    def __init__(self):
        self.core = FetchingCore()
        self.client, self.other = (self.core.client(operator=True) for _ in range(2))
        self.core.answers_late = lambda session: session is self.client

    def put(self, **more):
        job_id = put(self.core, self.other, b"x", ttr_s=TTR_S, **more)
        self.core.store()
        assert self.core.engine.jobs[job_id].body is None
        return job_id

    def asks(self, command):
        assert self.core.send(self.client, command + b"\r\n") == b""

    def is_told(self):
        """Return what the client is told when the body comes."""
        assert self.core.answer(self.client)
        return self.client.take_replies()

    def has(self, job_id):
        return self.core.engine.jobs[job_id].holder is self.client.client

    def is_deleted(self, job_id):
        """Have another client delete a job, and the journal as well before it fetches the body."""
        self.other_does(b"delete %d" % job_id, b"DELETED")
        self.core.shelf[job_id] = None

    def other_does(self, line, reply):
        assert self.core.send(self.other, line + b"\r\n").startswith(reply)


@pytest.fixture
def late():
    return Late()


RESERVES = [
    (b"reserve", b"RESERVED %d 1\r\nx\r\n"),
    (b"reserve-with-timeout 60", b"RESERVED %d 1\r\nx\r\n"),
    (b"reserve-batch 1 60", b"RESERVED_BATCH 1\r\nRESERVED %d 1\r\nx\r\n"),
    (b"reserve-batch 5 60", b"RESERVED_BATCH 1\r\nRESERVED %d 1\r\nx\r\n"),
]


@pytest.mark.parametrize("delay_s", [0, 5])  # the client is given the job at once, or while it waits
@pytest.mark.parametrize(("reserve", "told"), RESERVES)
def test_a_reserve_goes_on_if_another_client_has_the_job_by_then(late, reserve, told, delay_s):
    late.put(delay_s=delay_s)
    late.asks(reserve)
    late.core.wait(delay_s)
    assert late.has(1)
    late.core.wait(TTR_S + 1)
    late.other_does(b"reserve", b"RESERVED 1 ")
    assert late.is_told() == b""
    late.put()
    assert late.client.take_replies() == told % 2
    assert late.has(2)
    assert late.core.send(late.client, b"delete 2\r\nlist-tube-used\r\n") == b"DELETED\r\nUSING default\r\n"


@pytest.mark.parametrize(
    ("reserve", "told"),
    [*RESERVES, (b"reserve-with-timeout 0", RESERVES[0][1]), (b"reserve-batch 5 0", RESERVES[3][1])],
)
def test_reserve_takes_a_job_again_if_its_ttr_is_over_and_it_is_free(late, reserve, told):
    late.put()
    late.asks(reserve)
    late.core.wait(TTR_S + 1)
    assert not late.has(1)
    assert late.is_told() == told % 1  # with the body that has come
    assert late.has(1)
    late.core.compare_counts()


@pytest.mark.parametrize(("reserve", "told"), RESERVES)
def test_reserve_does_not_tell_of_a_job_that_an_operator_deletes(late, reserve, told):
    late.put()
    late.put()
    late.asks(reserve.replace(b"5", b"1"))
    late.other_does(b'change-jobs 27\r\n{"ids": [1], "do":"delete"}', b"OK ")
    assert late.is_told() == b""
    assert late.is_told() == told % 2


@pytest.mark.parametrize("reserve", [b"reserve-with-timeout 3", b"reserve-batch 5 3", b"reserve-with-timeout 0"])
def test_a_reserve_whose_time_is_over_as_well_ends(late, reserve):
    late.put()
    late.asks(reserve)
    late.core.wait(TTR_S + 1)
    late.other_does(b"reserve", b"RESERVED 1 ")
    assert late.is_told() == b"TIMED_OUT\r\n"


@pytest.mark.parametrize("reserve", [b"reserve-with-timeout 0", b"reserve-batch 1 0"])
def test_a_reserve_whose_time_is_over_takes_another_job_that_is_ready(late, reserve):
    late.put()
    late.put()
    late.asks(reserve)
    late.other_does(b'change-jobs 27\r\n{"ids": [1], "do":"delete"}', b"OK ")
    assert late.is_told() == b""
    assert b"RESERVED 2 1\r\nx\r\n" in late.is_told()


def test_pipelined_command_follows_the_body_that_a_wait_fetches(late):
    late.put(delay_s=5)
    late.asks(b"reserve\r\nlist-tube-used")
    late.core.wait(5)
    assert late.is_told() == b"RESERVED 1 1\r\nx\r\nUSING default\r\n"


def test_pipelined_command_follows_a_large_job_once_that_is_sent():
    core = Core(max_job_size=2 * REPLIES_MAX)
    client, other = core.client(), core.client()
    assert core.send(client, b"reserve\r\nlist-tube-used\r\n") == b""
    put(core, other, bytes(REPLIES_MAX + 1))
    assert client.take_replies().startswith(b"RESERVED 1 ")
    assert client.blocked is REPLETE
    client.resume(core.now_ns)
    assert client.take_replies() == b"USING default\r\n"


def test_a_reserve_of_a_client_that_sends_no_more_ends(late):
    late.put()
    late.asks(b"reserve")
    late.client.half_close(late.core.now_ns)
    late.core.wait(TTR_S + 1)
    late.other_does(b"reserve", b"RESERVED 1 ")
    assert late.is_told() == b"TIMED_OUT\r\n"


def test_a_batch_tells_only_of_the_jobs_that_the_client_still_has(late):
    for _ in range(3):
        late.put()
    late.asks(b"reserve-batch 5 0")
    late.core.wait(TTR_S - 1)
    late.core.engine.touch(late.client.client, 2, late.core.now_ns)
    late.core.wait(2)
    assert late.is_told() == b"RESERVED_BATCH 1\r\nRESERVED 2 1\r\nx\r\n"
    assert [late.has(job_id) for job_id in (1, 2, 3)] == [False, True, False]


def test_reserve_job_takes_the_job_again_or_says_that_another_has_it(late):
    late.put()
    late.asks(b"reserve-job 1")
    late.core.wait(TTR_S + 1)
    assert late.is_told() == b"RESERVED 1 1\r\nx\r\n"
    assert late.has(1)
    late.core.send(late.client, b"release 1 0 0\r\n")
    assert late.core.engine.jobs[1].body is None
    late.asks(b"reserve-job 1")
    late.core.wait(TTR_S + 1)
    late.other_does(b"reserve", b"RESERVED 1 ")
    assert late.is_told() == b"NOT_FOUND\r\n"


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
def test_peek_at_a_queue_goes_on_if_its_first_job_is_deleted(late, state):
    for _ in range(3):
        late.put(delay_s=60 if state == "delayed" else 0)
        if state == "buried":
            late.other_does(b"reserve", b"RESERVED ")
            late.other_does(b"bury %d 0" % late.core.engine.last_id, b"BURIED")
    late.asks(b"peek-%b\r\nlist-tube-used" % state.encode())
    for gone in (1, 2):
        late.is_deleted(gone)
        assert late.is_told() == b""
    assert late.is_told() == b"FOUND 3 1\r\nx\r\nUSING default\r\n"


@pytest.mark.parametrize("peek", [b"peek 1", b"peek-ready"])
def test_peek_finds_nothing_if_there_is_no_other_job(late, peek):
    late.put()
    late.asks(peek)
    late.is_deleted(1)
    assert late.is_told() == b"NOT_FOUND\r\n"


# -- of a client with limited rights


def test_job_moved_while_its_body_comes_is_not_reserved_again(late):
    job_id = late.put()
    late.core.limit(late.client, (WORKER, b"default"))
    late.asks(b"reserve-job %d" % job_id)
    late.core.wait(TTR_S)
    body = b'{"do":"move","ids":[%d],"to":"other"}' % job_id
    late.other_does(b"change-jobs %d\r\n%b" % (len(body), body), b"OK")
    assert late.is_told() == b"NOT_FOUND\r\n"
    assert not late.has(job_id)


def test_job_moved_while_its_body_comes_is_not_shown(late):
    job_id = late.put()
    late.core.limit(late.client, (READER, b"default"))
    late.asks(b"show-job %d" % job_id)
    body = b'{"do":"move","ids":[%d],"to":"other"}' % job_id
    late.other_does(b"change-jobs %d\r\n%b" % (len(body), body), b"OK")
    assert late.is_told() == b"NOT_FOUND\r\n"


def test_a_request_and_the_bodies_for_it_are_counted_until_it_is_done(late):
    ask(late.core, late.other, "set-policy", pattern="default", set={"unique": "present"})
    job_id = late.put()
    request = b'{"jobs":[{"body":"x"}]}'
    late.asks(b"put-jobs %d\r\n%b" % (len(request), request))
    assert late.client.aside_bytes == len(request)
    assert late.is_told() == b'OK 11\r\n{"ids":[%d]}\r\n' % job_id
    assert late.client.aside_bytes == 0
