"""A connection of the load: replies are read one by one, and none may be of another kind than the command allows."""

import asyncio
import re
from collections.abc import Awaitable
from typing import Self, TypeVar

from tests.soak.books import Books

WITHIN_S = 60.0  # far more than the longest time that the server is halted
HAVE_BODY = (b"RESERVED ", b"FOUND ", b"OK ")
REPLIES = {
    "put": re.compile(rb"INSERTED \d+|OUT_OF_MEMORY|DRAINING"),
    "reserve-with-timeout": re.compile(rb"RESERVED \d+ \d+|TIMED_OUT|DEADLINE_SOON"),
    "delete": re.compile(rb"DELETED|NOT_FOUND"),
    "release": re.compile(rb"RELEASED|NOT_FOUND"),
    "bury": re.compile(rb"BURIED|NOT_FOUND"),
    "touch": re.compile(rb"TOUCHED|NOT_FOUND"),
    "kick": re.compile(rb"KICKED \d+"),
    "kick-job": re.compile(rb"KICKED|NOT_FOUND"),
    "use": re.compile(rb"USING \S+"),
    "watch": re.compile(rb"WATCHING \d+"),
    "ignore": re.compile(rb"WATCHING \d+"),
    "pause-tube": re.compile(rb"PAUSED|NOT_FOUND"),
    "list-tubes": re.compile(rb"OK \d+"),
    "list-tube-used": re.compile(rb"USING \S+"),
    "stats": re.compile(rb"OK \d+"),
    "stats-job": re.compile(rb"OK \d+|NOT_FOUND"),
    "stats-tube": re.compile(rb"OK \d+|NOT_FOUND"),
} | dict.fromkeys(("peek", "peek-ready", "peek-delayed", "peek-buried"), re.compile(rb"FOUND \d+ \d+|NOT_FOUND"))

Read = TypeVar("Read")


class Gone(Exception):
    """The connection has ended."""


class Connection:
    """One connection. ``body`` is that of the last reply that had one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, books: Books) -> None:
        self.body = b""
        self._reader = reader
        self._writer = writer
        self._word = "connect"  # the command whose reply was asked for last
        self._books = books

    @classmethod
    async def open(cls, port: int, books: Books) -> Self:
        """Connect. Raises OSError."""
        return cls(*await asyncio.open_connection("127.0.0.1", port), books)

    @property
    def gone(self) -> bool:
        """Whether it has ended, which its client may not have noticed yet."""
        return self._reader.at_eof() or self._writer.transport.is_closing()

    async def send(self, data: bytes) -> None:
        """Send, and wait until there is room for more."""
        if self.gone:
            raise Gone
        self._writer.write(data)
        await self._in_time(self._writer.drain())

    async def reply(self, word: str) -> list[bytes]:
        """The reply to a command, in words."""
        self._word = word
        line = (await self._in_time(self._reader.readuntil(b"\r\n")))[:-2]
        if not REPLIES[word].fullmatch(line):
            self._books.complain(f"{word} was answered {line[:200]!r}")
            raise Gone
        if line.startswith(HAVE_BODY):
            self.body = (await self._in_time(self._reader.readexactly(int(line.split()[-1]) + 2)))[:-2]
        return line.split()

    async def ask(self, line: str) -> list[bytes]:
        """Send a command, and read its reply."""
        await self.send(line.encode() + b"\r\n")
        return await self.reply(line.partition(" ")[0])

    async def read_some(self, size: int) -> int:
        """Read at most so many bytes of whatever comes; how many came."""
        return len(await self._in_time(self._reader.read(size)))

    def close(self) -> None:
        """Go, whatever has not been read or sent."""
        self._writer.transport.abort()

    async def _in_time(self, step: Awaitable[Read]) -> Read:
        try:
            async with asyncio.timeout(WITHIN_S):
                return await step
        except TimeoutError:
            self._books.complain(f"a client waited {WITHIN_S:.0f} s in vain, the last time for a reply to {self._word}")
            raise Gone from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone from error
