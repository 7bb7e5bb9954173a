"""A client says who it is: with a token, or for a person; and for whom its changes are recorded."""

import pytest

from beanlite.core.access import OPERATOR
from beanlite.core.tube import Peer
from tests.support.operators import ask


@pytest.fixture
def asked(core):
    """A client that may give a token, and the tokens that were asked for."""
    session, tokens = core.client(), []
    session.authenticate = lambda token: tokens.append(token) or token == b"right"
    return session, tokens


def test_right_token_is_accepted_as_the_first_line(core, asked):
    session, tokens = asked
    assert core.send(session, b"auth right\r\nlist-tube-used\r\n") == b"AUTHENTICATED\r\nUSING default\r\n"
    assert tokens == [b"right"]


@pytest.mark.parametrize("line", [b"auth wrong", b"auth", b"auth ", b"auth right ", b"auth  right"])
def test_wrong_token_closes_the_connection(core, asked, line):
    session, _ = asked
    assert core.send(session, line + b"\r\nlist-tube-used\r\n") == b"UNAUTHORIZED\r\n"
    assert session.blocked.name == "CLOSING"


@pytest.mark.parametrize("before", [b"list-tube-used\r\n", b"nonsense\r\n", b"auth right\r\n"])
def test_token_after_the_first_line_is_not_looked_at(core, asked, before):
    session, tokens = asked
    assert core.send(session, before + b"auth right\r\n").endswith(b"UNAUTHORIZED\r\n")
    assert session.blocked.name == "CLOSING"
    assert tokens == [b"right"] * (b"auth" in before)


def test_auth_is_no_word_where_there_are_no_rules(core):
    session = core.client()
    assert core.send(session, b"auth right\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert session.blocked is None


def recorded(core, session, person):
    """Give each command that names a person, and return the persons and addresses that are recorded for it."""
    core.engine.ledger.start_recording()
    who = {"by": person}
    ask(core, session, "put-jobs", jobs=[{"body": "x", "tube": "mail"}], **who)
    ask(core, session, "change-jobs", do="bury", ids=[1], **who)
    ask(core, session, "set-policy", pattern="mail", set={"ttl": "9d"}, **who)
    ask(core, session, "set-schedule", name="s", when="0 3 * * *", tube="mail", body="y", **who)
    ask(core, session, "run-schedule", name="s", **who)
    (policy,) = core.engine.policies.rows.values()
    changers = {policy.changed_by, core.engine.schedules["s"].changed_by}
    ask(core, session, "unset-schedule", name="s", **who)
    events = core.store().events
    assert {"put", "bury", "policy", "schedule"} <= {event.what for event in events}
    return {event.by.person for event in events}, {event.by.address for event in events}, changers


@pytest.mark.parametrize("grants", [None, [(OPERATOR, b"mail")]])
def test_only_a_client_that_may_everything_names_a_person(core, grants):
    session = core.client(operator=True) if grants is None else core.limited(*grants)
    persons, _, changers = recorded(core, session, "bob")
    assert (persons, changers) == (({"bob"}, {"bob"}) if grants is None else ({""}, {"10.0.0.1:1"}))


def test_client_that_acts_for_a_person_names_no_other(core):
    session = core.client(operator=True)
    session.client.peer = Peer("10.0.0.1:1 ann", 1)  # as the server has it shown
    assert core.send(session, b"act-for ann\r\n") == b"ACTING\r\n"
    persons, addresses, changers = recorded(core, session, "bob")
    assert (persons, addresses - {"schedule s"}, changers) == ({"ann"}, {"10.0.0.1:1"}, {"ann"})


@pytest.mark.parametrize("line", [b"stats\r\n", b"watch a\r\n", b"act-for ann\r\n", b"show-job 0\r\n"])
def test_client_acts_for_a_person_with_its_first_command_only(core, line):
    session = core.client(operator=True)
    core.send(session, line)
    person = session.person
    told = []
    core.service.unauthorized = lambda *what: told.append(what)
    assert core.send(session, b"act-for bob\r\nstats-job 1\r\n") == b"UNAUTHORIZED\r\nNOT_FOUND\r\n"
    assert session.person == person
    assert told == [("10.0.0.1:1", "act-for")]


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        (b"Ann Smith", b"ACTING"),
        ("Zoë".encode(), b"ACTING"),
        (b"x" * 128, b"ACTING"),
        (b"x" * 129, b"BAD_FORMAT"),
        (b"", b"BAD_FORMAT"),
        (b"a\x1bb", b"BAD_FORMAT"),
        (b"a\0b", b"BAD_FORMAT"),
        ("a\u202eb".encode(), b"BAD_FORMAT"),
        (b"\xff", b"BAD_FORMAT"),
    ],
)
def test_name_of_a_person_is_printable(core, name, reply):
    acting = []
    core.service.act_for = lambda *what: acting.append(what)
    session = core.client(operator=True)
    assert core.send(session, b"act-for %b\r\n" % name) == reply + b"\r\n"
    assert session.person.encode() == (name if reply == b"ACTING" else b"")
    assert acting == ([(session.client, name.decode())] if reply == b"ACTING" else [])
