"""What clients call themselves, where that is told, and which of them are marked as stuck."""

import json

import pytest

from beanlite.core.job import SECOND_NS
from beanlite.core.tube import claim_in, with_claim, without_claim
from beanlite.protocol.operators.replies import SILENT_S
from tests.support.core import put


def listed(operator, session):
    clients = operator.ask("list-clients")["clients"]
    return next(each for each in clients if each["number"] == session.client.peer.number)


def test_client_names_itself_again_and_again(core, operator):
    session = core.client()
    assert listed(operator, session)["name"] is None
    for name in ("web1/mail/17", "x" * 100):
        assert core.send(session, f"name {name}\r\n".encode()) == b"NAMED\r\n"
        assert [listed(operator, session)[key] for key in ("address", "name")] == ["10.0.0.1:2", name]


@pytest.mark.parametrize("name", ["", " ", "a b", 'a"b', "x" * 101, "größe", "a\x7f", "a\tb"])
def test_name_that_could_be_taken_for_more_is_refused(core, operator, name):
    session = core.client()
    assert core.send(session, b"name %b\r\n" % name.encode()) == b"BAD_FORMAT\r\n"
    assert listed(operator, session)["name"] is None


def test_name_alone_is_no_command(core):
    assert core.send(core.client(), b"name\r\n") == b"UNKNOWN_COMMAND\r\n"


def test_holder_and_events_have_the_name(core, operator):
    session = core.client()
    core.engine.ledger.start_recording()
    put(core, session)
    assert [event.by.address for event in core.store().events] == ["10.0.0.1:2"]
    core.send(session, b"name web1/mail/16\r\nreserve\r\nname web1/mail/17\r\n")
    job = json.loads(core.send(operator.session, b"show-job 1\r\n").split(b"\r\n")[1])
    assert job["holder"] == {"address": "10.0.0.1:2", "number": 2, "name": "web1/mail/17"}
    assert [event.by.address for event in core.store().events] == ['10.0.0.1:2 "web1/mail/17"']


def test_client_that_repeats_its_name_stays_one_identity(core):
    session = core.client()
    core.send(session, b"name web1/mail/17\r\n")
    peer = session.client.peer
    core.send(session, b"name web1/mail/17\r\n")
    assert session.client.peer is peer


def test_touches_of_a_client_under_several_names_are_one_event(core):
    session = core.client()
    put(core, session)
    core.send(session, b"reserve\r\n")
    core.engine.ledger.start_recording()
    for name in (b"first", b"second"):
        core.receive(session, b"name %b\r\ntouch 1\r\n" % name)
    core.engine.ledger.hasten(core.engine.jobs[1])
    assert [event.by.address for event in core.store().events] == ['10.0.0.1:1 "second"']


@pytest.mark.parametrize("address", ["unix", "10.0.0.1:5", "[::1]:5 mailer.example.org"])
def test_claim_is_told_apart_from_what_is_known(address):
    assert (without_claim(address), claim_in(address)) == (address, None)
    named = with_claim(with_claim(address, "first"), "web1/mail/17")
    assert named == f'{address} "web1/mail/17"'
    assert (without_claim(named), claim_in(named)) == (address, "web1/mail/17")


def test_client_that_touches_a_job_beyond_its_ttr_is_marked(core, operator):
    session = core.client()
    put(core, session, ttr_s=10)
    core.send(session, b"reserve\r\n")
    for stuck in (None, "touches"):
        core.wait(6)
        assert listed(operator, session)["stuck"] == stuck
        core.send(session, b"touch 1\r\n")
    core.send(session, b"release 1 0 0\r\nreserve\r\n")
    assert listed(operator, session)["stuck"] is None


def test_client_that_holds_jobs_and_is_silent_is_marked(core, operator):
    session = core.client()
    since_ns = core.now_ns
    core.service.contact_of = lambda client: (since_ns, since_ns, None) if client is session.client else None
    put(core, session, ttr_s=10_000)
    core.send(session, b"reserve\r\n")
    for wait_s, stuck in ((SILENT_S - 1, None), (1, "silent")):
        core.wait(wait_s)
        told = listed(operator, session)
        assert told["stuck"] == stuck
        assert told["connected_s"] == told["silent_s"] == (core.now_ns - since_ns) // SECOND_NS
    core.send(session, b"delete 1\r\n")
    assert listed(operator, session)["stuck"] is None


def test_last_command_of_a_client_is_noted(core, operator):
    session = core.client()
    for data, word in (
        (b"nonsense\r\n", None),
        (b"watch a\r\n", b"watch"),
        (b"put 0 0 60 1\r\nx\r\nreserve-with-timeout 0\r\n", b"reserve-with-timeout"),
        (b"nonsense\r\n", b"reserve-with-timeout"),
        (b"quit\r\n", b"reserve-with-timeout"),
    ):
        core.send(session, data)
        assert (session.last and session.last.word) == word
    core.service.contact_of = lambda client: (0, 0, "touch") if client is session.client else None
    assert listed(operator, session)["last"] == "touch"


def test_client_that_waits_is_not_stuck(core, operator):
    session = core.client()
    since_ns = core.now_ns
    core.service.contact_of = lambda _: (since_ns, since_ns, None)
    put(core, session, ttr_s=10_000)
    core.send(session, b"reserve\r\nreserve\r\n")
    core.wait(SILENT_S)
    assert listed(operator, session)["stuck"] is None
