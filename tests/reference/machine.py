"""Random sessions of several clients with both servers.

What would depend on chance is not done: everything timed is far away, and no two clients wait in one tube (the
reference does not serve them in their order). What waits behind a reserve of one client is carried out when another one
sends, and the two then run beside each other; so the other one sends a single command.
"""

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.reference.pair import MAX_JOB_SIZE, Difference, Pair, Twin

# What each client watches at first; it uses the first one.
WATCHES = [{b"default"}, {b"a"}, {b"b"}, {b"a", b"default"}, {b"a", b"b"}]

slots = st.integers(0, len(WATCHES) - 1)
jobs = st.integers(1, 12).map(lambda number: b"#%d" % number) | st.just(b"99999999")
tubes = st.sampled_from([b"default", b"a", b"b"])
pris = st.sampled_from([b"0", b"1", b"1023", b"1024", b"4294967295"])
delays = st.sampled_from([b"0", b"0", b"10000", b"20000", b"4294967295"])
ttrs = st.sampled_from([b"10000", b"30000", b"4294967295"])
bodies = st.sampled_from([b"", b"abc", b"\r\n", b"\0\xff", b"use b\r\n", b"z" * MAX_JOB_SIZE, b"y" * (MAX_JOB_SIZE + 1)])


def line(*words: bytes | st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A command of these words."""
    return st.tuples(*(st.just(word) if isinstance(word, bytes) else word for word in words)).map(
        lambda parts: b" ".join(parts) + b"\r\n"
    )


puts = st.builds(
    lambda pri, delay, ttr, body, excess: (
        b"put %b %b %b %d\r\n%b%b\r\n" % (pri, delay, ttr, len(body), body, b"!" * excess)
    ),
    pris,
    delays,
    ttrs,
    bodies,
    st.sampled_from([0, 0, 0, 0, 1, 2, 3]),
)
reserves = st.sampled_from([b"reserve\r\n", b"reserve-with-timeout 0\r\n", b"reserve-with-timeout 10000\r\n"])
with_jobs = st.one_of(
    line(b"reserve-job", jobs),
    line(b"delete", jobs),
    line(b"release", jobs, pris, delays),
    line(b"bury", jobs, pris),
    line(b"touch", jobs),
    line(b"kick-job", jobs),
    line(b"peek", jobs),
    line(b"stats-job", jobs),
)
others = st.one_of(
    line(b"kick", st.sampled_from([b"1", b"2", b"9", b"0"])),
    line(st.sampled_from([b"peek-ready", b"peek-delayed", b"peek-buried", b"stats"])),
    line(st.sampled_from([b"list-tubes", b"list-tube-used", b"list-tubes-watched"])),
    line(st.sampled_from([b"use", b"watch", b"ignore", b"stats-tube"]), tubes),
    line(b"pause-tube", tubes, st.sampled_from([b"0", b"0", b"10000"])),
    st.just(b"quit\r\n"),
)


@st.composite
def malformed(draw: st.DrawFn) -> bytes:
    """A command with a byte too many or a wrong one in its line; no digit, which could make a short time of a long one."""
    command = draw(st.one_of(puts, with_jobs, others, st.just(b"reserve\r\n")))
    at = draw(st.integers(0, command.index(b"\r\n")))
    byte = draw(st.sampled_from([b" ", b"\t", b"\0", b"\n", b"x", b"-", b"+", b"\xe4"]))
    replaced = draw(st.booleans()) and command[at : at + 1] != b"\r"
    return command[:at] + byte + command[at + replaced :]


commands = st.one_of(puts, reserves, with_jobs, with_jobs, others, malformed())
tokens = st.one_of(
    commands, st.sampled_from([b"\r\n", b"\n", b" ", b"put 0 0 10000 ", b"3\r\n", b"abc", b"use ", b"\0", b"stats"])
)


def up_to_quit(several: list[bytes]) -> bytes:
    """What comes after a quit would have the connection reset, and replies perhaps lost."""
    for number, command in enumerate(several, 1):
        if command.startswith(b"quit"):
            return b"".join(several[:number])
    return b"".join(several)


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

    @rule(slot=slots, command=commands)
    def say(self, slot: int, command: bytes) -> None:
        self.do(lambda: self._send(slot, [command], []))

    @rule(slot=slots, several=st.lists(commands, min_size=2, max_size=8), cuts=st.lists(st.integers(1, 60), max_size=4))
    def say_at_once(self, slot: int, several: list[bytes], cuts: list[int]) -> None:
        self.do(lambda: self._send(slot, several, cuts))

    @rule(slot=slots, command=commands, size=st.integers(0, 20))
    def begin_to_say(self, slot: int, command: bytes, size: int) -> None:
        # Not amid a put's body: the reference gives the id when it has the line, and so another order.
        size = min(size, command.index(b"\r\n") + 1)
        self.do(lambda: self._send(slot, [command], [], hold_back=len(command) - size))

    @rule(slot=slots, size=st.integers(230, 400))
    def say_too_much(self, slot: int, size: int) -> None:
        self.do(lambda: self._send(slot, [b"x" * size + b"\r\n"], []))

    @rule(parts=st.lists(tokens, max_size=12))
    def come_and_talk_rubbish(self, parts: list[bytes]) -> None:
        self.do(lambda: self._talk_rubbish(parts))

    @rule(slot=slots)
    def half_close(self, slot: int) -> None:
        self.do(lambda: self._leave(slot, self.servers.half_close))

    @rule(slot=slots, abort=st.booleans())
    def close(self, slot: int, abort: bool) -> None:
        # With commands behind a reserve it would be chance whether they are still carried out.
        end = lambda twin: self.servers.half_close(twin) if twin.queues else self.servers.close(twin, abort=abort)
        self.do(lambda: self._leave(slot, end))

    def teardown(self) -> None:
        if not self.differs:
            self.do(self._clear)
            type(self).replies += self.servers.replies_compared
            self.servers.replies_compared = 0

    def _clear(self) -> None:
        for twin in [twin for twin in self.servers.twins if twin.queues]:
            self.servers.half_close(twin)
        self.servers.clear()

    def do(self, step: Callable[[], None]) -> None:
        """A step; if it makes a difference, these servers are of no more use."""
        try:
            step()
        except BaseException as e:
            print("DIFF", e)
            self.differs = True
            type(self).give_up()
            raise
        type(self).steps += 1

    def _client(self, slot: int) -> Twin:
        twin = self.clients.get(slot)
        if twin is None or twin not in self.servers.twins:
            twin = self.clients[slot] = self.servers.connect(set(WATCHES[slot]))
        return twin

    def _others(self, twin: Twin | None) -> list[Twin]:
        return [other for other in self.servers.twins if other is not twin]

    def _send(self, slot: int, several: list[bytes], cuts: list[int], hold_back: int = 0) -> None:
        twin = self._client(slot)
        if any(other.queues for other in self._others(twin)):
            if twin.waits:
                return
            several = [] if twin.rest[0] else several[:1]
        if twin.quits:
            return
        data = self.servers.both(self._without_waiting(twin, up_to_quit(several)))
        now, later = [], []
        for rest, its in zip(twin.rest, data, strict=True):
            end = len(its) - hold_back
            now.append(rest + its[:end])
            later.append(its[end:])
        twin.rest = (later[0], later[1])
        self.servers.send(twin, (now[0], now[1]), cuts)

    def _without_waiting(self, twin: Twin, data: bytes) -> bytes:
        """The same, but not waiting, if that would be in a tube where another one waits."""
        watched = twin.watches | {tube for tube in (b"a", b"b", b"default") if b"watch " + tube in data}
        if any(other.watches & watched for other in self._others(twin) if other.waits or other.rest[0]):
            data = data.replace(b"reserve\r\n", b"reserve-with-timeout 0\r\n")
            data = data.replace(b"reserve-with-timeout 10000\r\n", b"reserve-with-timeout 0\r\n")
        return data

    def _talk_rubbish(self, parts: list[bytes]) -> None:
        if any(other.queues for other in self._others(None)):
            return
        twin = self.servers.connect({b"default"})
        self.servers.send(twin, self.servers.both(self._without_waiting(twin, up_to_quit(parts))))
        if twin in self.servers.twins:
            self.servers.half_close(twin)

    def _leave(self, slot: int, end: Callable[[Twin], None]) -> None:
        twin = self._client(slot)
        if not any(other.queues for other in self._others(twin)):
            end(twin)


__all__ = ["Difference", "Sessions"]
