"""How many passwords are checked, and that those who guess keep nobody out."""

import asyncio
import socket
import threading

import pytest

from beanlite.web import guesses
from beanlite.web.guesses import CHECKS_AT_ONCE, EVERY_S, FREE, WAITING_MAX, Guesses, TooMany
from beanlite.web.safety import User
from tests.support.web import sign_in

ANN = User("ann", may_change=True)


def header(login):
    return sign_in(login)["authorization"]


class Passwords:
    """Of which one is right; checks wait until they are let go."""

    def __init__(self):
        self.checked = []
        self.seen = set()
        self.free = threading.Event()
        self.free.set()
        self.at_once = self.most_at_once = 0

    def recall(self, authorization):
        return ANN if authorization in self.seen else None

    def check(self, authorization):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.checked.append(authorization)
        assert self.free.wait(20)
        self.at_once -= 1
        if authorization != header("ann:right"):
            return None
        self.seen.add(authorization)
        return ANN


@pytest.fixture
def passwords():
    return Passwords()


async def refused(checks, address, login="ann:wrong"):
    try:
        assert await checks.check(header(login), address) is None
    except TooMany:
        return True
    return False


async def test_wrong_passwords_of_an_address_are_limited(passwords, caplog):
    now_s = [1000.0]
    checks = Guesses(passwords, lambda: now_s[0])
    assert [await refused(checks, "10.0.0.1") for _ in range(FREE + 3)] == [False] * FREE + [True] * 3
    assert len(passwords.checked) == FREE
    with pytest.raises(TooMany):  # or the answer would tell whether it is right
        await checks.check(header("ann:right"), "10.0.0.1")
    assert await checks.check(header("ann:right"), "10.0.0.2") == ANN
    assert await checks.check(header("ann:right"), "10.0.0.1") == ANN  # it is known by now, and costs nothing
    now_s[0] += EVERY_S
    assert [await refused(checks, "10.0.0.1") for _ in range(2)] == [False, True]
    now_s[0] += FREE * EVERY_S
    assert [await refused(checks, "10.0.0.1") for _ in range(FREE + 1)] == [False] * FREE + [True]
    assert caplog.text.count("wrong password") == 2 * FREE + 1


@pytest.mark.parametrize(
    ("address", "neighbour", "is_one"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("unix", "unix", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("unix", "127.0.0.1", False),
    ],
)
async def test_network_of_ipv6_has_the_guesses_of_one_address(passwords, address, neighbour, is_one):
    checks = Guesses(passwords, lambda: 1000.0)
    assert [await refused(checks, address) for _ in range(FREE + 1)] == [False] * FREE + [True]
    assert await refused(checks, neighbour) == is_one


async def test_guesses_at_the_same_time_are_limited_as_well(passwords):
    checks = Guesses(passwords, lambda: 1000.0)
    found = await asyncio.gather(*(refused(checks, "10.0.0.1", f"ann:{n}") for n in range(50)))
    assert found.count(False) == FREE
    assert passwords.most_at_once == 1
    assert not checks._turns


async def test_guesses_by_some_that_come_again_are_limited_as_well(passwords):
    checks = Guesses(passwords, lambda: 1000.0)

    async def guess(name):
        return [await refused(checks, "10.0.0.1", f"ann:{name}{n}") for n in range(2 * FREE)]

    answers = await asyncio.gather(*map(guess, "abcd"))
    assert sum(each.count(False) for each in answers) == len(passwords.checked) == FREE
    assert passwords.most_at_once == 1


@pytest.mark.parametrize("is_wrong", [True, False])
async def test_check_whose_request_is_cancelled_counts_all_the_same(passwords, caplog, is_wrong):
    checks = Guesses(passwords, lambda: 1000.0)
    async with asyncio.timeout(60):
        for _ in range(FREE):
            passwords.seen.clear()
            passwords.free.clear()
            check = asyncio.create_task(refused(checks, "10.0.0.1", "ann:wrong" if is_wrong else "ann:right"))
            while not passwords.at_once:
                await asyncio.sleep(0)
            check.cancel()
            await asyncio.wait({check})
            passwords.free.set()
            while checks._checks._value < CHECKS_AT_ONCE:
                await asyncio.sleep(0)
    assert await refused(checks, "10.0.0.1") == is_wrong
    assert caplog.text.count("wrong password") == (FREE if is_wrong else 1)


async def test_checks_of_all_addresses_take_bounded_memory(passwords):
    checks = Guesses(passwords, lambda: 1000.0)
    assert not any(await asyncio.gather(*(refused(checks, f"10.0.0.{n}") for n in range(20))))
    assert passwords.most_at_once <= CHECKS_AT_ONCE


async def test_very_many_guesses_keep_nobody_out_that_is_known(passwords):
    checks = Guesses(passwords, lambda: 1000.0)
    passwords.seen.add(header("ann:right"))
    passwords.free.clear()
    async with asyncio.timeout(60):
        waiting = [asyncio.create_task(refused(checks, f"10.0.0.{n}")) for n in range(WAITING_MAX)]
        while passwords.at_once < CHECKS_AT_ONCE:
            await asyncio.sleep(0)
        assert all([await refused(checks, f"10.0.1.{n}") for n in range(200)])
        assert await checks.check(header("ann:right"), "10.0.0.1") == ANN
        passwords.free.set()
        assert not any(await asyncio.gather(*waiting))
        assert not await refused(checks, "10.0.1.1")


async def test_check_that_nobody_waits_for_keeps_its_place(passwords):
    checks = Guesses(passwords, lambda: 1000.0)
    passwords.free.clear()
    for number in range(CHECKS_AT_ONCE):
        check = asyncio.create_task(refused(checks, f"10.0.0.{number}"))
        while passwords.at_once <= number:
            await asyncio.sleep(0)
        check.cancel()
        await asyncio.wait({check})
    late = asyncio.create_task(refused(checks, "10.0.0.200"))
    await asyncio.sleep(0.1)  # it does not begin, however long that is
    passwords.free.set()
    assert not await late
    assert not await refused(checks, "10.0.1.1")
    assert passwords.most_at_once == CHECKS_AT_ONCE


async def test_a_right_password_in_many_requests_is_checked_once(passwords):
    checks = Guesses(passwords, lambda: 1000.0)
    assert await asyncio.gather(*(checks.check(header("ann:right"), "10.0.0.1") for _ in range(30))) == [ANN] * 30
    assert len(passwords.checked) == 1


@pytest.mark.parametrize("nothing", ["", "Basic", "Basic !!", "Bearer x", header("ann:"), header("ann"), header(":x")])
async def test_what_is_no_login_is_not_checked(passwords, nothing):
    checks = Guesses(passwords, lambda: 1000.0)
    assert [await checks.check(nothing, "10.0.0.1") for _ in range(2 * FREE)] == [None] * 2 * FREE
    assert not passwords.checked


async def test_only_so_many_addresses_are_remembered(passwords, monkeypatch):
    monkeypatch.setattr(guesses, "ADDRESSES_MAX", 3)
    checks = Guesses(passwords, lambda: 1000.0)
    for number in range(10):
        await refused(checks, f"10.0.0.{number}")
    assert list(checks._free_at_s) == [socket.inet_aton(f"10.0.0.{number}") for number in (7, 8, 9)]
