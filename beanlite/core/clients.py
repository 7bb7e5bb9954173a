"""The connected clients: what each of them uses and watches, and its wait for a job."""

from collections import OrderedDict
from collections.abc import Collection
from enum import Enum
from typing import Final

from beanlite.core.job import SLICE, Job
from beanlite.core.memory import Memory
from beanlite.core.queues import Outcome, Queues
from beanlite.core.ticker import Ticker
from beanlite.core.tube import NOBODY, Client, Peer, Tube, with_claim

# No limit.
_ANY: Final = 1 << 60


class Refusal(Enum):
    """Why a client is refused what it asks for. The values are the words used in the statistics."""

    TUBES = "tubes"
    WATCHED = "watched"
    MEMORY = "memory"


class Clients:
    """What concerns clients themselves rather than jobs: connecting, their tubes, and their waits."""

    __slots__ = ("_counts", "_memory", "_queues", "_ticker", "_tubes", "connected", "max_tubes", "max_watched", "woken")

    def __init__(self, queues: Queues, ticker: Ticker, memory: Memory) -> None:
        self._queues = queues
        self._memory = memory
        self._ticker = ticker
        self._tubes = queues.tubes
        self._counts = queues.counts
        self.connected: dict[int, Client] = {}
        """All clients by connection number, in ascending order."""
        self.max_tubes = _ANY
        """Once there are this many tubes, clients can't make another one. The journal restores tubes in any case."""
        self.max_watched = _ANY
        """How many tubes a client may watch."""
        self.woken = queues.woken
        """What ``take_woken`` will return; public so that callers can check whether it is empty."""

    # -- coming and going

    def connect(self, address: str) -> Client:
        """Make a new client, which uses and watches the default tube."""
        self._counts.clients += 1
        self._counts.total_clients += 1
        number = self._counts.total_clients
        client = self.connected[number] = self._queues.make_client(Peer(address, number))
        client.use.using += 1
        client.use.watching += 1
        self._counts.watched += 1
        return client

    def disconnect(self, client: Client, now_ns: int) -> None:
        """Remove a client. The jobs that it had reserved become ready: a SLICE of them at once, the rest in ticks."""
        self._queues.stop_waiting(client)
        self._queues.leftovers.clear(client)
        client.gone = True
        del self.connected[client.peer.number]
        self._counts.clients -= 1
        self._counts.producers -= client.producer
        self._counts.workers -= client.worker
        client.use.using -= 1
        self._queues.drop_if_unused(client.use)
        self._counts.watched -= len(client.watched)
        for tube in client.watched:
            tube.watching -= 1
            self._queues.drop_if_unused(tube)
        self._queues.timers.cancel(client)
        self._ticker.give_back(client, now_ns, SLICE)
        if client.offers is not None:
            client.offers.gone = True
            self._ticker.end_offers(client.offers, now_ns, SLICE)

    def call(self, client: Client, claim: str) -> None:
        """Have a client shown and recorded by what it calls itself, also as the holder of jobs that it has had."""
        client.peer.address = with_claim(client.peer.address, claim)  # a Peer for each name would be without bound

    def becomes_producer(self, client: Client) -> None:
        """Note that the client puts for the first time; the statistics count producers."""
        client.producer = True
        self._counts.producers += 1

    def becomes_worker(self, client: Client) -> None:
        """Note that the client reserves for the first time; the statistics count workers."""
        client.worker = True
        self._counts.workers += 1

    # -- tubes

    def use(self, client: Client, name: bytes) -> Refusal | None:
        """Have the client put into this tube from now on; returns why not, or None."""
        tube = self.tube(name)
        if isinstance(tube, Refusal):
            return tube
        tube.using += 1
        before, client.use = client.use, tube
        before.using -= 1
        self._queues.drop_if_unused(before)
        return None

    def watch(self, client: Client, name: bytes) -> int | Refusal:
        """Have the client also reserve from this tube; returns how many it watches, or why it may not."""
        watched = client.watched
        tube = self._tubes.get(name)
        if tube is None or tube not in watched:
            if len(watched) >= self.max_watched:
                return Refusal.WATCHED
            if not self._memory.takes_tubes(1):
                return Refusal.MEMORY
            result = self.tube(name)
            if isinstance(result, Refusal):
                return result
            tube = result
            watched[tube] = None
            tube.watching += 1
            self._counts.watched += 1
        return len(watched)

    def ignore(self, client: Client, name: bytes) -> int | None:
        """Have the client stop reserving from this tube; returns how many it watches, or None if it is the only one."""
        tube = self._tubes.get(name)
        if tube is not None and tube in client.watched:
            if len(client.watched) == 1:
                return None
            del client.watched[tube]
            tube.watching -= 1
            self._counts.watched -= 1
            self._queues.drop_if_unused(tube)
        return len(client.watched)

    def tube(self, name: bytes) -> Tube | Refusal:
        """Return the tube of this name, or why there can't be another. One that is new has to be used at once."""
        return self._tubes.get(name) or self.refusal_of_tubes((name,)) or self._queues.make_tube(name)

    def refusal_of_tubes(self, names: Collection[bytes]) -> Refusal | None:
        """Return why tubes of these names, of which there is none yet, can't be made; None if they can."""
        if len(self._tubes) + len(names) > self.max_tubes:
            return Refusal.TUBES
        policies = self._queues.ruled.policies
        ruled = sum(policies.rules_of(name) is not None for name in names) if policies.rows else 0
        return None if self._memory.takes_tubes(len(names), ruled) else Refusal.MEMORY

    # -- waiting

    def wait(self, client: Client, until_ns: int, now_ns: int, *, for_offer: bool = False) -> None:
        """Have the client wait for a job until ``until_ns`` (NEVER_NS: for good); ``take_woken`` reports the end.

        ``for_offer``: the job is to be offered to it rather than reserved for it.
        """
        self._queues.leftovers.clear(client)
        client.waiting = True
        client.waits_for_offer = for_offer
        client.waits_since_ns = now_ns
        client.wait_until_ns = until_ns
        self._counts.waiting += 1
        for tube in client.watched:
            if tube.waiting is NOBODY:
                tube.waiting = OrderedDict()
            tube.waiting[client] = None
        self._ticker.set_timer(client)

    def stop_waiting(self, client: Client) -> None:
        """End the client's wait, if it waits, without giving it anything."""
        self._queues.stop_waiting(client)

    def take_woken(self) -> list[tuple[Client, Job | Outcome]]:
        """Take the clients whose wait has ended since the last call, each with what ended it."""
        woken = self.woken.copy()
        self.woken.clear()
        return woken
