"""Random sessions of several clients with both servers.

What would depend on chance is not done: everything timed is far away, and no two clients wait in one tube (the
reference does not serve them in their order). What waits behind a reserve of one client is carried out when another one
sends, and the two then run beside each other; so the other one sends a single command.
"""

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.reference.pair import MAX_JOB_SIZE, TUBES, Pair, Twin

# What each client watches at first; it uses the first one.
WATCHES = [{b"default"}, {b"a"}, {b"a", b"default"}, {b"default"}]


def weighted(*choices: tuple[int, st.SearchStrategy[bytes]]) -> st.SearchStrategy[bytes]:
    """One of several, as often as it weighs."""
    table = [choice for weight, choice in choices for _ in range(weight)]
    return st.integers(0, len(table) - 1).flatmap(lambda number: table[number])


def line(*words: bytes | st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A command of these words."""
    return st.tuples(*(st.just(word) if isinstance(word, bytes) else word for word in words)).map(
        lambda parts: b" ".join(parts) + b"\r\n"
    )


slots = st.integers(0, len(WATCHES) - 1)
jobs = st.sampled_from([b"@1", b"@1", b"@1", b"@2", b"#1", b"#2", b"#4", b"#8"])
tubes = st.sampled_from(TUBES)
pris = st.sampled_from([b"0", b"1", b"1023", b"1024", b"4294967295"])
delays = st.sampled_from([b"0"] * 6 + [b"^1", b"^2", b"^3"])
ttrs = st.sampled_from([b"10000", b"30000", b"4294967295"])
puts = st.tuples(
    pris, delays, ttrs, st.sampled_from([b"", b"abc", b"\r\n", b"\0\xff", b"use b\r\n", b"z" * MAX_JOB_SIZE])
).map(lambda put: b"put %b %b %b %d\r\n%b\r\n" % (*put[:3], len(put[3]), put[3]))
bad_puts = st.sampled_from(
    [
        b"put 0 0 10000 3\r\nabcd\r\n",
        b"put 0 0 10000 3\r\nabcde\r\n",
        b"put 0 0 10000 0\r\nabcde\r\n",
        b"put 0 0 10000 301\r\n" + b"y" * 301 + b"\r\n",
        b"put 0 0 10000 301\r\n" + b"y" * 305 + b"\r\n",
        b"put 0 0 10000 3x\r\nabc\r\n",
        b"put 4294967296 0 10000 3\r\nabc\r\n",
    ]
)
reserves = st.sampled_from([b"reserve\r\n", b"reserve-with-timeout 0\r\n", b"reserve-with-timeout 10000\r\n"])
with_jobs = weighted(
    (1, line(b"reserve-job", jobs)),
    (1, line(b"delete", jobs)),
    (2, line(b"release", jobs, pris, delays)),
    (2, line(b"bury", jobs, pris)),
    (1, line(b"touch", jobs)),
    (1, line(b"kick-job", jobs)),
    (1, line(b"peek", jobs)),
    (2, line(b"stats-job", jobs)),
)
others = weighted(
    (4, line(b"kick", st.sampled_from([b"1", b"2", b"9", b"0"]))),
    (4, line(st.sampled_from([b"peek-ready", b"peek-delayed", b"peek-buried", b"stats"]))),
    (2, line(st.sampled_from([b"list-tubes", b"list-tube-used", b"list-tubes-watched"]))),
    (4, line(st.sampled_from([b"use", b"watch", b"ignore", b"stats-tube"]), tubes)),
    (2, line(b"pause-tube", tubes, st.sampled_from([b"0", b"0", b"0", b"10000"]))),
)


@st.composite
def misspelt(draw: st.DrawFn) -> bytes:
    """A byte too many or a wrong one in a command's line; no digit, which could make a short time of a long one."""
    command = draw(weighted((1, puts), (1, with_jobs), (1, others), (1, st.just(b"reserve\r\n"))))
    at = draw(st.integers(0, command.index(b"\r\n")))
    byte = draw(st.sampled_from([b" ", b"\t", b"\0", b"\n", b"x", b"-", b"+", b"\xe4"]))
    replaced = draw(st.booleans()) and command[at : at + 1] != b"\r"
    return command[:at] + byte + command[at + replaced :]


commands = weighted((6, puts), (6, reserves), (8, with_jobs), (6, others), (1, bad_puts), (1, misspelt()))
alone = weighted((9, commands), (1, st.integers(230, 400).map(lambda size: b"x" * size + b"\r\n")))
several = st.lists(commands, min_size=1, max_size=8)
tokens = weighted(
    (2, commands),
    (1, st.sampled_from([b"\r\n", b"\n", b" ", b"put 0 0 10000 ", b"3\r\n", b"abc", b"use ", b"\0", b"stats"])),
)


class Sessions(RuleBasedStateMachine):
    """Each step is done with both servers, and whatever they say is compared."""

    pair: Callable[[], Pair]
    """The pair to use; a new one when the last one was given up."""
    give_up: Callable[[], None]
    steps = 0
    replies = 0

    def __init__(self) -> None:
        super().__init__()
        self.servers = type(self).pair()
        self.clients: dict[int, Twin] = {}
        self.differs = False

    @rule(slot=slots, command=alone)
    def say(self, slot: int, command: bytes) -> None:
        self.do(lambda: self._send(slot, [command], []))

    @rule(slot=slots, commands=several, cuts=st.lists(st.integers(1, 60), max_size=4))
    def say_at_once(self, slot: int, commands: list[bytes], cuts: list[int]) -> None:
        self.do(lambda: self._send(slot, commands, cuts))

    @rule(
        slot=slots, reserve=reserves, words=st.lists(with_jobs, min_size=1, max_size=4), jobs=st.lists(puts, max_size=3)
    )
    def work(self, slot: int, jobs: list[bytes], reserve: bytes, words: list[bytes]) -> None:
        self.do(lambda: self._send(slot, [*jobs, reserve], []))
        self.do(lambda: self._send(slot, words, []))

    @rule(slot=slots, command=commands, size=st.integers(0, 20))
    def begin_to_say(self, slot: int, command: bytes, size: int) -> None:
        # Not amid a put's body: the reference gives the id when it has the line, and so another order.
        size = min(size, command.index(b"\r\n") + 1)
        self.do(lambda: self._send(slot, [command], [], hold_back=len(command) - size))

    @rule(
        slot=slots,
        last_words=st.just([]) | st.lists(tokens, min_size=1, max_size=8),
        how=st.sampled_from(["half-close", "close", "abort", "quit", "quitx"]),
    )
    def leave(self, slot: int, last_words: list[bytes], how: str) -> None:
        self.do(lambda: self._leave(slot, last_words, how))

    def teardown(self) -> None:
        if not self.differs:
            self.do(self.servers.clear)
            type(self).replies += self.servers.replies_compared
            self.servers.replies_compared = 0

    def do(self, step: Callable[[], None]) -> None:
        """A step; if it makes a difference, these servers are of no more use."""
        try:
            step()
        except BaseException:
            self.differs = True
            type(self).give_up()
            raise
        type(self).steps += 1

    def _client(self, slot: int) -> Twin:
        twin = self.clients.get(slot)
        if twin is None or twin not in self.servers.twins:
            twin = self.clients[slot] = self.servers.connect(set(WATCHES[slot]))
        return twin

    def _others(self, twin: Twin) -> list[Twin]:
        return [other for other in self.servers.twins if other is not twin]

    def _send(self, slot: int, several: list[bytes], cuts: list[int], hold_back: int = 0) -> None:
        twin = self._client(slot)
        if any(other.queues for other in self._others(twin)):
            if twin.waits:
                return
            several = [] if twin.rest[0] else several[:1]
        data = self.servers.both(twin, self._without_waiting(twin, b"".join(several)))
        now, later = [], []
        for rest, its in zip(twin.rest, data, strict=True):
            end = len(its) - hold_back
            now.append(rest + its[:end])
            later.append(its[end:])
        twin.rest = (later[0], later[1])
        self.servers.send(twin, (now[0], now[1]), cuts)

    def _without_waiting(self, twin: Twin, data: bytes) -> bytes:
        """The same, but not waiting, if that would be in a tube where another one waits."""
        watched = twin.watches | {tube for tube in TUBES if b"watch " + tube in data}
        if any(other.watches & watched for other in self._others(twin) if other.waits or other.rest[0]):
            data = data.replace(b"reserve\r\n", b"reserve-with-timeout 0\r\n")
            data = data.replace(b"reserve-with-timeout 10000\r\n", b"reserve-with-timeout 0\r\n")
        return data

    def _leave(self, slot: int, last_words: list[bytes], how: str) -> None:
        twin = self._client(slot)
        waiting = [other for other in self._others(twin) if other.waits]
        # The reference gives jobs back in the order in which they were reserved: another one for those who wait.
        if any(other.queues or twin.queues or twin.may_hold > 1 for other in waiting):
            return
        if last_words and not waiting:
            self._send(slot, last_words, [])
        if how == "half-close" or twin.queues or (how.startswith("quit") and twin.waits):
            # With commands behind a reserve it would be chance whether a close still lets them be carried out.
            self.servers.half_close(twin)
        elif how in {"close", "abort"}:
            self.servers.close(twin, abort=how == "abort")
        else:
            self._send(slot, [how.encode() + b"\r\n"], [])
