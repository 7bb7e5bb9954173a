"""Ids of jobs through a router: the id that the job has at its server, times 64, plus the number of that server."""

from __future__ import annotations

from typing import Final

# A number has so many bits: 64 is the NUMBERS of the file of servers.
NUMBER_BITS: Final = 6
NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1


def with_outer_id(line: bytes, number: int) -> bytes:
    """Return the first line of a reply, such as ``RESERVED <id> <bytes>``, with the id that clients see.

    ValueError or IndexError: it has no id.
    """
    words = line[:-2].split(b" ")
    words[1] = b"%d" % (int(words[1]) << NUMBER_BITS | number)
    return b" ".join(words) + b"\r\n"


def inner_id(line: bytes) -> int:
    """Return the id in such a line as the server has it. ValueError or IndexError: there is none."""
    return int(line.split(b" ", 2)[1])
