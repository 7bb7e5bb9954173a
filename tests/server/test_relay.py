"""A router says for whom it asks: what its client may do then, and by what name it is known."""

import json

import pytest

from tests.server.test_access_over_tls import TOKENS, authority, context, own, serve  # noqa: F401
from tests.support.access import DIGEST, TOKEN, allow
from tests.support.servers import start_beanlite
from tests.support.wire import Wire

ROUTER = allow("cert:router.example.org", ["*"], "operator")
MAILER = allow("cert:mailer.example.org", ["mail.*"], "producer", "worker", "reader")
CI = allow("token:ci", ["ci.*"], "producer", "reader")
NET = allow("net:10.1.0.0/16", ["net.*"], "producer", "reader")
RULES = ROUTER + MAILER + CI + NET + TOKENS
ADDRESS = "10.1.2.3:4567"


@pytest.fixture
def router(authority):  # noqa: F811
    return context(authority, authority.issue("router", "DNS:router.example.org"))


def relays(wire, address=ADDRESS, **what):
    assert wire.request("relay-for", address=address, **what) == {}


def refusal(wire, **what):
    body = json.dumps(what).encode()
    return wire.ask(f"relay-for {len(body)}", body)


def test_client_of_a_router_has_the_rights_of_its_certificate(serve, router):  # noqa: F811
    serving = serve(RULES)
    with serving.connect(router) as wire, serving.connect(router) as other:
        relays(wire, address="10.9.9.9:7", names=["cert:b.example.org", "cert:mailer.example.org"], private=True)
        assert wire.ask("use ci.1") == "UNAUTHORIZED"
        assert wire.ask("use net.1") == "UNAUTHORIZED"
        assert wire.ask("use mail.de") == "USING mail.de"
        job_id = wire.put(b"x")
        assert [wire.ask(line) for line in ("watch mail.de", "ignore default")] == ["WATCHING 2", "WATCHING 1"]
        assert wire.ask("offer 0") == f"OFFERED {job_id} 1"
        assert wire.ask(f"take {job_id}") == "TAKEN"
        (job,) = wire.request("list-jobs")["jobs"]
        assert job["holder"]["address"] == "10.9.9.9:7 b.example.org"
        assert [each["id"] for each in other.request("list-jobs", holder_host="10.9.9.9")["jobs"]] == [job_id]
        clients = [each["address"] for each in other.request("list-clients")["clients"]]
        assert clients == ["10.9.9.9:7 b.example.org", "{}:{} router.example.org".format(*other.socket.getsockname())]


def test_client_of_a_router_has_the_rights_of_its_address(serve, router):  # noqa: F811
    with serve(RULES).connect(router) as wire:
        relays(wire)
        assert [wire.ask("use net.1"), wire.ask("use mail.de")] == ["USING net.1", "UNAUTHORIZED"]


@pytest.mark.parametrize(
    ("private", "reply"), [(True, "AUTHENTICATED"), (False, "UNAUTHORIZED"), (None, "UNAUTHORIZED")]
)
def test_token_of_a_client_is_verified_by_the_server(serve, router, private, reply):  # noqa: F811
    with serve(RULES).connect(router) as wire:
        relays(wire, private=private, names=None if private is None else [])
        assert wire.ask(f"auth {TOKEN}") == reply
        if private:
            assert wire.ask("use ci.1") == "USING ci.1"
            (client,) = wire.request("list-clients")["clients"]
            assert client["address"] == f"{ADDRESS} ci"
        else:
            assert wire.is_closed()


def test_token_can_be_that_of_the_router(serve, authority):  # noqa: F811
    serving = serve(TOKENS + allow("token:ci", ["*"], "operator") + NET, clients=None)
    with serving.connect(context(authority)) as wire:
        assert wire.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        relays(wire, private=True)
        assert [wire.ask("use net.1"), wire.ask("use mail.de")] == ["USING net.1", "UNAUTHORIZED"]
        serving.reload(TOKENS.replace(DIGEST, "0" * 64) + NET + allow("token:ci", ["*"], "operator"))
        assert wire.reply() == "UNAUTHORIZED"
        assert wire.is_closed()


def test_client_of_a_router_may_act_for_a_person(serve, router):  # noqa: F811
    rules = RULES + allow("cert:page.example.org", ["*"], "operator") + allow("person:ann", ["a"], "producer")
    with serve(rules).connect(router) as wire:
        relays(wire, names=["cert:page.example.org"])
        assert wire.ask("act-for ann") == "ACTING"
        assert [wire.ask("use a"), wire.ask("use mail.de")] == ["USING a", "UNAUTHORIZED"]


def test_only_a_client_that_may_do_everything_is_a_router(serve, authority):  # noqa: F811
    mailer = context(authority, authority.issue("mailer", "DNS:mailer.example.org"))
    with serve(RULES).connect(mailer) as wire:
        assert refusal(wire, address=ADDRESS, names=["cert:router.example.org"]) == "UNAUTHORIZED"
        assert wire.ask("use mail.de") == "USING mail.de"


def test_a_router_says_it_first_and_once(serve, router):  # noqa: F811
    serving = serve(RULES)
    with serving.connect(router) as wire:
        assert wire.ask("use a") == "USING a"
        assert refusal(wire, address=ADDRESS) == "UNAUTHORIZED"
        assert wire.ask("use mail.de") == "USING mail.de"
    with serving.connect(router) as wire:
        relays(wire, names=["cert:router.example.org"])
        assert refusal(wire, address=ADDRESS) == "UNAUTHORIZED"


@pytest.mark.parametrize("rules", [MAILER, NET], ids=["router", "client"])
def test_reload_ends_a_client_that_has_lost_a_right(serve, router, rules):  # noqa: F811
    serving = serve(RULES)
    with serving.connect(router) as wire:
        relays(wire, names=["cert:mailer.example.org"])
        assert wire.ask("use mail.de") == "USING mail.de"
        serving.reload(RULES + allow("net:10.1.2.3", ["more"], "reader"))
        assert wire.ask("use mail.de") == "USING mail.de"
        serving.reload(rules if rules is MAILER else ROUTER + rules)
        assert wire.reply() == "UNAUTHORIZED"
        assert wire.is_closed()


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"address": "10.1.2.3"},
        {"address": "example.org:1"},
        {"address": "10.1.2.3:0"},
        {"address": "10.1.2.3:65536"},
        {"address": "10.1.2.3:x"},
        {"address": "10.1.2.3:7 x"},
        {"address": ADDRESS, "names": ["mailer.example.org"]},
        {"address": ADDRESS, "names": ["uid:0"]},
        {"address": ADDRESS, "names": ["cert:a b"]},
        {"address": ADDRESS, "private": 1},
    ],
)
def test_odd_client_is_refused(serve, router, what):  # noqa: F811
    with serve(RULES).connect(router) as wire:
        assert refusal(wire, **what).startswith("REFUSED ")


@pytest.mark.parametrize(
    ("address", "is_operator"), [("127.0.0.1:7", True), ("[::1]:7", True), ("10.1.2.3:7", False), ("unix", False)]
)
def test_client_without_rules_is_an_operator_by_its_own_address(tmp_path, address, is_operator):
    with start_beanlite(tmp_path, "--no-journal") as server, Wire(server.connect()) as wire:
        relays(wire, address=address)
        assert wire.ask("show-job 0") == ("NOT_FOUND" if is_operator else "UNKNOWN_COMMAND")
        with Wire(server.connect()) as other:
            assert other.request("list-clients")["clients"][0]["address"] == address


def test_client_of_a_router_that_speaks_another_protocol_is_closed(tmp_path):
    with start_beanlite(tmp_path, "--no-journal") as server, Wire(server.connect()) as wire:
        relays(wire)
        assert wire.ask("GET / HTTP/1.1") == "UNKNOWN_COMMAND"
        assert wire.is_closed()
