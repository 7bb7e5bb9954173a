"""Clients see no difference while nearly no body is in memory: random sessions against the model."""

import os
import random
from contextlib import contextmanager

from beanlite.core.job import RESERVED
from beanlite.core.memory import NO_BOUND
from tests.support.fetching import FetchingCore
from tests.support.operators import recount
from tests.support.ruled_sessions import RuledChance
from tests.support.sessions import ACTIONS, MAX_JOB_SIZE, Twins, explore, weighted

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))
STEPS = int(os.environ.get("MODEL_STEPS", "6000"))


class TwinsWithoutRoom(Twins):
    """Nearly no body that has been stored is in memory, and who needs one waits for it, sometimes for long."""

    core: FetchingCore
    has_late = True
    late = ahead = 0

    def __init__(self):
        super().__init__()
        self.core = FetchingCore(MAX_JOB_SIZE)
        if self.has_late:
            # The model waits for no body, so that only who has sent nothing behind may get it late.
            self.core.answers_late = lambda session: session.gathering.jobs[0].id % 2 and not session.pending

    def play(self, action):
        super().play(action)
        self.core.compare_counts()
        type(self).late += len(self.core.late)

    def compare(self):
        """All but those who wait for a body: what the model says to these is compared when they have it."""
        pairs = self.pairs
        self.pairs = [pair for pair in pairs if pair[0] not in self.core.late]
        super().compare()
        self.pairs = pairs

    def compare_all(self):
        while self.core.late:
            self.core.answer(next(iter(self.core.late)))
        self.core.answers_late = lambda _session: False
        super().compare_all()

    # -- actions

    def _room(self, body_max_bytes):
        self.core.engine.bound_memory(NO_BOUND, body_max_bytes, fetches=True)

    def _store(self):
        self.core.store()

    def _fetch_ahead(self):
        type(self).ahead += len(self.core.fetch_ahead())

    def _answer(self, number):
        if self.pairs:
            self.core.answer(self.pairs[number % len(self.pairs)][0])

    def _wait(self, wait_ns):
        with self._nobody_reserves_late():
            super()._wait(wait_ns)

    def _wait_unseen(self, wait_ns):
        with self._nobody_reserves_late():
            super()._wait_unseen(wait_ns)

    @contextmanager
    def _nobody_reserves_late(self):
        """Have nobody wait for the body of a reserved job: in the model, its ttr ends only after the reply."""
        for session in sorted(self.core.late, key=lambda session: session.client.peer.number):
            if session.gathering.jobs[0].shown_state is RESERVED:
                self.core.answer(session)
        before = self.core.answers_late
        self.core.answers_late = lambda session: (
            session.gathering.jobs[0].shown_state is not RESERVED and before(session)
        )
        yield
        self.core.answers_late = before

    def _send(self, number, commands):
        self._answer(number)
        super()._send(number, commands)

    def _leave(self, number, how):
        if self.pairs:
            session, _ = self.pairs[number % len(self.pairs)]
            if how != "drop":
                self.core.answer(session)
            super()._leave(number, how)
            self.core.late.discard(session)


class RuledTwinsWithoutRoom(TwinsWithoutRoom):
    """With policies: even puts may need bodies, which come at once.

    The policies stay: of a body that is not in memory nobody knows whether another one is the same.
    """

    has_late = False

    def play(self, action):
        super().play(action)
        recount(self.core.engine)


def think(rng, twins):
    chance = RuledChance(rng)
    kinds = ACTIONS
    if not twins.has_late:
        kinds = (*ACTIONS, *weighted({"change job": 40, "put jobs": 10}))
        yield ("set policies", b"*", {"unique": rng.choice(("waiting", "present"))} | chance.values())
    while True:
        yield ("room", rng.choice((0, 500, 5000)))
        for _ in range(50):
            yield chance.ruled_action(twins.model, kinds)
            if rng.randrange(3) == 0:
                yield rng.choice((("store",), ("fetch ahead",), ("answer", rng.randrange(6))))


def test_two_clients_that_wait_for_bodies_at_once_see_no_difference():
    with TwinsWithoutRoom() as twins:
        for _ in range(3):
            twins.play(("connect",))
        twins.play(("room", 0))
        twins.play(("send", 0, [(b"put 0 0 60 1", b"a\r\n"), (b"put 0 0 60 1", b"b\r\n"), (b"put 0 0 60 1", b"c\r\n")]))
        twins.play(("store",))
        twins.play(("send", 1, [(b"peek 1", b"")]))
        twins.play(("send", 2, [(b"reserve-job 3", b"")]))
        assert twins.core.late == {session for session, _ in twins.pairs[1:]}
        twins.play(("answer", 2))
        twins.play(("send", 2, [(b"delete 3", b"")]))
        twins.compare_all()


def test_sessions_see_no_difference(record_property):
    explore(SEED, STEPS, TwinsWithoutRoom, think)
    explore(SEED, STEPS // 2, RuledTwinsWithoutRoom, think)
    assert min(TwinsWithoutRoom.late, TwinsWithoutRoom.ahead) > 20
    record_property("model steps", (STEPS, f"MODEL_SEED={SEED}"))
