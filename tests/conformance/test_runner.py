"""The runner itself: it agrees with what is right and finds what is wrong."""

import re
import socket
from typing import Any

import pytest

from tests.conformance import session, test_transcripts
from tests.conformance.session import Mismatch, Session
from tests.conformance.transcript import TranscriptError, parse, parse_text

HEAD = "title: t\nrule: r\n\n"


class CannedServer:
    """Has sent its replies, and perhaps closed, before anybody asks."""

    def __init__(self, replies: bytes, *, closes: bool = False) -> None:
        self.replies = replies
        self.closes = closes
        self.peers: list[socket.socket] = []

    def connect(self, timeout_s: float) -> socket.socket:
        client, peer = socket.socketpair()
        peer.sendall(self.replies)
        if self.closes:
            peer.shutdown(socket.SHUT_WR)
        client.settimeout(timeout_s)
        self.peers.append(peer)
        return client


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch):
    monkeypatch.setattr(session, "REPLY_WITHIN_S", 0.05)
    monkeypatch.setattr(session, "AT_ONCE_S", 0.05)


def play(steps, replies, *, closes=False):
    server: Any = CannedServer(replies, closes=closes)
    try:
        Session(server).play(parse("x.txt", HEAD + steps))
        return b"".join(peer.recv(1000) for peer in server.peers if "a>" in steps)
    finally:
        for peer in server.peers:
            peer.close()


AGREED = [
    ("a< USING x", b"USING x\r\n"),
    ("a< INSERTED {id}\na<! FOUND {id} 2\na< \\r\\n", b"INSERTED 7\r\nFOUND 7 2\r\n\r\n\r\n"),
    ("a< {xy*3}{2..3} {*}", b"xyxyxy3 what\xff.\r\n"),
    ("a: keys x y\na: keys z\na: y: {1..9}", b"OK 19\r\n---\nx: 1\ny: 2\nz: 0\n\r\n"),
    ("a: - b\na: - a\na< END", b"OK 12\r\n---\n- a\n- b\n\r\nEND\r\n"),
    ("a< {x} {y}\nless {x} {y}", b"1 2\r\n"),
    ("a silent 0.01", b""),
]


@pytest.mark.parametrize(("steps", "replies"), AGREED)
def test_right_replies_agree(steps, replies):
    assert play(steps, replies) == b""


WRONG = [
    ("a< USING x", b"USING y\r\n", "x.txt:4: a< USING x\n  expected: USING x\\r\\n\n  received: USING y\\r\\n"),
    ("a< USING x", b"USING x\n", r"received: USING x\n"),
    ("a< USING x", b"", "received: "),
    ("a<! USING x", b"", "received: "),
    ("a< A {id}\n\na< B {id}", b"A 1\r\nB 2\r\n", "x.txt:6: a< B {id}\n  expected: B {id=1}"),
    ("a< {2..3}", b"4\r\n", "expected: {2..3}"),
    ("a< {id}", b"x\r\n", "expected: {id}"),
    ("a silent 0.01", b"A\r\n", r"nothing was to come, but: b'A\r\n'"),
    ("a< A", b"A\r\nB\r\n", r"x.txt: a got at the end: b'B\r\n'"),
    ("a closed", b"", "the end was to come, but: nothing"),
    ("a closed", b"A\r\n", "the end was to come, but: b'A"),
    ("a< {x} {y}\nless {x} {y}", b"2 2\r\n", "2 is not less than 2"),
    ("a: x: 1\na: y: 2", b"OK 14\r\n---\nx: 1\ny: 3\n\r\n", "line 5, y\n  expected: 2\n  received: 3"),
    ("a: y: 2", b"OK 9\r\n---\nx: 1\n\r\n", "line 4, expected: y\n  received: ['x']"),
    ("a: keys y x", b"OK 14\r\n---\nx: 1\ny: 3\n\r\n", "line 4, expected: ['y', 'x']"),
    ("a: - a", b"OK 12\r\n---\n- a\n- b\n\r\n", "received: ['- a', '- b']"),
    ("a: x: 1", b"OK 10\r\n---\nx: 1\n\r\n", "expected: OK <bytes> and a body"),
    ("a: x: 1", b"NOT_FOUND\r\n", r"received: b'NOT_FOUND\r\n'"),
    ("a: x: 1", b"OK 5\r\nx: 1\n\r\n", "a body from '---'"),
]


@pytest.mark.parametrize(("steps", "replies", "report"), WRONG)
def test_wrong_replies_are_reported(steps, replies, report):
    with pytest.raises(Mismatch, match=re.escape(report)):
        play(steps, replies)


def test_an_end_that_was_not_to_come_is_reported():
    with pytest.raises(Mismatch, match="the end"):
        play("a silent", b"", closes=True)


def test_the_end_that_was_to_come_agrees():
    assert play("a< BYE\na closed", b"BYE\r\n", closes=True) == b""


def test_sends_are_joined_and_holes_filled():
    sent = play("a< {id}\na+ delete {id}\na>> x\\x00\na> y\na.> z", b"12\r\n")
    assert sent == b"delete 12\r\nx\x00y\r\nz\r\n"


NOT_WRITTEN_WELL = [
    ("rule: r\n\na> x", "x.txt: a title and a rule are needed"),
    ("title: t\nrule: r\ncolour: red\n\na> x", "x.txt:3: not a header"),
    (HEAD + "a> x\na says x", "x.txt:5: not a step: 'a says x'"),
    (HEAD + "a> x ", r"x.txt:4: write a blank at the end as \x20"),
    (HEAD + "a> {", "x.txt:4: what is '{'?"),
    (HEAD + "a> \\q", r"x.txt:4: what is '\\q'?"),
    (HEAD + "a close 1", "x.txt:4: close takes no time"),
]


@pytest.mark.parametrize(("content", "report"), NOT_WRITTEN_WELL)
def test_what_is_not_well_written_is_refused(content, report):
    with pytest.raises(TranscriptError, match=re.escape(report)):
        parse("x.txt", content)


@pytest.mark.parametrize(
    ("header", "step", "differences"),
    [
        ("", "a silent", [""]),
        ("", "a silent", ["late", ""]),
        ("", "a<! x", ["late"] * test_transcripts.TRIES),
        ("", "a: pri: 5\na: age: 0", ["late", ""]),
        ("", "a: pri: 5", ["wrong"]),
        ("", "a< x", ["wrong"]),
        ("defect: d\n", "a silent", ["as it is marked"]),
    ],
)
def test_only_timed_ones_that_should_agree_are_played_again(monkeypatch, tmp_path, header, step, differences):
    played = iter([*differences, "once too often"])
    monkeypatch.setattr(test_transcripts, "play", lambda *_which: next(played))
    transcript = parse("x.txt", f"title: t\nrule: r\n{header}\n{step}")
    assert test_transcripts.play_until_it_agrees(transcript, "beanstalkd", tmp_path) == differences


def test_a_repeated_text_may_hold_escapes():
    assert parse_text(r"{\x00\r\n*2}\\") == [b"\x00\r\n\x00\r\n\\"]
