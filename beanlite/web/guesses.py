"""How often passwords are checked: each check takes 64 MiB and a good part of a second of a core.

An address may be wrong some times, and then once in a while. Its checks are made one after the other, and few in all at
the same time, so that others are let in meanwhile. Few wait for theirs, so that those whose password is known already
are served however many guess.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from beanlite.host import log
from beanlite.net.addresses import Addresses
from beanlite.web.safety import Passwords, User, login_in
from beanlite.web.threads import in_thread

# How many wrong passwords an address may give at once, and how long it takes until it may give one more.
FREE: Final = 10
EVERY_S: Final = 6.0
# How many passwords are checked at the same time.
CHECKS_AT_ONCE: Final = 2
# How many passwords are checked or wait for it. Each is a task of uvicorn's, which refuses all requests when it has as
# many tasks as there may be connections.
WAITING_MAX: Final = 50
# How many addresses are remembered; each for FREE * EVERY_S at most.
ADDRESSES_MAX: Final = 10_000
# How many characters of a name are logged.
_NAME_MAX: Final = 80


class TooMany(Exception):
    """The password is not checked: the address has given too many wrong ones, or too many wait for their check."""


class Guesses:
    """The recent wrong passwords of each address."""

    def __init__(self, passwords: Passwords, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._passwords = passwords
        self._clock = clock
        self._addresses = Addresses(FREE, spare_local=False)
        self._free_at_s: dict[bytes | None, float] = {}
        """When an address will have as many guesses as at first."""
        self._turns: WeakValueDictionary[bytes | None, asyncio.Lock] = WeakValueDictionary()
        """Of addresses with a check under way: what the next check waits for, as long as there is one."""
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0
        """How many passwords are checked, or wait for it."""
        self._floods = log.Seldom()

    async def check(self, authorization: str, address: str) -> User | None:
        """Return the user in this header if the password is correct. TooMany: it is not checked."""
        if not all(login_in(authorization)):  # it has nothing to check
            return None
        user = self._passwords.recall(authorization)
        if user is not None:
            return user
        if self._waiting >= WAITING_MAX:
            self._floods.warning("too many logins at the same time: some are refused", at_most=WAITING_MAX)
            raise TooMany("Too many passwords are being checked; try again soon.")
        place = self._addresses.address_of(None if address == "unix" else (address,))
        self._waiting += 1
        try:
            async with self._turns.setdefault(place, asyncio.Lock()):
                user = self._passwords.recall(authorization)  # the same one may have been checked meanwhile
                return await self._check(authorization, address, place) if user is None else user
        finally:
            self._waiting -= 1

    async def _check(self, authorization: str, address: str, place: bytes | None) -> User | None:
        free_at_s = max(self._free_at_s.get(place, 0.0), self._clock())
        if free_at_s - self._clock() > (FREE - 1) * EVERY_S:
            self._floods.warning("too many failed logins: passwords are not checked for now", address=address)
            raise TooMany("There were too many wrong passwords from your address; wait a minute.")
        self._note(place, free_at_s + EVERY_S)

        def check() -> User | None:
            user = self._passwords.check(authorization)
            loop.call_soon_threadsafe(end, user)
            return user

        def end(user: User | None) -> None:
            """Note how the check has ended, also if its request was cancelled meanwhile."""
            if user is None:
                name = login_in(authorization)[0]
                log.warning("wrong password", address=address, user=name[:_NAME_MAX])
            else:
                self._note(place, self._free_at_s.get(place, 0.0) - EVERY_S)

        loop = asyncio.get_running_loop()
        return await in_thread(self._checks, check)

    def _note(self, place: bytes | None, free_at_s: float) -> None:
        self._free_at_s.pop(place, None)  # the latest are the last
        if free_at_s > self._clock():
            self._free_at_s[place] = free_at_s
        while len(self._free_at_s) > ADDRESSES_MAX:
            del self._free_at_s[next(iter(self._free_at_s))]
