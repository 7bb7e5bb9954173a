"""A session's framing, however the bytes are cut and however many there are; and what holds a session up."""

import sys
from itertools import pairwise

import pytest
from hypothesis import assume, given, strategies as st

from beanlite.protocol.blocked import CLOSING, REPLETE, WORKING, YIELDING
from beanlite.protocol.commands import WATCHED_MANY
from beanlite.protocol.framing import SMALL_PART, STEPS_MAX, UNSENT_MAX
from beanlite.protocol.session import REPLIES_MAX
from tests.support.core import Core

SCRIPT = (
    b"use a\r\nput 1 0 10 5\r\nab\r\nc\r\nput 1 0 10 3\r\nabcdelist-tube-used\r\n"
    b"put 0 0 10 101\r\n" + b"y" * 101 + b"\r\nwatch a\r\nreserve\r\nbad\r\n" + b"l" * 300 + b"\r\r\n"
    b"delete 1\r\nput 0 0 10 2\r\n\r\n\r\nreserve-with-timeout 0\r\npeek 9\r\n"
)
ANSWERS = (
    b"USING a\r\nINSERTED 1\r\nEXPECTED_CRLF\r\nUSING a\r\nJOB_TOO_BIG\r\nWATCHING 2\r\nRESERVED 1 5\r\nab\r\nc\r\n"
    b"UNKNOWN_COMMAND\r\nBAD_FORMAT\r\nDELETED\r\nINSERTED 2\r\nRESERVED 2 2\r\n\r\n\r\nNOT_FOUND\r\n"
)


def answers_to(pieces):
    core = Core(max_job_size=100)
    client = core.client()
    return b"".join(core.send(client, piece) for piece in pieces)


def test_session_answers_a_script_that_comes_at_once():
    assert answers_to([SCRIPT]) == ANSWERS


def test_session_answers_a_script_that_comes_byte_by_byte():
    assert answers_to(SCRIPT[at : at + 1] for at in range(len(SCRIPT))) == ANSWERS


@given(st.lists(st.integers(0, len(SCRIPT)), max_size=30))
def test_session_answers_a_script_that_is_cut_anywhere(cuts):
    edges = [0, *sorted(cuts), len(SCRIPT)]
    assert answers_to(SCRIPT[begin:end] for begin, end in pairwise(edges)) == ANSWERS


WORDS = [
    b"put 0 0 1 5\r\n",
    b"put 0 0 1 99999\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b"reserve-with-timeout 0\r\n",
    b"peek 1\r\n",
]


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=300), st.binary(min_size=220, max_size=230))))
def test_after_any_bytes_the_session_is_still_in_step(pieces):
    assume(b"quit" not in b"".join(pieces))  # hypothesis tries words of the sources, and this one ends the session
    core = Core()
    client = core.client()
    core.send(client, b"list-tube-used\r\n")  # lest it be taken for a client of another protocol
    for piece in pieces:
        core.send(client, piece)
    # End the line or body that they have begun, and the wait if that was a reserve.
    core.send(client, b"\r\n" + b"\0" * 100_001 + b"\r\n")
    client.half_close(core.now_ns)
    client.take_replies()
    assert core.send(client, b"list-tube-used\r\n") == b"USING default\r\n"


def test_a_line_has_at_most_224_bytes_with_its_end():
    core = Core()
    client = core.client()
    assert core.send(client, b"use %b\r\n" % (b"a" * 218)) == b"BAD_FORMAT\r\n"  # well framed, but no name
    assert core.send(client, b"watch %b\r\n" % (b"a" * 200)) == b"WATCHING 2\r\n"
    assert core.send(client, b"x" * 222 + b"\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert core.send(client, b"x" * 223 + b"\r\n") == b"BAD_FORMAT\r\n"


@pytest.mark.parametrize(("max_job_size", "closes_from"), [(65535, 1 << 20), (3 << 20, 3 << 20)])
def test_a_line_without_an_end_closes_its_client(max_job_size, closes_from):
    core = Core(max_job_size)
    client = core.client()
    for _ in range(2):  # each line counts for itself
        assert not core.send(client, b"a" * (closes_from - 1))
        assert core.send(client, b"\r\n") == b"BAD_FORMAT\r\n"
    for _ in range(closes_from >> 16):
        assert client.blocked is None
        client.receive(b"a" * (1 << 16), core.now_ns)
    assert client.blocked is CLOSING
    assert client.take_replies() == b"BAD_FORMAT\r\n"
    assert core.refused == ["line"]


def test_a_line_without_end_is_not_kept():
    core = Core()
    client = core.client()
    for _ in range(100):
        assert core.send(client, b"x" * 10_000) == b""
        assert client.pending <= 1
    assert core.send(client, b"\r\nlist-tube-used\r\n") == b"BAD_FORMAT\r\nUSING default\r\n"


def test_a_refused_body_is_not_kept():
    core = Core(max_job_size=10)
    client = core.client()
    core.send(client, b"put 0 0 1 4000000000\r\n")
    for _ in range(100):
        assert core.send(client, b"\r\n" * 5000) == b""
        assert client.pending == 0


def test_a_large_body_comes_in_pieces_and_is_looked_at_once():
    core = Core(max_job_size=1 << 30)
    client = core.client()
    core.send(client, b"put 0 0 1 3000000\r\n")
    for _ in range(30):
        assert core.send(client, b"x" * 100_000) == b""
    assert len(client._parts) == 30
    assert core.send(client, b"\r\n") == b"INSERTED 1\r\n"
    assert core.engine.jobs[1].body == b"x" * 3_000_000


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_body_in_pieces_ends_wherever_they_do(cut):
    """The last two of them are cut at each place, so that the end of the line and what follows it are in either."""
    core = Core()
    client = core.client()
    rest = b"3\r\r\nlist-tube-used\r\n"
    client.receive(b"put 0 0 1 5\r\n1", core.now_ns)
    client.receive(b"2\r", core.now_ns)
    client.receive(rest[:cut], core.now_ns)
    client.receive(rest[cut:], core.now_ns)
    assert client.take_replies() == b"INSERTED 1\r\nUSING default\r\n"
    assert core.engine.jobs[1].body == b"12\r3\r"  # five bytes, whatever they are


def test_a_body_in_pieces_that_does_not_end_well_is_no_job():
    core = Core()
    client = core.client()
    for piece in (b"put 0 0 1 4\r\n12", b"34x", b"ylist-tube-used\r\n"):
        client.receive(piece, core.now_ns)
    assert client.take_replies() == b"EXPECTED_CRLF\r\nUSING default\r\n"
    assert not core.engine.jobs
    assert not client.pending


def test_client_that_does_not_read_is_stopped_and_resumes_in_order():
    core = Core()
    client = core.client()
    core.send(client, b"put 0 0 1 60000\r\n" + b"x" * 60000 + b"\r\n")
    reply = core.send(client, b"peek 1\r\n" * 1000 + b"list-tube-used\r\n")
    assert client.blocked is REPLETE
    assert len(reply) < REPLIES_MAX + 70_000
    found = reply.count(b"FOUND 1 ")
    while client.blocked is REPLETE:
        client.resume(core.now_ns)
        reply = client.take_replies()
        found += reply.count(b"FOUND 1 ")
    assert found == 1000
    assert reply.endswith(b"USING default\r\n")


def test_replies_that_are_held_count_until_they_are_sent():
    size = REPLIES_MAX * 2 // 3
    core = Core(max_job_size=size)
    client = core.client()
    core.send(client, b"put 0 0 1 %d\r\n" % size + b"x" * size + b"\r\n")
    for sent in (True, False):
        client.receive(b"peek 1\r\n", core.now_ns)
        assert client.blocked is None
        assert client.waits
        client.take_replies(hold=True)
        assert not client.waits
        if sent:
            client.replies_sent()
    client.receive(b"peek 1\r\n", core.now_ns)
    assert client.blocked is REPLETE


def test_a_client_that_sends_much_at_once_yields_and_resumes_in_order():
    core = Core()
    client = core.client()
    puts = STEPS_MAX // 2 - 1
    client.receive(b"put 0 0 1 1\r\nx\r\n" * puts + b"list-tube-used\r\n" * 4, core.now_ns)
    assert client.blocked is YIELDING
    assert not client.wants_more  # what comes next is left to the kernel until this has had its turn
    assert client.take_replies().endswith(b"INSERTED %d\r\nUSING default\r\nUSING default\r\n" % puts)
    client.receive(b"use x\r\n", core.now_ns)
    assert not client.replies
    client.resume(core.now_ns)
    assert not client.blocked
    assert client.take_replies() == b"USING default\r\n" * 2 + b"USING x\r\n"
    client.receive(b"put 0 0 1 1\r\nx\r\n" * puts, core.now_ns)
    assert not client.blocked  # there was no more


def test_a_reserve_from_very_many_tubes_is_a_slice_of_its_own():
    core = Core()
    client = core.client()
    for number in range(WATCHED_MANY):
        core.send(client, b"watch t%d\r\n" % number)
    client.receive(b"reserve-with-timeout 0\r\n" * 3, core.now_ns)
    for _ in range(3):
        assert client.blocked is WORKING
        assert not client.replies
        client.resume(core.now_ns)
        assert client.take_replies() == b"TIMED_OUT\r\n"
    assert not client.blocked  # nothing is left
    core.send(client, b"ignore default\r\n")
    client.receive(b"reserve-with-timeout 0\r\n" * 3, core.now_ns)
    assert not client.blocked


def test_the_replies_of_many_small_slices_are_limited():
    core = Core()
    client = core.client()
    for number in range(WATCHED_MANY):
        core.send(client, b"watch t%d\r\n" % number)
    client.receive(b"reserve-with-timeout 0\r\n" * 2 * UNSENT_MAX, core.now_ns)
    while client.blocked is WORKING:
        client.resume(core.now_ns)
    assert client.blocked is REPLETE
    assert client.take_replies() == b"TIMED_OUT\r\n" * (UNSENT_MAX + 1)
    client.resume(core.now_ns)
    assert client.take_replies() == b"TIMED_OUT\r\n"


def test_postponed_large_body_is_not_looked_at_before_it_is_complete():
    core = Core(max_job_size=1 << 20)
    client = core.client()
    client.receive(b"put 0 0 1 500000\r\n" + b"x" * 100_000, core.now_ns)
    for _ in range(4):
        client.postpone(b"x" * 100_000)
    assert not client.blocked
    client.postpone(b"\r\n")
    assert client.blocked is YIELDING
    client.resume(core.now_ns)
    assert client.take_replies() == b"INSERTED 1\r\n"


@pytest.mark.parametrize("line", [b"quit", b"quitx", b"quit now"])
def test_nothing_is_done_after_quit(line):
    core = Core()
    client = core.client()
    assert core.send(client, b"list-tube-used\r\n" + line + b"\r\nput 0 0 1 1\r\nx\r\n") == b"USING default\r\n"
    assert client.blocked is CLOSING
    assert not core.engine.jobs


def test_commands_behind_a_waiting_reserve_wait_with_it():
    core = Core()
    worker, producer = core.client(), core.client()
    assert core.send(worker, b"reserve\r\nlist-tube-used\r\nreserve-with-timeout 0\r\n") == b""
    core.send(producer, b"put 0 0 10 1\r\nx\r\n")
    assert worker.take_replies() == b"RESERVED 1 1\r\nx\r\nUSING default\r\nTIMED_OUT\r\n"


def test_a_half_closed_session_never_waits():
    core = Core()
    client = core.client()
    core.send(client, b"reserve\r\nreserve\r\nlist-tube-used\r\n")
    client.half_close(core.now_ns)
    assert client.take_replies() == b"TIMED_OUT\r\nTIMED_OUT\r\nUSING default\r\n"
    assert core.engine.counts.waiting == 0


def test_puts_are_refused_while_draining_or_full():
    core = Core()
    client = core.client()
    core.engine.admission.refuse_puts()
    assert core.send(client, b"put 0 0 1 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    core.engine.admission.accept_puts(1)
    assert core.send(client, b"put 0 0 1 2\r\nxx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert core.send(client, b"put 0 0 1 1\r\nx\r\n") == b"INSERTED 1\r\n"
    core.engine.admission.drain()
    assert core.send(client, b"put 0 0 1 1\r\nx\r\n") == b"DRAINING\r\n"


@pytest.mark.parametrize("size", [1, 2, 100, SMALL_PART - 1, SMALL_PART])
def test_body_in_small_parts_takes_hardly_more_memory_than_its_bytes(size):
    core = Core()
    client = core.client()
    body = bytes(range(256)) * 80
    core.receive(client, b"put 0 0 1 %d\r\n" % len(body))
    for at in range(0, len(body), size):
        core.receive(client, body[at : at + size])
    assert sum(map(sys.getsizeof, client._parts)) < 1.1 * len(body)
    assert core.send(client, b"\r\n") == b"INSERTED 1\r\n"
    assert core.engine.jobs.find(1).body == body


def test_client_that_is_woken_carries_out_what_follows_in_its_turn():
    """Or two clients that put and reserve by turns would wake each other without end."""
    core = Core()
    worker, producer = core.client(), core.client()
    core.send(worker, b"reserve\r\nput 0 0 60 1\r\ny\r\n")
    producer.receive(b"put 0 0 60 1\r\nx\r\n", core.now_ns)
    ((_, job),) = core.engine.clients.take_woken()
    worker.wake(job)
    assert worker.blocked is YIELDING
    assert core.engine.last_id == 1
    worker.resume(core.now_ns)
    assert core.engine.last_id == 2


def test_command_that_is_answered_at_once_goes_before_no_others():
    """What comes behind it in one piece would be carried out with it, while nothing can be stored."""
    session = Core().client()
    assert session.begins_with_look(b"stats\r\n")
    assert not session.begins_with_look(b"list-tube-used\r\nput 0 0 60 1\r\nx\r\n")
    Core().receive(session, b"put 0 0 60 70000\r\n")
    assert not session.begins_with_look(b"stats and the rest of the body")
