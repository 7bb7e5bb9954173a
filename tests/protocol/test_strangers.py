"""Connections of programs that speak another protocol: nothing that they send is carried out."""

import pytest

from beanlite.protocol.blocked import CLOSING
from beanlite.protocol.strangers import UNKNOWN_MAX
from tests.support.core import Core, put

DELETE_ALL = b'{"do": "delete", "state": "ready"}'
COMMANDS = b"change-jobs %d\r\n%b\r\nput 0 0 1 1\r\nx\r\n" % (len(DELETE_ALL), DELETE_ALL)
HEADER = b"Host: 127.0.0.1:11300\r\nConnection: keep-alive\r\nOrigin: http://other.example\r\n\r\n"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(32))
STRANGERS = {
    "post": b"POST / HTTP/1.1\r\n" + HEADER,
    "get": b"GET / HTTP/1.1\r\n" + HEADER,
    "options": b"OPTIONS * HTTP/1.0\r\n" + HEADER,
    "proxy": b"GET http://127.0.0.1:11300/ HTTP/1.1\r\n" + HEADER,
    "tunnel": b"CONNECT 127.0.0.1:11300 HTTP/1.1\r\n" + HEADER,
    "a word of ours as the method": b"use /x HTTP/1.1\r\n" + HEADER,
    "the word before a name as the method": b"act-for /x HTTP/1.1\r\n" + HEADER,
    "the same through a proxy": b"act-for http://127.0.0.1:11300/ HTTP/1.1\r\n" + HEADER,
    "a method of one's own, and a long path": b"use /" + b"x" * 300 + b" HTTP/1.1\r\n" + HEADER,
    "a long path": b"POST /" + b"x" * 300 + b" HTTP/1.1\r\n" + HEADER,
    "a very long path": b"POST /" + b"x" * 10_000 + b" HTTP/1.1\r\n" + HEADER,
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a header alone": b"content-length: 5\r\n\r\n",
    "sip": b"OPTIONS sip:a@b SIP/2.0\r\n",
    "a blank line first": b"\r\nPOST / HTTP/1.1\r\n" + HEADER,
    "tls": HELLO + b"\r\n",
    "long tls": HELLO + b"\xff" * 500 + b"\r\n",
    "lines of none": b"EHLO there\r\n" * UNKNOWN_MAX,
    "long lines of none": (b"x" * 300 + b"\r\n") * UNKNOWN_MAX,
    "lines with NUL": b"\0\x01\0\r\n" * UNKNOWN_MAX,
}


@pytest.fixture
def core():
    core = Core()
    put(core, core.client())
    return core


@pytest.fixture(params=[True, False], ids=["operator", "client"])
def client(core, request):
    return core.client(operator=request.param)


def harmed(core):
    """Whether anything was carried out."""
    return core.engine.last_id != 1 or list(core.engine.jobs.newest) != [1]


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_nothing_is_carried_out_in_one_packet(core, client, sent):
    reply = core.send(client, sent + COMMANDS * 2)
    assert client.blocked is CLOSING
    assert set(reply.splitlines()) <= {b"UNKNOWN_COMMAND", b"BAD_FORMAT"}
    assert core.refused == ["protocol"]
    assert not harmed(core)


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_nothing_is_carried_out_in_many_packets(core, client, sent):
    for at in range(len(sent)):
        core.receive(client, sent[at : at + 1])
    for _ in range(3):
        core.receive(client, COMMANDS)
    client.postpone(COMMANDS)
    core.go_on(client)
    assert client.blocked is CLOSING
    assert core.refused == ["protocol"]
    assert not harmed(core)


def test_a_client_that_has_been_served_may_send_any_line(core, client):
    assert core.send(client, b"list-tube-used\r\n") == b"USING default\r\n"
    lines = b"POST / HTTP/1.1\r\nHost: x\r\n\x16\x03\r\n" + b"nonsense\r\n" * 2 * UNKNOWN_MAX
    assert core.send(client, lines) == b"UNKNOWN_COMMAND\r\n" * (3 + 2 * UNKNOWN_MAX)
    assert core.send(client, b"list-tube-used\r\n" + lines) == b"USING default\r\n" + b"UNKNOWN_COMMAND\r\n" * (
        3 + 2 * UNKNOWN_MAX
    )
    assert not core.refused


@pytest.mark.parametrize("known", [b"use -", b"put x", b"statsx", b"stats ", b"pause-tube", b"peek 1", b"stats-tube"])
def test_a_word_of_the_protocol_is_enough(core, client, known):
    mistyped = b"nonsense\r\n" * (UNKNOWN_MAX - 1)
    core.send(client, mistyped + known + b"\r\n" + mistyped + mistyped)
    assert client.blocked is None
    assert core.send(client, b"list-tube-used\r\n") == b"USING default\r\n"


def test_an_operators_word_is_enough_for_an_operator(core):
    client = core.client(operator=True)
    assert core.send(client, b"show-job 9\r\n") == b"NOT_FOUND\r\n"
    core.send(client, b"nonsense\r\n" * 2 * UNKNOWN_MAX)
    assert client.blocked is None


def test_a_quit_after_a_mistake_is_no_other_protocol(core, client):
    assert core.send(client, b"exit\r\nquit\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert client.blocked is CLOSING
    assert not core.refused


def test_mistakes_at_a_terminal_are_forgiven(core, client):
    said = [b"help", b"?", b"", b"STATS", b"PUT 0 0 60 5", b"hello", b"list", b"put", b"delete"]
    assert core.send(client, b"".join(line + b"\r\n" for line in said)) == b"UNKNOWN_COMMAND\r\n" * len(said)
    assert core.send(client, b"stats-tube default\r\n").startswith(b"OK ")


def test_a_tube_may_be_named_like_a_version(core, client):
    assert core.send(client, b"use HTTP/1.1\r\n") == b"USING HTTP/1.1\r\n"


@pytest.mark.parametrize("name", [b"Ann QA/2", b"HTTP/1.1", b"A/1"])
def test_person_may_be_named_like_a_version(core, name):
    client = core.client(operator=True)
    assert core.send(client, b"act-for %b\r\n" % name) == b"ACTING\r\n"
    assert client.person == name.decode()
