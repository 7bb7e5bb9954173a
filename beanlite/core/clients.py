"""Who is connected: what each client uses and watches, and its wait for a job."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final

from beanlite.core.job import SLICE, Job
from beanlite.core.queues import Outcome, Queues
from beanlite.core.ticker import Ticker
from beanlite.core.tube import NOBODY, Client, Peer, Tube

# No limit.
_ANY: Final = 1 << 60


class Refusal(Enum):
    """Why a client can't have what it asks for. The values are the statistics' words."""

    TUBES = "tubes"
    WATCHED = "watched"


class Clients:
    """What concerns a client itself, and no job."""

    __slots__ = ("_counts", "_queues", "_ticker", "_tubes", "connected", "max_tubes", "max_watched", "woken")

    def __init__(self, queues: Queues, ticker: Ticker) -> None:
        self._queues = queues
        self._ticker = ticker
        self._tubes = queues.tubes
        self._counts = queues.counts
        self.connected: dict[int, Client] = {}
        """All clients by the numbers of their connections, which rise."""
        self.max_tubes = _ANY
        """No client makes a tube when there are so many. Those that the journal brings back are not counted out."""
        self.max_watched = _ANY
        """How many tubes a client may watch."""
        self.woken = queues.woken
        """What ``take_woken`` will return; there for a look at whether it is empty."""

    # -- coming and going

    def connect(self, address: str) -> Client:
        """A new client: it uses and watches the default tube."""
        self._counts.clients += 1
        self._counts.total_clients += 1
        number = self._counts.total_clients
        client = self.connected[number] = self._queues.make_client(Peer(address, number))
        client.use.using += 1
        client.use.watching += 1
        return client

    def disconnect(self, client: Client, now_ns: int) -> None:
        """The client is gone: the jobs it had reserved become ready, the first SLICE of them now, the rest by tick."""
        self._queues.stop_waiting(client)
        client.gone = True
        del self.connected[client.peer.number]
        self._counts.clients -= 1
        self._counts.producers -= client.producer
        self._counts.workers -= client.worker
        client.use.using -= 1
        self._queues.drop_if_unused(client.use)
        for tube in client.watched:
            tube.watching -= 1
            self._queues.drop_if_unused(tube)
        self._queues.timers.cancel(client)
        self._ticker.give_back(client, now_ns, SLICE)

    def becomes_producer(self, client: Client) -> None:
        """The client puts for the first time; the statistics count such clients."""
        client.producer = True
        self._counts.producers += 1

    def becomes_worker(self, client: Client) -> None:
        """The client reserves for the first time; the statistics count such clients."""
        client.worker = True
        self._counts.workers += 1

    # -- tubes

    def use(self, client: Client, name: bytes) -> Refusal | None:
        """Put into this tube from now on."""
        tube = self.tube(name)
        if tube is None:
            return Refusal.TUBES
        tube.using += 1
        before, client.use = client.use, tube
        before.using -= 1
        self._queues.drop_if_unused(before)
        return None

    def watch(self, client: Client, name: bytes) -> int | Refusal:
        """Reserve from this tube, too; returns how many are watched."""
        watched = client.watched
        tube = self._tubes.get(name)
        if tube is None or tube not in watched:
            if len(watched) >= self.max_watched:
                return Refusal.WATCHED
            tube = self.tube(name)
            if tube is None:
                return Refusal.TUBES
            watched[tube] = None
            tube.watching += 1
        return len(watched)

    def ignore(self, client: Client, name: bytes) -> int | None:
        """Reserve no more from this tube; returns how many are watched, None if it is the only one."""
        tube = self._tubes.get(name)
        if tube is not None and tube in client.watched:
            if len(client.watched) == 1:
                return None
            del client.watched[tube]
            tube.watching -= 1
            self._queues.drop_if_unused(tube)
        return len(client.watched)

    def tube(self, name: bytes) -> Tube | None:
        """The tube of this name, made if need be, and then to be used at once; None: there are too many."""
        tube = self._tubes.get(name)
        if tube is None and len(self._tubes) < self.max_tubes:
            tube = self._queues.make_tube(name)
        return tube

    # -- waiting

    def wait(self, client: Client, until_ns: int, now_ns: int) -> None:
        """Wait for a job, until ``until_ns`` at the latest (NEVER_NS: for good): ``take_woken`` will tell."""
        client.waiting = True
        client.waits_since_ns = now_ns
        client.wait_until_ns = until_ns
        self._counts.waiting += 1
        for tube in client.watched:
            if tube.waiting is NOBODY:
                tube.waiting = OrderedDict()
            tube.waiting[client] = None
        self._ticker.set_timer(client)

    def stop_waiting(self, client: Client) -> None:
        """Wait no more, and be given nothing, if the client waits."""
        self._queues.stop_waiting(client)

    def take_woken(self) -> list[tuple[Client, Job | Outcome]]:
        """The clients whose wait has ended since the last call, and what has ended it."""
        woken = self.woken.copy()
        self.woken.clear()
        return woken
