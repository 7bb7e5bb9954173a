"""Who clients are, and how long and how many of them may be without rights."""

import asyncio
import ssl
from hashlib import sha256
from ipaddress import ip_network
from typing import Any

import pytest

from beanlite.net import handshakes
from beanlite.net.allowed import Access, Rule, deciding
from beanlite.net.identities import Identity, identity_of, names_in
from beanlite.net.operators import Operators
from beanlite.net.pending import PENDING_S, Pending
from beanlite.net.turns import LATE, Turns
from tests.support.simulated import Client, settle, simulated

# -- certificates


@pytest.mark.parametrize(
    ("certificate", "names"),
    [
        (None, []),
        ({}, []),  # it was not verified
        ({"subject": ((("commonName", "mailer"),),)}, ["cert:mailer"]),
        (
            {
                "subject": ((("organizationName", "x"),), (("commonName", "mailer"),)),
                "subjectAltName": (("DNS", "mailer.example.org"), ("URI", "spiffe://example.org/mailer")),
            },
            ["cert:mailer.example.org", "cert:spiffe://example.org/mailer"],
        ),
        (
            {"subject": ((("commonName", "mailer"),),), "subjectAltName": (("IP Address", "10.0.0.1"),)},
            ["cert:mailer"],
        ),
        ({"subject": ((("commonName", "a mailer\r\n"),),)}, []),
        ({"subjectAltName": (("DNS", ""), ("DNS", "x" * 201), ("DNS", "ok"))}, ["cert:ok"]),
        ({"subject": ((("commonName", "spiffe://example.org/admin"),),)}, []),
        ({"subjectAltName": (("URI", "mailer.example.org"),)}, []),
    ],
)
def test_names_in_a_certificate(certificate, names):
    assert names_in(certificate) == names


class Transport(asyncio.Transport):
    """The transport of a connection over TLS, or over TCP alone."""

    def __init__(self, peer, certificate=None):
        class Tls:
            def getpeercert(self):
                if isinstance(certificate, Exception):
                    raise certificate
                return certificate

        super().__init__({"peername": peer} | ({} if certificate is None else {"ssl_object": Tls()}))


def test_client_over_tls_has_the_names_in_its_certificate():
    identity = identity_of(Transport(("10.0.0.1", 7), {"subjectAltName": (("DNS", "a.org"), ("DNS", "b.org"))}))
    assert tuple(identity) == (frozenset({"cert:a.org", "cert:b.org"}), "a.org", "10.0.0.1", True)
    assert identity.with_token("ci") == (frozenset({"cert:a.org", "cert:b.org", "token:ci"}), "ci", "10.0.0.1", True)
    assert identity_of(Transport(("10.0.0.1", 7), {})) == (frozenset(), "", "10.0.0.1", True)


@pytest.mark.parametrize("error", [ssl.SSLError("invalid certificate"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "")])
def test_certificate_that_python_cannot_read_has_no_names(error):
    assert identity_of(Transport(("10.0.0.1", 7), error)) == (frozenset(), "", "10.0.0.1", True)


def test_client_over_tcp_has_its_address_alone():
    assert identity_of(Transport(("10.0.0.1", 7))) == (frozenset(), "", "10.0.0.1", False)


# -- rules


def rule(number, who, role, tubes, networks=()):
    return Rule(number, (who,), frozenset({who}), tuple(map(ip_network, networks)), (role,), tuple(tubes))


RULES = [
    rule(1, "cert:a", "producer", [b"mail.*"]),
    rule(2, "cert:b", "worker", [b"mail.*"]),
    rule(3, "net", "reader", [b"*"], ["10.1.0.0/16", "2001:db8::/32"]),
    rule(4, "cert:a", "operator", [b"mail.de"]),
]


@pytest.mark.parametrize(
    ("names", "host", "numbers"),
    [
        (["cert:a"], None, [1, 4]),
        (["cert:a", "cert:b"], "10.1.2.3", [1, 2, 3, 4]),
        ([], "::ffff:10.1.2.3", [3]),
        ([], "2001:db8::1", [3]),
        ([], "fe80::1%eth0", []),
        ([], "10.2.0.1", []),
        (["net"], None, [3]),
    ],
)
def test_rules_that_match_a_client(names, host, numbers):
    access = Access(RULES, {}, {})
    rules = access.matching(frozenset(names), host)
    assert [each.number for each in rules] == numbers
    assert access.rights_of(rules) is access.rights_of(access.matching(frozenset(names), host))


def test_first_rule_that_gives_the_role_decides():
    rules = Access(RULES, {}, {}).matching(frozenset({"cert:a"}), "10.1.0.1")
    assert deciding(rules, "producer", b"mail.de").number == 1
    assert deciding(rules, "worker", b"mail.de").number == 4
    assert deciding(rules, "reader", b"x").number == 3
    assert deciding(rules, "worker", b"mail.fr") is None


# -- connections without rights


class Loop:
    """A loop in which a test lets time pass."""

    def __init__(self):
        self.now_s = 100.0
        self.timers = []

    def time(self):
        return self.now_s

    def call_later(self, delay_s, do):
        self.timers.append((self.now_s + delay_s, do))

    def wait(self, seconds):
        until_s = self.now_s + seconds
        while self.timers and min(self.timers)[0] <= until_s:
            self.timers.sort(key=lambda timer: timer[0])
            self.now_s, do = self.timers.pop(0)
            do()
        self.now_s = until_s


@pytest.fixture
def loop():
    return Loop()


MOST = 90
PER_PLACE = 9


def at(host):
    return Identity(frozenset(), "", host, is_private=False)


def user(uid):
    return Identity(frozenset({f"uid:{uid}"}), f"uid:{uid}", None, is_private=True)


def test_connection_without_rights_is_ended_after_its_time(loop):
    ended: list[Any] = []
    waiting: Any = Pending(loop, lambda connection: ended.append((connection, loop.now_s)), lambda _: None, MOST)
    waiting.add("first", user(1))
    loop.wait(4)
    waiting.add("second", user(1))
    waiting.add("third", user(1))
    waiting.drop("third")
    loop.wait(20)
    assert ended == [("first", 100 + PENDING_S), ("second", 104 + PENDING_S)]
    assert not len(waiting)
    assert not loop.timers
    waiting.add("fourth", user(1))
    loop.wait(PENDING_S)
    assert ended[-1] == ("fourth", loop.now_s)


@pytest.mark.parametrize(("one", "another"), [(at("10.0.0.1"), at("10.0.0.2")), (user(1), user(2))])
def test_earliest_connection_without_rights_makes_room(loop, one, another):
    closed = []
    waiting: Any = Pending(loop, lambda _: None, closed.append, MOST)
    waiting.add("another", another)
    for number in range(PER_PLACE):
        waiting.add(number, one)
    assert closed == []
    waiting.add("too many of its place", one)
    assert closed == [0]
    waiting.drop(1)
    waiting.add("again", one)
    for number in range(MOST - len(waiting)):
        waiting.add((2, number), user(1000 + number))
    assert closed == [0]
    waiting.add("too many of all", at("10.0.0.3"))
    assert closed == [0, "another"]
    assert len(waiting) == MOST
    loop.wait(PENDING_S)
    assert not len(waiting)
    for number in range(PER_PLACE):
        waiting.add(number, one)
    assert closed == [0, "another"]


def test_addresses_of_one_network_are_one_address_for_the_bound(loop):
    closed = []
    waiting: Any = Pending(loop, lambda _: None, closed.append, MOST)
    for number in range(PER_PLACE):
        waiting.add(number, at(f"2001:db8::{number:x}"))
    waiting.add("another", at("2001:db8:0:1::1"))
    for number in range(PER_PLACE):
        waiting.add((1, number), at("10.0.0.1"))
    assert closed == []
    waiting.add("too many", at("2001:db8::ffff"))
    waiting.add("mapped", at("::ffff:10.0.0.1"))
    assert closed == [0, (1, 0)]


def test_connections_without_rights_are_a_tenth_of_all():
    async def play(server, _journal):
        settings = server._settings
        assert server.parts.roster._gate._pending._most == handshakes.most_pending(settings.max_connections)
        await server.parts.roster.change(1000, 100, Operators("none"), None)
        assert server.parts.roster._gate._pending._most == 100

    assert simulated(play) is None


class FromNetwork(Client):
    """A client that no rule knows."""

    host = "10.0.0.1"

    def get_extra_info(self, name, default=None):
        return {"peername": (self.host, 5123), "sockname": ("10.0.0.2", 11300)}.get(name, default)


class OfThisMachine(FromNetwork):
    """A client that no rule knows, on the server's machine."""

    host = "10.0.0.2"


def without_rights(server):
    server.parts.roster._gate.change(Operators("none"), Access([], {}, {}), 16)


def test_client_without_rights_is_told_and_closed_in_a_server():
    async def play(server, _journal):
        without_rights(server)
        client = FromNetwork(server)
        assert await client.ask(b"list-tube-used\r\nuse a\r\n") == b"USING default\r\nUNAUTHORIZED\r\n"
        await asyncio.sleep(PENDING_S - 1)
        assert not client.closed
        client.said = b""
        await asyncio.sleep(2)
        assert client.said == b"UNAUTHORIZED\r\n"
        assert client.closed
        assert not server.parts.engine.clients.connected

    assert simulated(play) is None


def test_earliest_client_without_rights_is_closed_for_another():
    async def play(server, _journal):
        without_rights(server)
        server.parts.roster._gate._pending._addresses.limit(2, spare_local=False)
        first, second, third = (FromNetwork(server) for _ in range(3))
        await settle()
        assert (first.closed, second.closed, third.closed) == (True, False, False)
        assert server.parts.refusals.counts["unauthorized"] == 1
        assert len(server.parts.engine.clients.connected) == 2
        second.close()
        await settle()
        assert not FromNetwork(server).closed
        await asyncio.sleep(PENDING_S + 1)

    assert simulated(play) is None


def test_token_of_the_page_is_of_no_use_on_another_machine():
    async def play(server, _journal):
        without_rights(server)
        gate = server.parts.roster._gate
        gate.change(Operators("none"), Access([rule(1, "page", "operator", [b"*"])], {}, {}), 16)
        gate.page_digest = sha256(b"right").hexdigest()
        assert await OfThisMachine(server).ask(b"auth right\r\nuse a\r\n") == b"AUTHENTICATED\r\nUSING a\r\n"
        assert await FromNetwork(server).ask(b"auth right\r\nuse a\r\n") == b"UNAUTHORIZED\r\n"

    assert simulated(play) is None


def test_silent_clients_do_not_shut_the_page_out():
    async def play(server, _journal):
        without_rights(server)
        gate = server.parts.roster._gate
        gate.change(Operators("none"), Access([rule(1, "page", "operator", [b"*"])], {}, {}), 16)
        gate.page_digest = sha256(b"right").hexdigest()
        silent = [OfThisMachine(server) for _ in range(100)]
        assert await OfThisMachine(server).ask(b"auth right\r\nuse a\r\n") == b"AUTHENTICATED\r\nUSING a\r\n"
        assert not all(client.closed for client in silent)
        await asyncio.sleep(PENDING_S + 1)

    assert simulated(play) is None


def test_page_has_the_rights_of_the_rules_for_it_alone():
    net = rule(1, "net", "operator", [b"*"], ["10.0.0.0/8"])

    async def play(server, _journal):
        gate = server.parts.roster._gate
        gate.page_digest = sha256(b"right").hexdigest()
        gate.change(Operators("none"), Access([net], {}, {}), 16)
        first = OfThisMachine(server)
        assert (
            await first.ask(b"auth right\r\nuse a\r\nlist-tubes\r\n") == b"AUTHENTICATED\r\n" + b"UNAUTHORIZED\r\n" * 2
        )
        assert await OfThisMachine(server).ask(b"use a\r\n") == b"USING a\r\n"
        first.said = b""
        await server.parts.roster.change(
            100, 16, Operators("none"), Access([net, rule(2, "page", "producer", [b"a"])], {}, {})
        )
        assert await first.ask(b"use a\r\nuse b\r\n") == b"USING a\r\nUNAUTHORIZED\r\n"
        first.said = b""
        await server.parts.roster.change(100, 16, Operators("none"), Access([net], {}, {}))
        await settle()
        assert first.said == b"UNAUTHORIZED\r\n"

    assert simulated(play) is None


def test_client_loses_the_rights_of_its_person_with_any_of_the_rules():
    net = rule(1, "net", "operator", [b"*"], ["10.0.0.0/8"])
    limited = rule(1, "net", "operator", [b"a", b"b"], ["10.0.0.0/8"])
    ann, less = (rule(2, "person:ann", "operator", tubes) for tubes in ([b"a", b"b"], [b"a"]))
    every = rule(2, "person:ann", "operator", [b"*"])

    async def play(server, _journal):
        async def after(before, then):
            await roster.change(100, 16, Operators("unix,10.0.0.0/8"), before and Access(before, {}, {}))
            client = FromNetwork(server)
            assert await client.ask(b"act-for ann\r\nuse a\r\n") == b"ACTING\r\nUSING a\r\n"
            client.said = b""
            await roster.change(100, 16, Operators("none"), then and Access(then, {}, {}))
            await settle()
            return client.said or await client.ask(b"use b\r\nuse c\r\n")

        roster = server.parts.roster
        ended = b"UNAUTHORIZED\r\n"
        assert await after([net, ann], [net, ann, less]) == b"USING b\r\nUNAUTHORIZED\r\n"
        assert await after([net, less], [net, ann]) == b"USING b\r\nUNAUTHORIZED\r\n"
        assert await after([net, ann], [net, less]) == ended
        assert await after([net, ann], [net]) == ended
        assert await after([net, ann], [limited, ann]) == ended  # who acts for her may do so no longer
        assert await after([net, every], [limited, every]) == ended
        assert await after([net, every], [net, ann]) == ended
        assert await after(None, [net, ann]) == ended
        assert await after(None, [net, every]) == b"USING b\r\nUSING c\r\n"
        assert await after([net, ann], None) == b"USING b\r\nUSING c\r\n"

    assert simulated(play) is None


def test_client_that_loses_a_right_loses_it_before_its_turn_to_leave(monkeypatch):
    def rules(*tubes):
        return Access([rule(1, "net", role, tubes, ["10.0.0.0/8"]) for role in ("producer", "worker")], {}, {})

    async def play(server, _journal):
        roster = server.parts.roster
        roster._gate.change(Operators("none"), rules(b"a", b"b"), 16)
        producer, worker = FromNetwork(server), FromNetwork(server)
        await worker.ask(b"watch a\r\nignore default\r\nreserve\r\n")
        with monkeypatch.context() as late:
            late.setattr(Turns, "now_unless_late", lambda _: LATE)
            await roster.change(100, 16, Operators("none"), rules(b"b"))
        worker.said = b""
        assert await producer.ask(b"use a\r\nput 0 0 60 1\r\nx\r\n") == b"UNAUTHORIZED\r\n" * 3
        assert worker.said == b"UNAUTHORIZED\r\n"

    assert simulated(play) is None
