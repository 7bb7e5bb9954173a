"""The naive model's queues, and the passing of time: one list of jobs, which is searched and sorted anew for each use.

Time stands still except in ``wait`` and ``wait_unseen``. The protocol does not define the order of events at one
instant; here it is this: tubes and clients in the order of their creation, each with all its delays, pauses or
reservations that end; and only then the clients whose wait ends in vain.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from tests.support.model_policies import SECOND_NS, Policies
from tests.support.model_rulings import Rulings

NEVER_NS = 1 << 100
OFFER_NS = 2 * SECOND_NS


@dataclass(eq=False)
class Tube:
    name: bytes
    serial: int
    total_jobs: int = 0
    cmd_delete: int = 0
    cmd_pause: int = 0
    pause_s: int = 0
    pause_until_ns: int = 0
    only_paused: bool = False
    """Whether it exists only because its pause outlived a restart."""
    shut: bool = False
    """Whether it hands out nothing until it is opened, by a look at it or by a client that reserves."""
    look_ns: int | None = None
    """Since when a look at it is due, as something may not keep it shut any more."""
    debt_ns: int = 0
    """With a rate: how long it takes until all reservations up to ``debt_at_ns`` are made up for."""
    debt_at_ns: int = 0
    turn: int = 0
    """With ``fair``: the number of the last reservation."""


@dataclass(eq=False)
class Client:
    serial: int
    number: int
    """The number of the connection since the start."""
    use: Tube
    watched: list[Tube]
    producer: bool = False
    worker: bool = False
    half_closed: bool = False
    wait_until_ns: int | None = None
    waits_for_offer: bool = False
    offers: "Offers | None" = None
    pending: list[tuple[bytes, bytes]] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)


@dataclass(eq=False)
class Offers:
    """Those to one client, from the first one on."""

    serial: int
    client: Client


@dataclass(eq=False)
class Job:
    id: int
    tube: Tube
    pri: int
    delay_s: int
    ttr_s: int
    body: bytes
    created_ns: int
    state: str = "ready"
    since_ns: int = 0
    ends_ns: int = 0
    """When the delay, the ttr or the offer ends."""
    burial: int = 0
    holder: Client | None = None
    offered_to: Client | None = None
    last_holder: int | None = None
    """The connection number of the client that last held it."""
    why: str | None = None
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0
    tries: int = 0
    """Reservations that count for ``max_tries``, with the present one."""
    aged: bool = False
    """Whether its tube has looked at its age already, after the ttl, and let it be."""
    note: bytes = b""
    known: int = 0
    """Jobs with the same body are known to their tube in this order."""


class Queues(Rulings):
    def __init__(self, now_ns, max_job_size):
        self.now_ns = now_ns
        self.max_job_size = max_job_size
        self.jobs = []
        self.last_id = 0
        self.given = []
        """All ids that were given out. Some numbers are missing: a crash skips ids."""
        self.burials = 0
        self.policies = Policies()
        self.promised = set()
        """Ids of jobs with acknowledged changes; a journal empties this set when it has stored them."""
        self._start()

    def _start(self):
        self.clients = []
        self.waiters = []
        self.woken = []
        self.counts = Counter()
        self.timeouts = self.total_jobs = self.total_clients = 0
        self.draining = self.full = False
        self.serial = self.turns = self.other_turn = self.last_known = 0
        self.tubes = []
        self.default = self._tube(b"default")

    def restart(self, jobs, last_id, pauses):
        """Start again with these jobs, as returned by ``restored``, and these pauses (seconds and end, by name)."""
        self._start()
        self.jobs = jobs
        self.last_id = last_id
        self.promised = set()
        for job in sorted(jobs, key=lambda job: job.id):
            job.tube = self._tube(job.tube.name)
            self._know(job)
            job.aged = False
        for name, (pause_s, until_ns) in sorted(pauses.items()):
            if until_ns > self.now_ns:
                tube = self._tube(name)
                tube.pause_s, tube.pause_until_ns, tube.only_paused, tube.shut = pause_s, until_ns, True, True
        self._tidy()

    def snapshot(self):
        """Return copies of all jobs."""
        return [replace(job) for job in self.jobs]

    def restored(self, job):
        """Return a job of a snapshot as it would be after a restart now."""
        if job.state == "offered":
            return replace(job, offered_to=None, state="ready")
        if job.state == "reserved":
            job = replace(job, tries=max(0, job.tries - 1))
        elif job.state != "delayed" or job.ends_ns > self.now_ns:
            return replace(job)
        return replace(job, holder=None, state="ready", since_ns=self.now_ns)

    def pauses(self):
        return {tube.name: (tube.pause_s, tube.pause_until_ns) for tube in self.tubes if tube.pause_until_ns}

    # -- clients

    def connect(self):
        self.serial += 1
        self.total_clients += 1
        client = Client(self.serial, self.total_clients, self.default, [self.default])
        self.clients.append(client)
        return client

    def send(self, client, commands):
        """Send commands in one packet: pairs of a line and the body, with everything up to the next line."""
        client.pending += commands
        self._stop_offer(client)
        self._run(client)
        self._wake()

    def half_close(self, client):
        client.half_closed = True
        if client.wait_until_ns is not None:
            self._stop_waiting(client)
            client.replies.append(b"TIMED_OUT\r\n")
            self._run(client)
            self._wake()

    def close(self, client):
        self._stop_waiting(client)
        self.clients.remove(client)
        self._tidy()
        for job in sorted(self._held(client), key=lambda job: (job.ends_ns, job.id)):
            self._come_back(job, gone=True)
        for job in self._offered(client):
            self._go_back(job)
        self._wake()

    def _run(self, client):
        while client.pending and client.wait_until_ns is None:
            line, body = client.pending.pop(0)
            reply = self._carry_out(client, line, body)  # defined in Model
            self._tidy()
            if reply is not None:
                client.replies.append(reply)
            self._stop_offer(client)

    def _stop_offer(self, client):
        """End the wait for an offer of a client that has sent something else."""
        if client.pending and client.wait_until_ns is not None and client.waits_for_offer:
            self._stop_waiting(client)
            client.replies.append(b"TIMED_OUT\r\n")

    def _wake(self):
        while self.woken:
            client, reply = self.woken.pop(0)
            client.replies.append(reply)
            self._run(client)

    def _stop_waiting(self, client):
        client.wait_until_ns = None
        if client in self.waiters:
            self.waiters.remove(client)

    # -- time

    def instants(self):
        """Yield the times at which something ends, each with its tube or client."""
        for when, owner in self._ends():
            yield max(when, self.now_ns), owner
        for job in self.jobs:
            if job.state == "reserved" and job.holder.wait_until_ns is not None:
                yield job.ends_ns - SECOND_NS, job.holder
        for client in self.waiters:
            yield client.wait_until_ns, client

    def _ends(self):
        """Yield the times at which something other than a wait ends; some are in the past, and still to be acted on."""
        for tube in self.tubes:
            if tube.pause_until_ns:
                yield tube.pause_until_ns, tube
            if tube.look_ns is not None:
                yield tube.look_ns, tube
            elif tube.shut and not tube.pause_until_ns and (opens_ns := self._opens_ns(tube)) is not None:
                yield opens_ns, tube
        for job in self.jobs:
            if job.state == "delayed":
                yield job.ends_ns, job.tube
            elif job.state == "reserved":
                yield job.ends_ns, job.holder
            elif job.state == "offered":
                yield job.ends_ns, job.offered_to.offers
            if not job.aged and (ttl_ns := self._rules(job.tube).get("ttl")):
                yield job.created_ns + ttl_ns, job.tube

    def wait(self, wait_ns):
        """Let time pass, acting at every instant at which something ends."""
        end_ns = self.now_ns + wait_ns
        while (instant := min((when for when, _ in self.instants()), default=NEVER_NS)) <= end_ns:
            self.now_ns = instant
            self._look()
        self.now_ns = end_ns

    def may_wait_unseen(self, wait_ns):
        """Return whether the outcome is defined: things end meanwhile for at most one tube or client."""
        return len({owner.serial for when, owner in self.instants() if when <= self.now_ns + wait_ns}) <= 1

    def wait_unseen(self, wait_ns):
        """Let time pass, acting only once, at the end."""
        self.now_ns += wait_ns
        self._look()

    def _look(self):
        waiting = sorted(self.waiters, key=lambda client: client.serial)
        while due := [(when, end.serial, end) for when, end in self._ends() if when <= self.now_ns]:
            _, _, owner = min(due, key=lambda end: end[:2])
            if isinstance(owner, Tube):
                self._look_at_tube(owner)
            elif isinstance(owner, Offers):
                for job in self._offered(owner.client):
                    if job.ends_ns <= self.now_ns:
                        self._go_back(job)
            else:
                self._look_at_client(owner)
            self._tidy()
        for client in waiting:
            if client.wait_until_ns is None:
                continue
            if self._deadline_soon(client):
                self._give_up(client, b"DEADLINE_SOON\r\n")
            elif client.wait_until_ns <= self.now_ns:
                self._give_up(client, b"TIMED_OUT\r\n")
        self._tidy()
        self._wake()

    def _look_at_tube(self, tube):
        tube.look_ns = None
        self._expire(tube)
        if tube.shut and tube.pause_until_ns <= self.now_ns:
            tube.pause_s = tube.pause_until_ns = 0
            self._open(tube)
        for job in self._delayed(tube):
            if job.ends_ns <= self.now_ns:
                self._make_ready(job)

    def _look_at_client(self, client):
        over = sorted(
            (job for job in self._held(client) if job.ends_ns <= self.now_ns), key=lambda job: (job.ends_ns, job.id)
        )
        if over and client.wait_until_ns is not None:
            self._give_up(client, b"DEADLINE_SOON\r\n")
        for job in over:
            job.timeouts += 1
            self.timeouts += 1
            self._come_back(job)

    def _give_up(self, client, reply):
        self._stop_waiting(client)
        self.woken.append((client, reply))

    def _deadline_soon(self, client):
        return any(job.ends_ns - SECOND_NS <= self.now_ns for job in self._held(client))

    # -- queues

    def _held(self, client):
        return [job for job in self.jobs if job.holder is client]

    def _offered(self, client):
        jobs = [job for job in self.jobs if job.offered_to is client]
        return sorted(jobs, key=lambda job: (job.ends_ns, job.id))

    def _ready(self, tubes):
        return sorted(
            (job for job in self.jobs if job.state == "ready" and job.tube in tubes), key=lambda job: (job.pri, job.id)
        )

    def _delayed(self, tube):
        return sorted(
            (job for job in self.jobs if job.state == "delayed" and job.tube is tube),
            key=lambda job: (job.ends_ns, job.id),
        )

    def _buried(self, tube):
        return sorted(
            (job for job in self.jobs if job.state == "buried" and job.tube is tube), key=lambda job: job.burial
        )

    def _enter(self, job, state):
        if job.state == "buried":
            job.tries = 0
        if job.state in {"reserved", "buried"} and self._rules(job.tube).get("unique") == "waiting":
            self._know(job)
        if job.state in {"reserved", "offered"}:
            self._free(job.tube)
        job.state, job.since_ns, job.holder, job.why = state, self.now_ns, None, None
        job.offered_to = None

    def _make_ready(self, job):
        self._enter(job, "ready")
        self._serve()

    def _bury(self, job, why):
        self.burials += 1
        self._enter(job, "buried")
        job.burial, job.why = self.burials, why
        job.buries += 1

    def _place(self, job, delay_s):
        """Put a job in its queue after a put or a release."""
        job.delay_s = delay_s
        if delay_s:
            self._enter(job, "delayed")
            job.ends_ns = self.now_ns + delay_s * SECOND_NS
        else:
            self._make_ready(job)

    def _serve(self):
        """Hand out jobs to waiting clients, first come, first served."""
        for client in self.waiters[:]:
            job = self._best(client)
            if job is not None:
                self._stop_waiting(client)
                give = self._offer if client.waits_for_offer else self._hand_out
                self.woken.append((client, give(job, client)))

    def _best(self, client):
        return next(iter(self._ready([tube for tube in client.watched if not tube.shut])), None)

    def _hand_out(self, job, client):
        self._enter(job, "reserved")
        job.holder, job.last_holder, job.ends_ns = client, client.number, self.now_ns + job.ttr_s * SECOND_NS
        job.reserves += 1
        job.tries += 1
        self._hold_back(job.tube)
        return b"RESERVED %d %d\r\n%b\r\n" % (job.id, len(job.body), job.body)

    def _offer(self, job, client):
        if client.offers is None:
            self.serial += 1
            client.offers = Offers(self.serial, client)
        since_ns = job.since_ns
        self._enter(job, "offered")
        job.since_ns, job.offered_to, job.ends_ns = since_ns, client, self.now_ns + OFFER_NS
        job.tube.shut = job.tube.shut or self._may_not_open(job.tube)
        return b"OFFERED %d %d\r\n%b\r\n" % (job.id, len(job.body), job.body)

    def _go_back(self, job):
        """Have a job that was offered be ready as if it had been so all the time."""
        since_ns = job.since_ns
        if self._is_too_old(job):
            job.aged = False
            self._delay(job, SECOND_NS)
            return
        self._enter(job, "ready")
        job.since_ns = since_ns
        self._serve()

    def _find(self, job_id, *states, holder=None):
        """Return the job if it is in one of the states, or reserved by the holder; else None."""
        for job in self.jobs:
            if job.id == int(job_id):
                if job.state in states or (holder is not None and job.holder is holder):
                    return job
                return None
        return None

    # -- tubes

    def _tube(self, name):
        for tube in self.tubes:
            if tube.name == name:
                return tube
        self.serial += 1
        tube = Tube(name, self.serial)
        self.tubes.append(tube)
        self._take_on(tube, {})
        return tube

    def _using(self, tube):
        return sum(client.use is tube for client in self.clients)

    def _watching(self, tube):
        return sum(tube in client.watched for client in self.clients)

    def _tidy(self):
        """Remove tubes that are not needed, together with their pauses."""
        for tube in self.tubes[1:]:
            needed = self._using(tube) or self._watching(tube) or any(job.tube is tube for job in self.jobs)
            tube.only_paused = tube.only_paused and not needed and tube.pause_until_ns > 0
            if not needed and not tube.only_paused:
                self.tubes.remove(tube)
