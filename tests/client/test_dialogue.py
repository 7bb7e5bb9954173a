"""The core of the client, without a socket."""

import array
import pickle
from typing import Any

import pytest

from beanlite.client import calls
from beanlite.client.dialogue import Dialogue, JobCount
from beanlite.client.errors import (
    BadFormat,
    Buried,
    ConnectionLost,
    DeadlineSoon,
    Draining,
    JobTooBig,
    NotFound,
    NotSent,
    OutOfMemory,
    PutUnknown,
    SomePutsFailed,
    TimedOut,
    Unauthorized,
    UnexpectedReply,
    UnknownCommand,
)

STATS = b"""---
id: 7
tube: "12"
state: ready
name: 12
version: 1.12
rusage-utime: 0.148125
hex: 0f
zero: 007
low: -1
"""
LIST = b'---\n- a\n- "default"\n'
# Commands, and what the server answers to each.
SESSION: list[Any] = [
    (calls.put("häuser", 1, 2, 3), b"INSERTED 5\r\n", 5),
    (calls.RESERVE, b"RESERVED 5 10\r\nRESERVED\r\n\r\n", (5, b"RESERVED\r\n")),
    (calls.reserve(3), b"RESERVED 6 0\r\n\r\n", (6, b"")),
    (calls.reserve(0), b"TIMED_OUT\r\n", TimedOut),
    (calls.reserve(0), b"DEADLINE_SOON\r\n", DeadlineSoon),
    (calls.touch(5), b"TOUCHED\r\n", None),
    (calls.release(6, 0, 0), b"RELEASED\r\n", None),
    (calls.release(6, 0, 0), b"BURIED\r\n", Buried),
    (calls.bury(5, 0), b"BURIED\r\n", None),
    (calls.bury(5, 0), b"NOT_FOUND\r\n", NotFound),
    (calls.kick(9), b"KICKED 2\r\n", 2),
    (calls.kick_job(5), b"KICKED\r\n", None),
    (calls.put("", 0, 0, 1), b"BURIED 8\r\n", Buried),
    (calls.put("", 0, 0, 1), b"JOB_TOO_BIG\r\n", JobTooBig),
    (calls.put("", 0, 0, 1), b"DRAINING\r\n", Draining),
    (calls.put("", 0, 0, 1), b"OUT_OF_MEMORY\r\n", OutOfMemory),
    (calls.put("", 0, 0, 1), b"EXPECTED_CRLF\r\n", BadFormat),
    (calls.peek(5), b"FOUND 5 3\r\nabc\r\n", calls.PeekedJob(5, b"abc")),
    (calls.PEEK_READY, b"UNAUTHORIZED\r\n", Unauthorized),
    (
        calls.stats_job(7),
        b"OK %d\r\n%b\r\n" % (len(STATS), STATS),
        {
            "id": 7,
            "tube": "12",
            "state": "ready",
            "name": "12",
            "version": "1.12",
            "rusage-utime": 0.148125,
            "hex": "0f",
            "zero": "007",
            "low": -1,
        },
    ),
    (calls.list_tubes(), b"OK %d\r\n%b\r\n" % (len(LIST), LIST), ["a", "default"]),
    (calls.watch("a"), b"WATCHING 2\r\n", 2),
    (calls.delete(5), b"DELETED\r\n", None),
    (calls.pause_tube("a", 60), b"PAUSED\r\n", None),
]
REPLIES = b"".join(reply for _, reply, _ in SESSION)
EXPECTED = [result for _, _, result in SESSION]


def begun():
    """A dialogue in which the whole session has been sent."""
    dialogue = Dialogue()
    for number, (call, _, _) in enumerate(SESSION):
        dialogue.send(call, number)
    return dialogue


def agree(answers):
    assert [token for token, _ in answers] == list(range(len(SESSION)))
    for (_, result), expected in zip(answers, EXPECTED, strict=True):
        assert result == expected or (isinstance(expected, type) and type(result) is expected)


def test_commands_are_sent_as_the_protocol_has_them():
    dialogue = Dialogue()
    dialogue.send(calls.put("häuser", 1, 2, 3), "put")
    dialogue.send(calls.reserve(4), "reserve")
    assert dialogue.take() == "put 1 2 3 7\r\nhäuser\r\nreserve-with-timeout 4\r\n".encode()
    assert dialogue.take() == b""


BATCH = b"RESERVED_BATCH 2\r\nRESERVED 7 3\r\nabc\r\nRESERVED 8 0\r\n\r\n"


@pytest.mark.parametrize("cut", range(len(BATCH) + 1))
def test_batch_cut_in_two_anywhere_is_read(cut):
    dialogue = Dialogue()
    dialogue.send(calls.reserve_batch(5), "batch")
    dialogue.send(calls.delete(7), "delete")
    answers = dialogue.receive(BATCH[:cut]) + dialogue.receive(BATCH[cut:] + b"DELETED\r\n")
    assert answers == [("batch", 2), ("batch", (7, b"abc")), ("batch", (8, b"")), ("delete", None)]
    assert isinstance(answers[0][1], JobCount)


def test_end_amid_a_batch_is_an_error_for_each_job_that_is_missing():
    dialogue = Dialogue()
    dialogue.send(calls.reserve_batch(5), "batch")
    dialogue.receive(BATCH.replace(b"BATCH 2", b"BATCH 4"))
    assert [(token, type(error)) for token, error in dialogue.lose()] == [("batch", NotSent)] * 2


@pytest.mark.parametrize("number", [b"0", b"501", b"-1", b"x", b""])
@pytest.mark.parametrize("call", [calls.reserve_batch(5), calls.RESERVE, calls.delete(1)])
def test_impossible_batch_is_recognised(call, number):
    dialogue = Dialogue()
    dialogue.send(call, 0)
    ((_, error),) = dialogue.receive(b"RESERVED_BATCH " + number + b"\r\n")
    assert dialogue.unexpected
    assert isinstance(error, UnexpectedReply)


def test_replies_cut_in_two_anywhere_are_read():
    for cut in range(len(REPLIES) + 1):
        dialogue = begun()
        agree(dialogue.receive(REPLIES[:cut]) + dialogue.receive(REPLIES[cut:]))
        assert not dialogue.sent


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_replies_in_small_pieces_are_read(size):
    dialogue = begun()
    pieces = (REPLIES[at : at + size] for at in range(0, len(REPLIES), size))
    agree([answer for piece in pieces for answer in dialogue.receive(piece)])


def test_large_body_is_put_together_once():
    dialogue = Dialogue()
    dialogue.send(calls.RESERVE, 0)
    body = bytes(range(256)) * 4000
    reply = b"RESERVED 1 %d\r\n%b\r\n" % (len(body), body)
    pieces = [reply[at : at + 999] for at in range(0, len(reply), 999)]
    assert [dialogue.receive(piece) for piece in pieces[:-1]] == [[]] * (len(pieces) - 1)
    assert dialogue.receive(pieces[-1]) == [(0, (1, body))]


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"INSERTED\r\n",
        b"INSERTED x\r\n",
        b"RESERVED 1 x\r\n",
        b"x" * 2000,
        b"OK 1\r\nx\r\n",
    ],
)
def test_other_protocols_are_recognised(reply):
    """Whatever was answered before, and after it the commands are lost."""
    dialogue = Dialogue()
    for call in (calls.delete(1), calls.put("", 0, 0, 1), calls.put("", 0, 0, 1), calls.stats()):
        dialogue.send(call, 0)
    answers = [result for _, result in dialogue.receive(b"DELETED\r\n" + reply)]
    assert answers[0] is None
    assert [type(error) for error in answers[1:]] == [UnexpectedReply, PutUnknown, NotSent]
    assert dialogue.unexpected


@pytest.mark.parametrize("call", [calls.delete(1), calls.put("", 0, 0, 1), calls.use("a"), calls.auth("a")])
def test_empty_line_is_no_reply(call):
    dialogue = Dialogue()
    dialogue.send(call, 0)
    ((_, error),) = dialogue.receive(b"\r\n")
    assert isinstance(error, UnexpectedReply)


def test_reply_to_nothing_is_recognised():
    dialogue = Dialogue()
    assert dialogue.receive(b"UNAUTHORIZED\r\n") == []
    assert dialogue.unexpected


def test_lost_commands_are_told_apart():
    dialogue = Dialogue()
    for call in (calls.put("", 0, 0, 1), calls.delete(1), calls.stats(), calls.RESERVE):
        dialogue.send(call, 0)
    dialogue.send(calls.put("", 0, 0, 1), 0, "other")
    assert [type(error) for _, error in dialogue.lose()] == [PutUnknown, ConnectionLost, NotSent, NotSent, NotSent]
    assert dialogue.lose() == []


# -- puts into several tubes


def put_into(dialogue, *tubes):
    for tube in tubes:
        dialogue.send(calls.put(tube, 0, 0, 1), tube, tube)
    return dialogue.take().decode().splitlines()


def test_put_waits_for_its_tube_to_be_used():
    dialogue = Dialogue()
    assert put_into(dialogue, "default", "a", "b", "a", "default") == ["put 0 0 1 7", "default", "use a"]
    assert dialogue.receive(b"INSERTED 1\r\nUSING a\r\n") == [("default", 1)]
    assert dialogue.take() == b"put 0 0 1 1\r\na\r\n" * 2 + b"use b\r\n"
    assert put_into(dialogue, "a") == []
    assert dialogue.receive(b"INSERTED 2\r\nINSERTED 3\r\nUSING b\r\n") == [("a", 2), ("a", 3)]
    assert dialogue.take() == b"put 0 0 1 1\r\nb\r\nuse default\r\n"
    assert dialogue.receive(b"INSERTED 4\r\nUSING default\r\n") == [("b", 4)]
    assert dialogue.take() == b"put 0 0 1 7\r\ndefault\r\nuse a\r\n"
    assert dialogue.receive(b"INSERTED 5\r\nUSING a\r\n") == [("default", 5)]
    assert dialogue.take() == b"put 0 0 1 1\r\na\r\n"
    assert put_into(dialogue, "a") == ["put 0 0 1 1", "a"]


def test_put_goes_nowhere_if_its_tube_is_refused():
    dialogue = Dialogue()
    assert put_into(dialogue, "a", "a", "default", "b") == ["use a"]
    ((one, first), (two, second)) = dialogue.receive(b"UNAUTHORIZED\r\n")
    assert (one, two, type(first), type(second)) == ("a", "a", Unauthorized, Unauthorized)
    assert dialogue.used == "default"
    assert dialogue.take() == b"put 0 0 1 7\r\ndefault\r\nuse b\r\n"
    assert dialogue.receive(b"INSERTED 1\r\nUSING b\r\n") == [("default", 1)]
    assert dialogue.take() == b"put 0 0 1 1\r\nb\r\n"


@pytest.mark.parametrize("tube", ["", "-a", "a b", "a\r\ndelete 1", "ä", "a" * 201])
def test_impossible_names_of_tubes_are_not_sent(tube):
    dialogue = Dialogue()
    with pytest.raises(ValueError, match="no tube can have the name"):
        dialogue.send(calls.put("", 0, 0, 1), 0, tube)
    with pytest.raises(ValueError, match="no tube can have the name"):
        calls.watch(tube)
    assert (dialogue.take(), dialogue.lose()) == (b"", [])


@pytest.mark.parametrize("kind", ["B", "I", "d"])
def test_body_that_is_a_buffer_is_announced_in_bytes(kind):
    body: Any = array.array(kind, [1, 2])
    for call in (calls.put(body, 0, 0, 1), *calls.puts([body], 0, 0, 1)):
        line, _, rest = call[0].partition(b"\r\n")
        assert (int(line.split()[-1]), rest) == (len(rest) - 2, body.tobytes() + b"\r\n")


@pytest.mark.parametrize("body", [{}, {"a": 1}, [1], 1, None])
def test_body_that_is_none_is_an_error(body):
    with pytest.raises(TypeError):
        calls.put(body, 0, 0, 1)


@pytest.mark.parametrize(("pri", "delay_s", "ttr_s"), [(-1, 0, 0), (0, 1 << 32, 0), (0, 0, -5)])
def test_numbers_out_of_range_are_not_sent(pri, delay_s, ttr_s):
    with pytest.raises(ValueError, match="is from 0 to 4294967295"):
        calls.put("", pri, delay_s, ttr_s)


# -- notes


def test_error_of_puts_reaches_another_process():
    error = SomePutsFailed([7, None], {1: JobTooBig("JOB_TOO_BIG")})
    other = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (str(other), other.ids, repr(other.errors)) == (str(error), error.ids, repr(error.errors))


def test_note_to_a_server_without_notes_is_one_command():
    """It reads the body as another command, and answers that as well."""
    dialogue = Dialogue()
    dialogue.send(calls.note(0, ""), "note")
    dialogue.send(calls.delete(1), "delete")
    assert dialogue.take() == b"note 0 0\r\n\r\ndelete 1\r\n"
    (token, error), deleted = dialogue.receive(b"UNKNOWN_COMMAND\r\nUNKNOWN_COMMAND\r\nDELETED\r\n")
    assert (token, type(error), deleted) == ("note", UnknownCommand, ("delete", None))


def test_end_of_a_long_note_is_kept():
    data = calls.note(1, "ä" * 3000 + "end\0")[0]
    line, _, text = data.partition(b"\r\n")
    assert int(line.split()[-1]) == len(text) - 2 <= 4096
    assert text.decode().endswith("ääend\r\n")
