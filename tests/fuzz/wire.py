"""Any bytes, cut anywhere, from several clients: commands, or documented errors, and nobody gets out of step.

``check`` takes an input as a fuzzer makes it. Its first byte is the seed of the cuts. 0xff and the byte after it are an
event: another client goes on, one leaves, time passes (see ``Play.event``). All else is what the clients send.
"""

import random

from beanlite.core.access import OPERATOR, PRODUCER, READER, WORKER
from beanlite.protocol.blocked import CLOSING, KICKING, LOOKING, REPLETE, WAITING, WORKING, YIELDING
from beanlite.protocol.session import REPLIES_MAX
from tests.fuzz.grammar import LINE_MAX, NOTE_MAX, REQUEST_MAX, Requests, check_answers, read_replies, read_requests
from tests.support.core import Core

CLIENTS = 4
LIMITED = 1  # the second client has these rights alone
RIGHTS = [(PRODUCER, b"a"), (WORKER, b"a"), (READER, b"*"), (OPERATOR, b"b")]
OPERATORS_FROM = 2  # the third client and the fourth are operators
MAX_JOB_SIZE = 300
EVENT = b"\xff"
FILLING = bytes(1 << 24)
ROUNDS_MAX = 10_000  # of bringing a session to an end; each gives it something that it waits for


def check(data: bytes) -> None:
    """Try one input. AssertionError, or whatever the server's code raises, is a defect."""
    first, *parts = data[1:].split(EVENT)
    plays = [Play(None)]
    if data[:1]:
        plays.append(Play(random.Random(data[0])))
    for play in plays:
        play.send(first)
        for part in parts:
            play.event(part[0] if part else 0)
            play.send(part[1:])
    if not plays[0].crossed:
        assert plays[0].heard == plays[-1].heard, "the answers depend on how the bytes were cut"
    for play in plays:
        play.bring_to_an_end()


class Talk:
    """One client: what it has sent and heard."""

    def __init__(self, core: Core, *, operator: bool = False, limited: bool = False) -> None:
        self.session = core.client(operator=operator)
        self.operator = operator
        self.limited = limited
        if limited:
            core.limit(self.session, *RIGHTS)
            self.session.authenticate = lambda token: token == b"a"
        self.sent = bytearray()
        self.heard = bytearray()
        self.ended = False

    def requests(self) -> Requests:
        """What it has sent."""
        return read_requests(bytes(self.sent), MAX_JOB_SIZE, operator=self.operator)

    def check(self) -> None:
        """What has been heard are whole replies, the right ones, and nothing is kept for longer than needed."""
        session = self.session
        requests = self.requests()
        replies = read_replies(bytes(self.heard))
        check_answers(requests.complete, replies, operator=self.operator, limited=self.limited)
        if session.blocked is None and not self.ended:
            assert len(replies) == len(requests.complete), (requests, replies)
            body_max = REQUEST_MAX if self.operator else max(MAX_JOB_SIZE, NOTE_MAX)
            assert session.pending <= (body_max + 1 if requests.missing else LINE_MAX - 1)
        elif len(replies) > len(requests.complete):
            # What begins as another protocol's line does is answered when it is too long for a line, before its end.
            rest = bytes(self.sent).rpartition(b"\r\n")[2]
            assert requests.amid_line, (requests, replies)
            assert len(rest) >= LINE_MAX, (requests, replies)
            assert replies[len(requests.complete) :] == [b"BAD_FORMAT"], (requests, replies)


class Play:
    """Clients on a server of their own."""

    def __init__(self, cuts: random.Random | None) -> None:
        self.core = Core(MAX_JOB_SIZE)
        self.core.service.buffered = lambda _client: 0  # it depends on the cuts
        self.cuts = cuts
        self.here = [Talk(self.core)]
        self.all = self.here[:]
        self.at = 0
        self.crossed = False
        """Someone sent while another one waited with commands behind its reserve: the order depends on the cuts."""

    @property
    def heard(self) -> list[bytes]:
        """By each client, in the order in which they came."""
        return [bytes(talk.heard) for talk in self.all]

    # -- what an input is made of

    def send(self, data: bytes) -> None:
        """The present client sends."""
        self._send(self.here[self.at], data)

    def _send(self, talk: Talk, data: bytes) -> None:
        talk.sent += data
        for piece in self._cut(data):
            self.crossed |= any(
                other.session.pending and other.session.blocked for other in self.here if other is not talk
            )
            if not talk.ended:
                talk.session.receive(piece, self.core.now_ns)
                self._settle()
        talk.check()

    def event(self, code: int) -> None:
        """Low three bits 0 to 3: which client goes on; 4 and 5: time passes; 6: it half-closes; 7: it leaves."""
        kind, amount = code & 7, code >> 3
        if kind < CLIENTS:
            while len(self.here) <= kind:
                number = len(self.here)
                limited = number == LIMITED
                self.here.append(Talk(self.core, operator=limited or number >= OPERATORS_FROM, limited=limited))
                self.all.append(self.here[-1])
            self.at = kind
        elif kind < 6:
            self.core.wait(amount / 2 if kind == 4 else amount * 1000)
        else:
            talk = self.here[self.at]
            if kind == 6 and not talk.ended:
                talk.session.half_close(self.core.now_ns)
                self._settle()
            self._leave(talk)
            self.here[self.at] = Talk(self.core, operator=talk.operator, limited=talk.limited)
            self.all.append(self.here[self.at])
        self._settle()

    # -- the part of connection and server

    def _cut(self, data: bytes) -> list[bytes]:
        if self.cuts is None:
            return [data]
        pieces = []
        while data:
            size = self.cuts.choice((1, 1, 2, 3, 10, 100, 1000))
            pieces.append(data[:size])
            data = data[size:]
        return pieces

    def _settle(self) -> None:
        """Wake whom it concerns, hear what was answered, have those go on that can, close those that have quit."""
        busy = True
        while busy:
            busy = False
            self.core._wake()
            for talk in self.here:
                session = talk.session
                assert len(b"".join(session.replies)) < 2 * REPLIES_MAX
                talk.heard += session.take_replies()
                if session.blocked in (REPLETE, KICKING, LOOKING, WORKING, YIELDING):
                    session.resume(self.core.now_ns)
                    busy = True
                elif session.blocked is CLOSING:
                    self._leave(talk)
                busy = busy or bool(self.core.engine.clients.woken)

    def _leave(self, talk: Talk) -> None:
        if not talk.ended:
            talk.check()
            talk.ended = True
            self.core.close(talk.session)

    # -- the end

    def bring_to_an_end(self) -> None:
        """Each client gets what it lacks and is in step then; when all have gone and the jobs, too, nothing is left."""
        self._unset_policies()
        for talk in self.here:
            self._complete(talk)
        for talk in self.here:
            self._leave(talk)
        last = Talk(self.core)
        self.here = [last]
        engine = self.core.engine
        self._send(last, b"".join(b"delete %d\r\n" % job_id for job_id in engine.jobs.newest))
        self._leave(last)
        assert not engine.jobs
        assert list(engine.tubes) == [b"default"]
        default = engine.tubes[b"default"]
        counts = (engine.counts.clients, engine.counts.producers, engine.counts.workers, engine.counts.waiting)
        assert counts == (0, 0, 0, 0)
        assert (engine.counts.reserved, engine.counts.delayed, engine.counts.buried, engine.counts.urgent) == (
            0,
            0,
            0,
            0,
        )
        assert (default.holds_jobs, default.reserved, default.urgent, default.using, default.watching) == (
            False,
            0,
            0,
            0,
            0,
        )
        assert not any(map(len, (default.ready, default.delayed, default.buried, default.waiting)))

    def _unset_policies(self) -> None:
        """Have nothing keep jobs from those that wait for them."""
        operator = Talk(self.core, operator=True)
        self.here.append(operator)
        self._send(operator, b'set-policy 28\r\n{"policies":[],"prune":true}\r\n')
        assert operator.heard.startswith(b"OK ")
        self._leave(operator)
        self.here.remove(operator)
        self.core.wait(0)
        self._settle()

    def _complete(self, talk: Talk) -> None:
        for _ in range(ROUNDS_MAX):
            if talk.ended:
                return
            requests = talk.requests()
            if talk.session.blocked is WAITING:
                self._feed(talk)
            elif requests.missing:
                # It may be a body of 4 GiB.
                for size in [len(FILLING)] * (requests.missing // len(FILLING)):
                    talk.session.receive(FILLING[:size], self.core.now_ns)
                talk.session.receive(FILLING[: requests.missing % len(FILLING)], self.core.now_ns)
                self._settle()
                assert len(read_replies(bytes(talk.heard))) == len(requests.complete) + 1
                talk.sent.clear()
                talk.heard.clear()
            elif requests.amid_line:
                self._send(talk, b"\r\n")
            else:
                break
        self._send(talk, b"list-tube-used\r\n")
        assert talk.heard.endswith(b"USING %b\r\n" % talk.session.client.use.name)

    def _feed(self, talk: Talk) -> None:
        """Give a waiting client a job."""
        feeder = Talk(self.core)
        self.here.append(feeder)
        name = next(iter(talk.session.client.watched)).name
        self._send(feeder, b"use %b\r\npause-tube %b 0\r\nput 0 0 9 0\r\n\r\n" % (name, name))
        self._leave(feeder)
        self.here.remove(feeder)
