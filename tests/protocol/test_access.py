"""What a client with limited rights may do: each word of the tables, with each role, on its own tube and on another."""

import json

import pytest

from beanlite.core.access import OPERATOR, PRODUCER, READER, ROLES, WORKER
from beanlite.protocol.blocked import LOOKING
from beanlite.protocol.command_table import new_commands
from beanlite.protocol.limited import EVERYBODY, ROLE_OF
from beanlite.protocol.operators.commands import new_operator_commands
from beanlite.protocol.operators.lists import TUBES_LOOKED_AT
from tests.support.core import Core
from tests.support.operators import ask

WORDS = [command.word.decode() for command in [*new_commands(), *new_operator_commands()]]
OWN = "mail"
OTHER = "default"  # which each client uses and watches from the start
# The words of each role, as docs/access.md has them. An operator has all.
MAY = {
    PRODUCER: {"use", "put", "put-jobs"},
    WORKER: {
        *("use", "watch", "ignore", "reserve", "reserve-with-timeout", "reserve-job", "reserve-batch", "delete"),
        *(
            "offer",
            "take",
            "decline",
            "release",
            "bury",
            "touch",
            "kick",
            "kick-job",
            "stats-job",
            "stats-tube",
            "note",
        ),
    },
    READER: {
        *("use", "peek", "peek-ready", "peek-delayed", "peek-buried", "stats-job", "stats-tube", "list-tubes"),
        *("list-jobs", "group-jobs", "show-job", "list-tube-stats", "list-clients", "list-policies", "list-schedules"),
        *("watch-events", "diagnose", "show-flow"),
    },
    OPERATOR: set(WORDS) - {"act-for", "relay-for"},  # which are for the role on all tubes
}
EVERYONE = {"stats", "list-tube-used", "list-tubes-watched", "name", "list-rights"}
# Of a job that the client has no right to, it is said that there is none.
BY_ID = {
    "reserve-job",
    "take",
    "decline",
    "delete",
    "release",
    "bury",
    "touch",
    "kick-job",
    "peek",
    "stats-job",
    "show-job",
    "note",
}
# The replies have only what the client may see.
LISTS = {"list-tubes", "list-tube-stats", "list-clients", "list-policies", "list-schedules"}
# The names of schedules are for those that may see them.
BY_NAME = {"unset-schedule", "run-schedule"}
# What is sent after each word. Those with a body are requests.
ARGUMENTS = {
    "put": "0 0 60 1\r\nx",
    "use": "TUBE",
    "watch": "TUBE",
    "ignore": "TUBE",
    "reserve-with-timeout": "0",
    "reserve-batch": "2 0",
    "offer": "0",
    "release": "1 0 0",
    "bury": "1 0",
    "kick": "5",
    "act-for": "ann",
    "stats-tube": "TUBE",
    "pause-tube": "TUBE 5",
    "note": "1 3\r\nwhy",
    "name": "web1/mail/17",
    **dict.fromkeys(
        ("reserve-job", "take", "decline", "delete", "touch", "kick-job", "peek", "stats-job", "show-job"), "1"
    ),
}
REQUESTS: dict[str, dict] = {
    "list-jobs": {"tube": "TUBE"},
    "group-jobs": {"tube": "TUBE", "fact": "state"},
    "list-tube-stats": {},
    "list-clients": {},
    "diagnose": {"tube": "TUBE"},
    "show-flow": {"tube": "TUBE", "range": "hour"},
    "change-jobs": {"do": "bury", "tube": "TUBE", "state": "ready"},
    "set-pause": {"tube": "TUBE", "pause_s": 5},
    "put-jobs": {"jobs": [{"body": "x", "tube": "TUBE"}]},
    "set-schedule": {"name": "new", "when": "0 3 * * *", "tube": "TUBE", "body": "x"},
    "unset-schedule": {"name": "s-TUBE"},
    "run-schedule": {"name": "s-TUBE"},
    "list-schedules": {},
    "watch-events": {"tube": "TUBE"},
    "set-policy": {"pattern": "TUBE", "set": {"max_tries": "3"}},
    "list-policies": {"tube": "TUBE"},
    "list-rights": {},
    "relay-for": {"address": "10.0.0.9:7"},
}
BURIED = {"kick", "kick-job", "peek-buried"}
HELD = {"release", "bury", "touch", "note"}
OFFERED = {"take", "decline"}


def sent(word, tube, **more):
    """The bytes of a command for this tube."""
    if word in REQUESTS:
        body = json.dumps(REQUESTS[word] | more).replace("TUBE", tube).encode()
        return b"%b %d\r\n%b\r\n" % (word.encode(), len(body), body)
    return " ".join(filter(None, (word, ARGUMENTS.get(word, "").replace("TUBE", tube)))).encode() + b"\r\n"


def answer(word, tube, grants):
    """The reply to a word that concerns a tube, from a client with these rights; None: it may do everything."""
    core = Core()
    core.service.relay_for = lambda *_: True
    admin = core.client(operator=True)
    core.send(admin, b"use %b\r\nwatch %b\r\n" % (tube.encode(), tube.encode()))
    core.send(admin, b"put 0 %d 60 1\r\nx\r\n" % (word == "peek-delayed"))
    if word in BURIED:
        core.send(admin, b"reserve-job 1\r\nbury 1 0\r\n")
    ask(core, admin, "set-schedule", name=f"s-{tube}", when="0 3 * * *", tube=tube, body="x")
    ask(core, admin, "set-policy", pattern=tube, set={"ttl": "9d"})
    session = core.client(operator=True) if grants is None else core.limited(*grants)
    core.engine.clients.use(session.client, tube.encode())
    core.engine.clients.watch(session.client, tube.encode())
    if tube != "default":
        core.engine.clients.ignore(session.client, b"default")
    if word in HELD:
        core.engine.reserve_job(session.client, 1, core.now_ns)
    if word in OFFERED:
        core.engine.offering.offer(session.client, core.now_ns)
    return core.send(session, sent(word, tube))


def test_each_word_of_the_tables_has_a_role():
    assert {word.decode() for word in {*ROLE_OF, *EVERYBODY}} == set(WORDS)
    assert {word.decode() for word in EVERYBODY} == EVERYONE


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("word", WORDS)
def test_word_is_for_its_roles_and_their_tubes(word, role):
    every = answer(word, OWN, None)
    assert every.split()[0] not in {b"UNAUTHORIZED", b"BAD_FORMAT", b"UNKNOWN_COMMAND", b"NOT_FOUND"}, every
    own, other = (answer(word, tube, [(role, OWN.encode())]) for tube in (OWN, OTHER))
    if word in EVERYONE:
        assert (own.split()[0], other.split()[0]) == (every.split()[0],) * 2
    elif word not in MAY[role]:
        assert own == other == b"UNAUTHORIZED\r\n"
    else:
        assert own.split()[0] == every.split()[0]
        if word in BY_ID:
            assert other == b"NOT_FOUND\r\n"
        elif word in LISTS and word != "list-policies":
            assert other.split()[0] == b"OK"
            assert OTHER.encode() not in other
            assert OWN.encode() in own
        elif word in BY_NAME:
            assert b"there is no schedule" in other
        elif word == "ignore":
            assert other == b"NOT_IGNORED\r\n"
        else:
            assert other == b"UNAUTHORIZED\r\n"


@pytest.mark.parametrize("word", WORDS)
def test_client_without_rights_may_only_what_everybody_may(word):
    assert (answer(word, OWN, []) == b"UNAUTHORIZED\r\n") == (word not in EVERYONE)


def test_operator_of_all_tubes_has_the_commands_themselves(core):
    session = core.limited((OPERATOR, b"*"))
    every, words = core.service.words, session.words
    assert (words.bare, words.with_arguments, words.operators) == (every.bare, every.with_arguments, every.operators)


# -- bodies, and what else follows a refusal


@pytest.mark.parametrize("size", [1, 70_000])
def test_body_of_a_put_that_is_refused_is_skipped(core, size):
    session = core.limited((PRODUCER, b"mail"))
    body = b"stats\r\n" * (size // 7)
    line = b"put 0 0 60 %d\r\n%b\r\nlist-tube-used\r\n" % (len(body), body)
    assert core.send(session, line) == b"UNAUTHORIZED\r\nUSING default\r\n"
    assert core.send(session, b"put 0 0 60 1 more\r\n") == b"BAD_FORMAT\r\n"
    assert core.send(session, b"put 0 0 60\r\n") == b"BAD_FORMAT\r\n"


@pytest.mark.parametrize("word", sorted(REQUESTS.keys() - EVERYONE))
def test_body_of_a_request_that_is_refused_is_skipped(core, word):
    session = core.limited()
    size = 2 << 20
    data = b"%b %d\r\n%b\r\nlist-tube-used\r\n" % (word.encode(), size, b"x" * size)
    assert core.send(session, data) == b"UNAUTHORIZED\r\nUSING default\r\n"
    assert core.send(session, b"%b x\r\n" % word.encode()) == b"BAD_FORMAT\r\n"


def test_refusals_are_told_with_the_client_and_the_word(core):
    told = []
    core.service.unauthorized = lambda *what: told.append(what)
    core.send(core.limited(), b"reserve\r\nput 0 0 60 1\r\nx\r\npeek 1\r\n")
    assert told == [("10.0.0.1:1", "reserve"), ("10.0.0.1:1", "put"), ("10.0.0.1:1", "peek")]


def test_commands_of_limited_clients_are_counted_unless_refused(core):
    session = core.limited((WORKER, b"mail"), (PRODUCER, b"mail"), (READER, b"mail"))
    core.send(session, b"put 0 0 60 1\r\nx\r\nuse mail\r\nput 0 0 60 1\r\nx\r\ndelete 1\r\ndelete 9\r\nlist-tubes\r\n")
    ask(core, session, "list-jobs")
    words = core.service.words
    counts = {word: words.with_arguments[word].count for word in (b"put", b"use", b"delete")}
    assert counts == {b"put": 1, b"use": 1, b"delete": 1}
    assert (words.bare[b"list-tubes"].count, words.operators[b"list-jobs"].count) == (1, 1)


def test_prefix_of_pause_tube_is_no_way_round_the_rights(core):
    session = core.limited((WORKER, b"*"))
    assert core.send(session, b"list-tube-used\r\npause-tubedefault 5\r\n") == b"USING default\r\nUNAUTHORIZED\r\n"


# -- the default tube


def test_client_without_default_begins_with_use_and_watch(core):
    session = core.limited((WORKER, b"mail"), (PRODUCER, b"mail"))
    other = core.client()
    core.send(other, b"put 0 0 60 6\r\nothers\r\n")
    put = b"put 0 0 60 3\r\nown\r\n"
    assert core.send(session, put + b"reserve\r\nreserve-with-timeout 0\r\nreserve-batch 1 0\r\n") == (
        b"UNAUTHORIZED\r\n" * 4
    )
    assert core.send(session, b"use mail\r\n" + put) == b"USING mail\r\nINSERTED 2\r\n"
    assert core.send(session, b"watch mail\r\nreserve\r\n") == b"WATCHING 2\r\nUNAUTHORIZED\r\n"
    assert core.send(session, b"ignore default\r\nreserve\r\n") == b"WATCHING 1\r\nRESERVED 2 3\r\nown\r\n"
    assert core.send(session, b"use default\r\nwatch default\r\n") == b"UNAUTHORIZED\r\n" * 2


def test_reserve_of_a_client_with_default_is_the_command_itself(core):
    session = core.limited((WORKER, b"default"))
    assert session.words.find(b"reserve", bare=True) is core.service.words.find(b"reserve", bare=True)


# -- what requests name


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("change-jobs", {"do": "move", "tube": "mail", "to": "other"}),
        ("change-jobs", {"do": "copy", "ids": [1], "to": "other"}),
        ("put-jobs", {"jobs": [{"body": "x", "tube": "mail"}, {"body": "x", "tube": "other"}]}),
        ("put-jobs", {"jobs": [{"body": "x", "tube": "mail"}, {"body": "x"}]}),
        ("set-policy", {"pattern": "mai*", "set": {"ttl": "1d"}}),
        ("set-policy", {"pattern": "mail", "set": {"max_tries": "1", "then": "move:other"}}),
        ("set-policy", {"pattern": "mail", "set": {"ttl": "1d", "expired": "move:other"}}),
        ("set-policy", {"policies": [{"pattern": "mail", "unset": "all"}, {"pattern": "other", "unset": "all"}]}),
        ("set-policy", {"policies": [], "prune": True}),
        ("set-schedule", {"name": "theirs", "when": "0 3 * * *", "tube": "mail", "body": "x"}),
        ("set-pause", {"tube": "other", "pause_s": 5}),
        ("list-jobs", {"tube": "none-such"}),
    ],
)
def test_request_that_names_another_tube_changes_nothing(core, word, what):
    admin = core.client(operator=True)
    ask(core, admin, "set-schedule", name="theirs", when="5 * * * *", tube="other", body="x")
    core.send(admin, b"use mail\r\nput 0 0 60 1\r\nx\r\n")
    session = core.limited((OPERATOR, b"mail"))
    core.store()
    assert ask(core, session, word, **what) == b"UNAUTHORIZED\r\n"
    changes = core.store()
    assert not changes.jobs
    assert not changes.pauses
    assert not changes.policies
    assert not changes.schedules


def test_change_without_a_tube_leaves_other_tubes_alone(core):
    admin = core.client(operator=True)
    core.send(admin, b"put 0 0 60 1\r\nx\r\nuse mail\r\nput 0 0 60 1\r\nx\r\n")
    reply = ask(core, core.limited((OPERATOR, b"mail")), "change-jobs", do="delete", up_to_id=9)
    assert b'"done":1' in reply
    assert core.engine.jobs.ids_after(-1, 9) == [1]


def test_list_of_named_tubes_does_not_tell_which_others_there_are(core):
    core.send(core.client(), b"use mail\r\nwatch secret\r\n")
    session = core.limited((READER, b"mail"))
    there, nowhere = (ask(core, session, "list-tube-stats", names=["mail", name]) for name in ("secret", "nowhere"))
    assert there == nowhere


def test_list_of_very_many_tubes_lets_others_go_on(core):
    tubes = [core.engine.clients.tube(b"mail.%d" % number) for number in range(2 * TUBES_LOOKED_AT)]
    session = core.limited((READER, b"mail.*"))
    session.receive(b"list-tube-used\r\nlist-tubes\r\nlist-tube-used\r\n", core.now_ns)
    session.resume(core.now_ns)
    assert session.blocked is LOOKING
    assert session.take_replies() == b"USING default\r\n"
    core.go_on(session)
    reply = session.take_replies()
    assert reply.count(b"\n- mail.") == len(tubes)
    assert reply.endswith(b"USING default\r\n")


def test_slices_of_a_list_of_tubes_are_smaller_with_many_globs(core):
    made = core.client()
    core.send(made, b"".join(b"watch tube-%03d\r\n" % number for number in range(900)))
    globs = [(READER, b"%d*" % number) for number in range(TUBES_LOOKED_AT // 100)]
    limited = core.limited(*globs, (READER, b"tube-0*"), (READER, b"tube-899"))
    limited.receive(b"list-tubes\r\n", core.now_ns)
    slices = 0
    kept = [0]
    while limited.blocked is LOOKING:
        limited.resume(core.now_ns)
        kept.append(limited.aside_bytes)
        slices += 1
        if slices == 3:  # what comes and goes meanwhile neither hides a tube nor shows one twice
            core.send(made, b"ignore tube-000\r\nignore tube-500\r\nwatch tube-0new\r\n")
    assert slices > 9
    assert max(kept) >= 8 * 100
    names = limited.take_replies().decode().split("\n- ")[1:]
    assert [name.strip() for name in names] == [
        *(f"tube-{number:03}" for number in range(100)),
        "tube-899",
        "tube-0new",
    ]
    assert limited.aside_bytes == 0


def test_client_is_told_its_rights(core):
    everything = b'{"everything":true,"rights":[]}'
    assert everything in ask(core, core.client(operator=True), "list-rights")
    reply = ask(core, core.limited((OPERATOR, b"*")), "list-rights")
    assert b'{"everything":true,"rights":[{"role":"operator","tubes":"*"}]}' in reply
    reply = ask(core, core.limited((READER, b"*"), (OPERATOR, b"mail.*")), "list-rights")
    assert b'"everything":false,"rights":[{"role":"operator","tubes":"mail.*"},{"role":"reader","tubes":"*"}]' in reply
    assert b'{"everything":false,"rights":[]}' in ask(core, core.limited(), "list-rights")


# -- while a command waits


def test_job_that_is_moved_while_its_statistics_wait_is_not_shown(core):
    admin, session = core.client(operator=True), core.limited((READER, b"mail"))
    core.send(admin, b"use mail\r\nput 0 0 60 1\r\nx\r\n")
    session.receive(b"stats-job 1\r\n", core.now_ns)
    ask(core, admin, "change-jobs", do="move", ids=[1], to="other")
    core.go_on(session)
    assert session.take_replies() == b"NOT_FOUND\r\n"


@pytest.mark.parametrize("word", ["list-jobs", "change-jobs"])
@pytest.mark.parametrize("what", [{"holder": 1}, {"state": "reserved"}, {"ids": [1, 2]}, {"up_to_id": 2}])
def test_number_of_jobs_looked_at_tells_nothing_of_other_tubes(core, word, what):
    holder = core.client()
    session = core.limited((OPERATOR, b"mail"))
    more = {"do": "delete", "dry_run": True} if word == "change-jobs" else {}
    before = ask(core, session, word, **what, **more)
    core.send(holder, b"put 0 0 60 1\r\nx\r\n" * 2 + b"reserve\r\nreserve\r\n")
    after = ask(core, session, word, **what, **more)
    assert after.replace(b'"last_id":2', b'"last_id":0') == before
