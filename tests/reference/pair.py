"""beanlite and beanstalkd, the reference, driven together: what the one says, the other has to say, too."""

import re
import select
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.fuzz.grammar import read_requests
from tests.support.servers import start_beanlite, start_beanstalkd
from tests.support.wire import Wire

MAX_JOB_SIZE = 300
TUBES = (b"default", b"a", b"b")
SETTLES_WITHIN_S = 10.0
NAMES = ("beanlite", "beanstalkd")
WAITING = {b"reserve", b"reserve-with-timeout"}
WATCH = re.compile(rb"watch ([a-z]+)")
# No delay is given twice: what comes in one packet has, to beanlite, come at one time.
DELAY = re.compile(rb"\^(\d)")
DELAY_S = 10_000
JOB = re.compile(rb"([#@])(\d+)")
NO_JOB = b"99999999"
# An end of the connection without FIN.
ABORT = struct.pack("ii", 1, 0)

# cmd-stats: the pair itself asks for stats, as often as it takes. The rest is another process, another journal.
LEFT_OUT = re.compile(
    r"pid|version|rusage-.time|uptime|id|hostname|os|platform|binlog-.*|cmd-stats|"
    r"journal-batches|journal-wal-bytes|disk-full|memory-.*|bodies-.*|puts-out-of-memory|refused-.*"
)
CLOCK = {"age", "time-left", "pause-time-left"}
CLOCKS_DIFFER_S = 2
# Of jobs: beanlite has a journal here, the reference none.
LEFT_OUT_OF_JOBS = re.compile("file")

Reply = tuple[str, bytes]
Both = tuple[bytes, bytes]


class Difference(AssertionError):
    """The two have said different things."""


class Twin:
    """A client of both. It starts with a greeting, which is not compared."""

    def __init__(self, wires: Sequence[Wire], watches: set[bytes]) -> None:
        self.wires = wires
        self.watches = watches
        """All tubes that it may be watching."""
        self.sent = b""
        self.rest: Both = (b"", b"")
        """What is left of a command whose beginning has been sent, for each server."""
        self.heard: tuple[list[Reply], list[Reply]] = ([], [])
        self.compared = 0
        self.reserved: list[int] = []
        """The jobs that it was given, by beanlite's ids."""

    def next_reply_to(self, number: int) -> bytes | None:
        """The word of the command that a server has to answer next; None if it owes nothing."""
        words = read_requests(self.sent, MAX_JOB_SIZE).complete
        heard = len(self.heard[number])
        return words[heard] if heard < len(words) else None

    @property
    def waits(self) -> bool:
        """In a reserve, once all is settled."""
        return self.next_reply_to(0) is not None

    @property
    def quits(self) -> bool:
        """It has sent a quit."""
        return read_requests(self.sent, MAX_JOB_SIZE).quits

    @property
    def queues(self) -> bool:
        """It waits, and has sent more behind its reserve."""
        requests = read_requests(self.sent, MAX_JOB_SIZE)
        more = len(requests.complete) > len(self.heard[0]) + 1 or requests.missing or requests.amid_line
        return self.waits and bool(more or requests.quits or self.rest[0])

    @property
    def may_hold(self) -> int:
        """So many jobs at most does it have reserved."""
        words = [line.partition(" ")[0] for line, _ in self.heard[0]]
        return words.count("RESERVED") - words.count("RELEASED") - words.count("BURIED")

    def new_replies(self) -> list[tuple[Reply, Reply]]:
        """What has come since the last call. Raises Difference: not as many from the one as from the other."""
        ours, theirs = (replies[self.compared :] for replies in self.heard)
        self.compared += len(ours)
        if len(ours) != len(theirs):
            raise Difference(f"not as many replies\n  beanlite: {ours}\n  beanstalkd: {theirs}")
        return list(zip(ours, theirs, strict=True))


class Pair:
    """Both servers, and a probe on each, by which it is known when all that was sent has been dealt with."""

    def __init__(self, directory: Path, *ours: str) -> None:
        """``ours`` are more flags for beanlite."""
        flags = ("-z", str(MAX_JOB_SIZE))
        self.servers = (
            start_beanlite(directory / "beanlite", *flags, *ours),
            start_beanstalkd(directory / "beanstalkd", *flags),
        )
        self.twins: list[Twin] = []
        self.probe = self._connect()
        self.jobs: list[tuple[int, int]] = []
        """The ids of the jobs, in the order in which they were put. The reference takes one for a refused put, too."""
        self.replies: list[tuple[Reply, Reply]] = []
        """Those of both that are still to be compared."""
        self.replies_compared = 0
        self.delays = 0
        self.reserves = [0, 0]
        """How many reserves each server has carried out and answered."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for twin in [*self.twins, self.probe]:
            for wire in twin.wires:
                wire.close()
        for server in self.servers:
            server.kill()

    # -- what clients do

    def connect(self, watches: set[bytes]) -> Twin:
        """A new client of both, that watches just these tubes and uses the first of them."""
        twin = self._connect()
        twin.watches = watches
        self.twins.append(twin)
        tubes = sorted(watches)
        commands = [b"watch %b\r\n" % tube for tube in tubes] + [b"use %b\r\n" % tubes[0]]
        if b"default" not in watches:
            commands.append(b"ignore default\r\n")
        self.send(twin, self.both(twin, b"".join(commands)))
        return twin

    def both(self, twin: Twin, data: bytes) -> Both:
        """For each server: #1 is the latest job, @1 the client's latest reservation not yet named so; ^1 a delay."""

        def our_id(found: re.Match[bytes]) -> bytes:
            jobs, back = [our for our, _ in self.jobs], int(found[2])
            if found[1] == b"@" and back <= len(twin.reserved):
                return b"#%d" % twin.reserved.pop(-back)
            return b"#%d" % jobs[-back] if back <= len(jobs) else NO_JOB

        def delay(found: re.Match[bytes]) -> bytes:
            self.delays += 1
            return b"%d" % (int(found[1]) * DELAY_S + self.delays)

        ours = JOB.sub(our_id, DELAY.sub(delay, data))
        their_ids = {b"%d" % our: b"%d" % their for our, their in self.jobs}
        # Not so "# 1": of what is misspelt both are sent the same.
        return JOB.sub(lambda found: found[2], ours), JOB.sub(lambda found: their_ids[found[2]], ours)

    def send(self, twin: Twin, data: Both, cuts: Sequence[int] = ()) -> None:
        """Send, cut into packets, and compare all that is answered. Raises Difference."""
        for wire, its in zip(twin.wires, data, strict=True):
            at = 0
            for cut in cuts:
                if its[at : at + cut]:
                    wire.send(its[at : at + cut])
                at += cut
            wire.send(its[at:])
        twin.sent += data[0]
        twin.watches |= set(WATCH.findall(twin.sent))
        self.settle()

    def half_close(self, twin: Twin) -> None:
        """The client sends no more and reads to the end."""
        for wire in twin.wires:
            wire.socket.shutdown(socket.SHUT_WR)
        self._hear_to_the_end(twin)
        self._leave(twin)

    def close(self, twin: Twin, *, abort: bool) -> None:
        """The client goes away."""
        if abort:
            for wire in twin.wires:
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        self._leave(twin)

    def clear(self) -> None:
        """Have all clients leave and the jobs deleted. Raises Difference."""
        cleaner = self.connect({b"default"})
        # Nobody is to be served when the others leave.
        self.send(cleaner, self.both(cleaner, b"".join(b"pause-tube %b 10000\r\n" % tube for tube in TUBES)))
        for twin in self.twins[:-1]:
            self.half_close(twin)
        deletes = b"".join(b"delete #%d\r\n" % at for at in range(1, len(self.jobs) + 1))
        self.send(cleaner, self.both(cleaner, b"pause-tube default 0\r\n" + deletes))
        self.send(cleaner, self.both(cleaner, b"list-tubes\r\nstats\r\nstats-tube default\r\n"))
        self.close(cleaner, abort=False)
        self.jobs.clear()
        self.delays = 0

    # -- both at the same point

    def settle(self) -> None:
        """Wait until both have dealt with everything, and compare what they have said. Raises Difference."""
        for number in range(2):
            self._settle(number)
        for twin in self.twins:
            if twin.quits and not twin.waits:
                self._hear_to_the_end(twin)
                self._leave(twin)
                return
        for twin in self.twins:
            self.replies += twin.new_replies()
        self._compare()

    def _settle(self, number: int) -> None:
        deadline = time.monotonic() + SETTLES_WITHIN_S
        while True:
            waiting = []
            for twin in self.twins:
                wire = twin.wires[number]
                while (word := twin.next_reply_to(number)) is not None:
                    if word in WAITING and not (wire._received or _readable([wire], 0)):
                        waiting.append(wire)
                        break
                    try:
                        self._hear(twin, number)
                    except (TimeoutError, ConnectionError) as error:
                        raise Difference(f"{NAMES[number]} did not answer {word!r}: {error}") from None
            if not waiting or self._all_wait(number, len(waiting)):
                return
            if time.monotonic() > deadline:
                raise Difference(f"{NAMES[number]} neither answers nor waits")
            _readable(waiting, 0.01)

    def _all_wait(self, number: int, clients: int) -> bool:
        """So many are in a reserve; not in a second one, the answer to the first being on its way."""
        stats = self._stats(number)
        reserves = int(stats["cmd-reserve"]) + int(stats["cmd-reserve-with-timeout"])
        return int(stats["current-waiting"]) == clients and reserves == self.reserves[number] + clients

    def _hear(self, twin: Twin, number: int) -> None:
        """Take a server's next reply."""
        wire = twin.wires[number]
        word = twin.next_reply_to(number)
        line = wire.reply()
        has_body = line.startswith(("OK ", "FOUND ", "RESERVED "))
        twin.heard[number].append((line, wire.body if has_body else b""))
        if number == 0 and line.startswith("RESERVED "):
            twin.reserved.append(int(line.split()[1]))
        self.reserves[number] += word in WAITING and line != "BAD_FORMAT"

    def _hear_to_the_end(self, twin: Twin) -> None:
        """Take all replies up to the end of the connections."""
        for number, wire in enumerate(twin.wires):
            try:
                while True:
                    self._hear(twin, number)
            except ConnectionError:
                if wire._received:
                    raise Difference(f"{NAMES[number]} ends with {bytes(wire._received)!r}") from None

    def _leave(self, twin: Twin) -> None:
        """Close, and wait until both have seen it."""
        self.twins.remove(twin)
        for number, wire in enumerate(twin.wires):
            self.reserves[number] += twin.next_reply_to(number) in WAITING  # its answer will not be heard
            wire.close()
        deadline = time.monotonic() + SETTLES_WITHIN_S
        for number in range(2):
            while int(self._stats(number)["current-connections"]) != len(self.twins) + 1:
                if time.monotonic() > deadline:
                    raise Difference(f"{NAMES[number]} has not seen the end of a connection")
                time.sleep(0.0005)
        self.replies += twin.new_replies()
        self.settle()

    def _compare(self) -> None:
        pairs, self.replies = self.replies, []
        self.jobs += [
            (int(our[0].split()[1]), int(their[0].split()[1]))
            for our, their in pairs
            if our[0].startswith("INSERTED ") and their[0].startswith("INSERTED ")
        ]
        our_ids = {str(their): str(our) for our, their in self.jobs}
        for our, their in pairs:
            if difference := _difference(our, their, our_ids):
                raise Difference(difference)
        self.replies_compared += len(pairs)

    def _connect(self) -> Twin:
        return Twin([Wire(server.connect()) for server in self.servers], set())

    def _stats(self, number: int) -> dict[str, str]:
        return self.probe.wires[number].stats()


def _readable(wires: list[Wire], within_s: float) -> bool:
    return bool(select.select([wire.socket for wire in wires], [], [], within_s)[0])


def _difference(our: Reply, their: Reply, our_ids: dict[str, str]) -> str:
    """What differs, but for what is about the process or its clock; empty if nothing does."""
    if our[1].startswith(b"---\n") and their[1].startswith(b"---\n"):
        ours, theirs = _items(our[1]), _items(their[1])
        if list(ours)[: len(theirs)] != list(theirs):
            return f"the keys\n  beanlite: {list(ours)}\n  beanstalkd: {list(theirs)}"
        left_out = LEFT_OUT if "pid" in theirs else LEFT_OUT_OF_JOBS
        if "age" in theirs:
            theirs["id"] = our_ids[theirs["id"]]
        differ = [key for key in theirs if not left_out.fullmatch(key) and not _agree(key, ours[key], theirs[key])]
        return ", ".join(f"{key}: {ours[key]} (beanlite), {theirs[key]} (beanstalkd)" for key in differ)
    words = their[0].split()
    if words[0] in {"INSERTED", "RESERVED", "FOUND"}:
        words[1] = our_ids.get(words[1], words[1])
    return "" if our == (" ".join(words), their[1]) else f"\n  beanlite: {our}\n  beanstalkd: {their}"


def _agree(key: str, our: str, their: str) -> bool:
    return our == their or (key in CLOCK and abs(int(our) - int(their)) <= CLOCKS_DIFFER_S)


def _items(body: bytes) -> dict[str, str]:
    """The keys and values of statistics; the names of a list, whose order is free."""
    lines = body.decode().splitlines()[1:]
    if lines[0].startswith("- "):
        return {"names": " ".join(sorted(lines))}
    # 1.12 quotes less than 1.13 does.
    return {key: value.strip('"') for key, value in (line.split(": ", 1) for line in lines)}
