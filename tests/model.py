"""The protocol once more, naively: one list of jobs, searched and sorted anew for every question.

It is slow and short, so that it can be compared with the description of the protocol by reading. Time stands still but
for ``wait`` and ``wait_unseen``. Where the protocol leaves open what of one instant comes first, it is: tubes and
clients in the order in which they came into being, each with all that ends for it; those who wait are told that it was
in vain only after that.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

SECOND_NS = 1_000_000_000
NEVER_NS = 1 << 100

# What is answered without a look at anything.
MALFORMED = {
    b"put 1 2 3": b"BAD_FORMAT\r\n",
    b"put 0 0 4294967296 1": b"BAD_FORMAT\r\n",
    b"delete x": b"BAD_FORMAT\r\n",
    b"release 1 2": b"BAD_FORMAT\r\n",
    b"kick ": b"BAD_FORMAT\r\n",
    b"use -a": b"BAD_FORMAT\r\n",
    b"reservex": b"BAD_FORMAT\r\n",
    b"reserve-with-timeout ": b"BAD_FORMAT\r\n",
    b"pause-tube default": b"BAD_FORMAT\r\n",
    b"delete": b"UNKNOWN_COMMAND\r\n",
    b"": b"UNKNOWN_COMMAND\r\n",
    b"x" * 223: b"BAD_FORMAT\r\n",
}


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
    """It exists because its pause outlived a restart, and for nothing else."""


@dataclass(eq=False)
class Client:
    serial: int
    use: Tube
    watched: list[Tube]
    producer: bool = False
    worker: bool = False
    half_closed: bool = False
    wait_until_ns: int | None = None
    pending: list[tuple[bytes, bytes]] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)


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
    ends_ns: int = 0
    """The delay or the ttr."""
    burial: int = 0
    holder: Client | None = None
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0


class Model:
    def __init__(self, now_ns, max_job_size):
        self.now_ns = now_ns
        self.max_job_size = max_job_size
        self.jobs = []
        self.last_id = 0
        self.burials = 0
        self.promised = set()
        """Ids of the jobs of which something has been acknowledged; a journal empties it when it has stored that."""
        self._start()

    def _start(self):
        self.clients = []
        self.waiters = []
        self.woken = []
        self.counts = Counter()
        self.timeouts = self.total_jobs = self.total_clients = 0
        self.draining = self.full = False
        self.serial = 0
        self.tubes = []
        self.default = self._tube(b"default")

    def restart(self, jobs, last_id, pauses):
        """Start again with these jobs and pauses (name: seconds, end)."""
        self._start()
        self.jobs = jobs
        self.last_id = last_id
        self.promised = set()
        for job in sorted(jobs, key=lambda job: job.id):
            job.tube = self._tube(job.tube.name)
            job.holder = None
            if job.state == "reserved" or (job.state == "delayed" and job.ends_ns <= self.now_ns):
                job.state = "ready"
        for name, (pause_s, until_ns) in sorted(pauses.items()):
            if until_ns > self.now_ns:
                tube = self._tube(name)
                tube.pause_s, tube.pause_until_ns, tube.only_paused = pause_s, until_ns, True
        self._tidy()

    def snapshot(self):
        """The jobs as they are, for ``restart``."""
        return [replace(job) for job in self.jobs]

    def pauses(self):
        return {tube.name: (tube.pause_s, tube.pause_until_ns) for tube in self.tubes if tube.pause_until_ns}

    # -- clients

    def connect(self):
        self.serial += 1
        self.total_clients += 1
        client = Client(self.serial, self.default, [self.default])
        self.clients.append(client)
        return client

    def send(self, client, commands):
        """Commands in one packet: lines, and a body with all that comes before the next line."""
        client.pending += commands
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
            self._make_ready(job)
        self._wake()

    def _run(self, client):
        while client.pending and client.wait_until_ns is None:
            line, body = client.pending.pop(0)
            reply = MALFORMED.get(line)
            if reply is None:
                word, *args = line.split(b" ")
                reply = getattr(self, "do_" + word.decode().replace("-", "_"))(client, *args, *([body] if body else []))
                self._tidy()
            if reply is not None:
                client.replies.append(reply)

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
        """When something ends, and for whom."""
        for tube in self.tubes:
            if tube.pause_until_ns:
                yield tube.pause_until_ns, tube
        for job in self.jobs:
            if job.state == "delayed":
                yield job.ends_ns, job.tube
            elif job.state == "reserved":
                yield job.ends_ns, job.holder
                if job.holder.wait_until_ns is not None:
                    yield job.ends_ns - SECOND_NS, job.holder
        for client in self.waiters:
            yield client.wait_until_ns, client

    def wait(self, wait_ns):
        """Let time pass, with a look at every instant at which something ends."""
        end_ns = self.now_ns + wait_ns
        while (instant := min((when for when, _ in self.instants()), default=NEVER_NS)) <= end_ns:
            self.now_ns = instant
            self._look()
        self.now_ns = end_ns

    def may_wait_unseen(self, wait_ns):
        """Whether the outcome is clear: nothing ends meanwhile for more than one tube or client."""
        return len({owner.serial for when, owner in self.instants() if when <= self.now_ns + wait_ns}) <= 1

    def wait_unseen(self, wait_ns):
        """Let time pass, with one look at the end."""
        self.now_ns += wait_ns
        self._look()

    def _look(self):
        waiting = sorted(self.waiters, key=lambda client: client.serial)
        for owner in sorted([*self.tubes, *self.clients], key=lambda owner: owner.serial):
            if isinstance(owner, Tube):
                self._look_at_tube(owner)
            else:
                self._look_at_client(owner)
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
        if tube.pause_until_ns and tube.pause_until_ns <= self.now_ns:
            tube.pause_s = tube.pause_until_ns = 0
            self._serve()
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
            self._make_ready(job)

    def _give_up(self, client, reply):
        self._stop_waiting(client)
        self.woken.append((client, reply))

    def _deadline_soon(self, client):
        return any(job.ends_ns - SECOND_NS <= self.now_ns for job in self._held(client))

    # -- queues

    def _held(self, client):
        return [job for job in self.jobs if job.holder is client]

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

    def _make_ready(self, job):
        job.state = "ready"
        job.holder = None
        self._serve()

    def _place(self, job, delay_s):
        """After a put or a release."""
        job.delay_s = delay_s
        if delay_s:
            job.state, job.holder, job.ends_ns = "delayed", None, self.now_ns + delay_s * SECOND_NS
        else:
            self._make_ready(job)

    def _serve(self):
        """First come, first served."""
        for client in self.waiters[:]:
            job = self._best(client)
            if job is not None:
                self._stop_waiting(client)
                self.woken.append((client, self._hand_out(job, client)))

    def _best(self, client):
        return next(iter(self._ready([tube for tube in client.watched if not tube.pause_until_ns])), None)

    def _hand_out(self, job, client):
        job.state, job.holder, job.ends_ns = "reserved", client, self.now_ns + job.ttr_s * SECOND_NS
        job.reserves += 1
        return b"RESERVED %d %d\r\n%b\r\n" % (job.id, len(job.body), job.body)

    def _find(self, job_id, *states, holder=None):
        """The job, if it is in one of the states, or reserved by the holder."""
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
        return tube

    def _using(self, tube):
        return sum(client.use is tube for client in self.clients)

    def _watching(self, tube):
        return sum(tube in client.watched for client in self.clients)

    def _tidy(self):
        """Tubes that nobody needs are gone, and their pauses with them."""
        for tube in self.tubes[1:]:
            needed = self._using(tube) or self._watching(tube) or any(job.tube is tube for job in self.jobs)
            tube.only_paused = tube.only_paused and not needed and tube.pause_until_ns > 0
            if not needed and not tube.only_paused:
                self.tubes.remove(tube)

    # -- commands: putting and reserving

    def do_put(self, client, pri, delay_s, ttr_s, size, rest):
        self.counts["put"] += 1
        if int(size) > self.max_job_size:
            return b"JOB_TOO_BIG\r\n"
        client.producer = True
        if rest[int(size) :] != b"\r\n":
            return b"EXPECTED_CRLF\r\n"
        if self.draining:
            return b"DRAINING\r\n"
        if self.full:
            return b"OUT_OF_MEMORY\r\n"
        self.last_id += 1
        self.total_jobs += 1
        client.use.total_jobs += 1
        job = Job(self.last_id, client.use, int(pri), int(delay_s), max(int(ttr_s), 1), rest[:-2], self.now_ns)
        self.jobs.append(job)
        self.promised.add(job.id)
        self._place(job, int(delay_s))
        return b"INSERTED %d\r\n" % job.id

    def do_reserve(self, client):
        self.counts["reserve"] += 1
        return self._reserve(client, NEVER_NS)

    def do_reserve_with_timeout(self, client, timeout_s):
        self.counts["reserve-with-timeout"] += 1
        return self._reserve(client, self.now_ns + int(timeout_s) * SECOND_NS)

    def _reserve(self, client, until_ns):
        client.worker = True
        job = self._best(client)
        if job is not None:
            return self._hand_out(job, client)
        if self._deadline_soon(client):
            return b"DEADLINE_SOON\r\n"
        if until_ns <= self.now_ns or client.half_closed:
            return b"TIMED_OUT\r\n"
        client.wait_until_ns = until_ns
        self.waiters.append(client)
        return None

    def do_reserve_job(self, client, job_id):
        job = self._find(job_id, "ready", "delayed", "buried")
        if job is None:
            return b"NOT_FOUND\r\n"
        client.worker = True
        return self._hand_out(job, client)

    # -- commands: with a job

    def do_delete(self, client, job_id):
        self.counts["delete"] += 1
        job = self._find(job_id, "ready", "delayed", "buried", holder=client)
        if job is None:
            return b"NOT_FOUND\r\n"
        self.jobs.remove(job)
        self.promised.add(job.id)
        job.tube.cmd_delete += 1
        return b"DELETED\r\n"

    def do_release(self, client, job_id, pri, delay_s):
        self.counts["release"] += 1
        job = self._find(job_id, holder=client)
        if job is None:
            return b"NOT_FOUND\r\n"
        job.pri = int(pri)
        job.releases += 1
        self.promised.add(job.id)
        self._place(job, int(delay_s))
        return b"RELEASED\r\n"

    def do_bury(self, client, job_id, pri):
        self.counts["bury"] += 1
        job = self._find(job_id, holder=client)
        if job is None:
            return b"NOT_FOUND\r\n"
        self.burials += 1
        job.pri, job.state, job.holder, job.burial = int(pri), "buried", None, self.burials
        job.buries += 1
        self.promised.add(job.id)
        return b"BURIED\r\n"

    def do_touch(self, client, job_id):
        self.counts["touch"] += 1
        job = self._find(job_id, holder=client)
        if job is None:
            return b"NOT_FOUND\r\n"
        job.ends_ns = self.now_ns + job.ttr_s * SECOND_NS
        return b"TOUCHED\r\n"

    def do_kick(self, client, bound):
        self.counts["kick"] += 1
        jobs = (self._buried(client.use) or self._delayed(client.use))[: int(bound)]
        for job in jobs:
            self._kick(job)
        return b"KICKED %d\r\n" % len(jobs)

    def do_kick_job(self, _client, job_id):
        job = self._find(job_id, "buried", "delayed")
        if job is None:
            return b"NOT_FOUND\r\n"
        self._kick(job)
        return b"KICKED\r\n"

    def _kick(self, job):
        job.kicks += 1
        self.promised.add(job.id)
        self._make_ready(job)

    # -- commands: tubes

    def do_use(self, client, name):
        self.counts["use"] += 1
        client.use = self._tube(name)
        return b"USING %b\r\n" % name

    def do_watch(self, client, name):
        self.counts["watch"] += 1
        tube = self._tube(name)
        if tube not in client.watched:
            client.watched.append(tube)
        return b"WATCHING %d\r\n" % len(client.watched)

    def do_ignore(self, client, name):
        self.counts["ignore"] += 1
        if [tube.name for tube in client.watched] == [name]:
            return b"NOT_IGNORED\r\n"
        client.watched = [tube for tube in client.watched if tube.name != name]
        return b"WATCHING %d\r\n" % len(client.watched)

    def do_pause_tube(self, _client, name, pause_s):
        self.counts["pause-tube"] += 1
        for tube in self.tubes:
            if tube.name == name:
                tube.cmd_pause += 1
                tube.pause_s = int(pause_s)
                tube.pause_until_ns = self.now_ns + tube.pause_s * SECOND_NS if tube.pause_s else 0
                self._serve()
                return b"PAUSED\r\n"
        return b"NOT_FOUND\r\n"

    # -- commands: looking

    def do_peek(self, _client, job_id):
        self.counts["peek"] += 1
        return self._found(job for job in self.jobs if job.id == int(job_id))

    def do_peek_ready(self, client):
        self.counts["peek-ready"] += 1
        return self._found(self._ready([client.use]))

    def do_peek_delayed(self, client):
        self.counts["peek-delayed"] += 1
        return self._found(self._delayed(client.use))

    def do_peek_buried(self, client):
        self.counts["peek-buried"] += 1
        return self._found(self._buried(client.use))

    def _found(self, jobs):
        for job in jobs:
            return b"FOUND %d %d\r\n%b\r\n" % (job.id, len(job.body), job.body)
        return b"NOT_FOUND\r\n"

    def do_list_tubes(self, _client):
        self.counts["list-tubes"] += 1
        return ok([f"- {tube.name.decode()}" for tube in self.tubes])

    def do_list_tube_used(self, client):
        self.counts["list-tube-used"] += 1
        return b"USING %b\r\n" % client.use.name

    def do_list_tubes_watched(self, client):
        self.counts["list-tubes-watched"] += 1
        return ok([f"- {tube.name.decode()}" for tube in client.watched])

    # -- commands: statistics

    def do_stats_job(self, _client, job_id):
        self.counts["stats-job"] += 1
        for job in self.jobs:
            if job.id == int(job_id):
                return self.stats_of(job)
        return b"NOT_FOUND\r\n"

    def stats_of(self, job):
        timed = job.state in {"delayed", "reserved"}
        return ok(
            [
                f"id: {job.id}",
                f'tube: "{job.tube.name.decode()}"',
                f"state: {job.state}",
                f"pri: {job.pri}",
                f"age: {(self.now_ns - job.created_ns) // SECOND_NS}",
                f"delay: {job.delay_s}",
                f"ttr: {job.ttr_s}",
                f"time-left: {(job.ends_ns - self.now_ns) // SECOND_NS if timed else 0}",
                "file: 1",
                f"reserves: {job.reserves}",
                f"timeouts: {job.timeouts}",
                f"releases: {job.releases}",
                f"buries: {job.buries}",
                f"kicks: {job.kicks}",
            ]
        )

    def do_stats_tube(self, _client, name):
        self.counts["stats-tube"] += 1
        for tube in self.tubes:
            if tube.name == name:
                return ok(
                    [
                        f'name: "{name.decode()}"',
                        *self._job_counts([job for job in self.jobs if job.tube is tube]),
                        f"total-jobs: {tube.total_jobs}",
                        f"current-using: {self._using(tube)}",
                        f"current-watching: {self._watching(tube)}",
                        f"current-waiting: {sum(tube in client.watched for client in self.waiters)}",
                        f"cmd-delete: {tube.cmd_delete}",
                        f"cmd-pause-tube: {tube.cmd_pause}",
                        f"pause: {tube.pause_s}",
                        f"pause-time-left: {max(0, tube.pause_until_ns - self.now_ns) // SECOND_NS}",
                    ]
                )
        return b"NOT_FOUND\r\n"

    def do_stats(self, _client):
        self.counts["stats"] += 1
        return ok(
            [
                *self._job_counts(self.jobs),
                *(f"cmd-{name}: {self.counts[name]}" for name in COUNTED.split()),
                f"job-timeouts: {self.timeouts}",
                f"total-jobs: {self.total_jobs}",
                f"max-job-size: {self.max_job_size}",
                f"current-tubes: {len(self.tubes)}",
                f"current-connections: {len(self.clients)}",
                f"current-producers: {sum(client.producer for client in self.clients)}",
                f"current-workers: {sum(client.worker for client in self.clients)}",
                f"current-waiting: {len(self.waiters)}",
                f"total-connections: {self.total_clients}",
                *FACTS_BEFORE.split("; "),
                f"draining: {str(self.draining).lower()}",
                *FACTS_AFTER.split("; "),
                f"disk-full: {str(self.full).lower()}",
            ]
        )

    def _job_counts(self, jobs):
        states = Counter(job.state for job in jobs)
        yield f"current-jobs-urgent: {sum(job.state == 'ready' and job.pri < 1024 for job in jobs)}"
        for state in ("ready", "reserved", "delayed", "buried"):
            yield f"current-jobs-{state}: {states[state]}"


COUNTED = (
    "put peek peek-ready peek-delayed peek-buried reserve reserve-with-timeout delete release use watch ignore bury "
    "kick touch stats stats-job stats-tube list-tubes list-tube-used list-tubes-watched pause-tube"
)
# As tests.core has them.
FACTS_BEFORE = (
    'pid: 1; version: "0"; rusage-utime: 0.000000; rusage-stime: 0.000000; uptime: 0; binlog-oldest-index: 1; '
    "binlog-current-index: 1; binlog-records-migrated: 0; binlog-records-written: 0; binlog-max-size: 0"
)
FACTS_AFTER = 'id: id; hostname: "host"; os: "os"; platform: "x86"; journal-batches: 0; journal-wal-bytes: 0'


def ok(lines):
    body = "\n".join(["---", *lines, ""]).encode()
    return b"OK %d\r\n%b\r\n" % (len(body), body)
