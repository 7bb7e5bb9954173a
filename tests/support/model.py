"""A naive second implementation of the protocol: commands and replies. The queues are lists, sorted anew for each use.

It is slow but short, so that a reader can compare it with the description of the protocol.
"""

from collections import Counter

from tests.support.model_policies import SECOND_NS
from tests.support.model_queues import NEVER_NS, Job, Queues

NOTE_MAX = 4096
# Commands whose reply depends on nothing else.
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


class Model(Queues):
    """``send``, ``wait`` and the like are in Queues."""

    def _carry_out(self, client, line, body):
        if line in MALFORMED:
            return MALFORMED[line]
        word, *args = line.split(b" ")
        return getattr(self, "do_" + word.decode().replace("-", "_"))(client, *args, *([body] if body else []))

    # -- commands: putting and reserving

    def do_put(self, client, pri, delay_s, ttr_s, size, rest):
        self.counts["put"] += 1
        if int(size) > self.max_job_size:
            return b"JOB_TOO_BIG\r\n"
        client.producer = True
        if self.full and not self.draining:
            return b"OUT_OF_MEMORY\r\n"
        if rest[int(size) :] != b"\r\n":
            return b"EXPECTED_CRLF\r\n"
        if self.draining:
            return b"DRAINING\r\n"
        job = self._twin(client.use, rest[:-2])
        if job is None:
            if not self._has_room(client.use.name, 1):
                return b"OUT_OF_MEMORY\r\n"
            job = self._put(client.use, int(pri), int(delay_s), max(int(ttr_s), 1), rest[:-2])
        return b"INSERTED %d\r\n" % job.id

    def _put(self, tube, pri, delay_s, ttr_s, body):
        self.last_id += 1
        self.given.append(self.last_id)
        self.total_jobs += 1
        tube.total_jobs += 1
        job = Job(self.last_id, tube, pri, delay_s, ttr_s, body, self.now_ns)
        self.jobs.append(job)
        self.promised.add(job.id)
        self._know(job)
        self._place(job, delay_s)
        return job

    def do_reserve(self, client):
        self.counts["reserve"] += 1
        return self._reserve(client, NEVER_NS, self._hand_out)

    def do_reserve_with_timeout(self, client, timeout_s):
        self.counts["reserve-with-timeout"] += 1
        return self._reserve(client, self.now_ns + int(timeout_s) * SECOND_NS, self._hand_out)

    def do_offer(self, client, timeout_s):
        return self._reserve(client, self.now_ns + int(timeout_s) * SECOND_NS, self._offer)

    def do_take(self, client, job_id):
        job = self._find_offered(client, job_id)
        if job is None:
            return b"NOT_FOUND\r\n"
        self._hand_out(job, client)
        return b"TAKEN\r\n"

    def do_decline(self, client, job_id):
        job = self._find_offered(client, job_id)
        if job is None:
            return b"NOT_FOUND\r\n"
        self._go_back(job)
        return b"DECLINED\r\n"

    def _find_offered(self, client, job_id):
        return next((job for job in self._offered(client) if job.id == int(job_id)), None)

    def _reserve(self, client, until_ns, give):
        client.worker = True
        job = self._choose(client, looks_at_all=give == self._offer)
        if job is not None:
            return give(job, client)
        if self._deadline_soon(client):
            return b"DEADLINE_SOON\r\n"
        if until_ns <= self.now_ns or client.half_closed:
            return b"TIMED_OUT\r\n"
        client.wait_until_ns, client.waits_for_offer = until_ns, give == self._offer
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
        self._delete(job)
        return b"DELETED\r\n"

    def do_release(self, client, job_id, pri, delay_s):
        self.counts["release"] += 1
        job = self._find(job_id, holder=client)
        if job is None:
            return b"NOT_FOUND\r\n"
        job.pri, job.delay_s = int(pri), int(delay_s)
        job.releases += 1
        self.promised.add(job.id)
        self._come_back(job, int(delay_s))
        return b"RELEASED\r\n"

    def do_bury(self, client, job_id, pri):
        self.counts["bury"] += 1
        job = self._find(job_id, holder=client)
        if job is None:
            return b"NOT_FOUND\r\n"
        job.pri = int(pri)
        self._bury(job, "client")
        self.promised.add(job.id)
        return b"BURIED\r\n"

    def do_touch(self, client, job_id):
        self.counts["touch"] += 1
        job = self._find(job_id, holder=client)
        if job is None:
            return b"NOT_FOUND\r\n"
        job.ends_ns = self.now_ns + job.ttr_s * SECOND_NS
        return b"TOUCHED\r\n"

    def do_note(self, client, job_id, size, rest):
        if int(size) > NOTE_MAX:
            return b"NOTE_TOO_BIG\r\n"
        text = rest[: int(size)]
        if rest[int(size) :] != b"\r\n":
            return b"EXPECTED_CRLF\r\n"
        if b"\0" in text or b"\xff" in text:
            return b"BAD_FORMAT\r\n"
        job = self._find(job_id, holder=client)
        if job is None:
            return b"NOT_FOUND\r\n"
        if self.full and text:
            return b"OUT_OF_MEMORY\r\n"
        job.note = text
        self.promised.add(job.id)
        return b"NOTED\r\n"

    def do_name(self, _client, name):
        return b"NAMED\r\n" if len(name) <= 100 and b'"' not in name else b"BAD_FORMAT\r\n"

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
                tube.shut = tube.shut or tube.pause_s > 0
                if not tube.pause_s:
                    self._open(tube)
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
        state = shown(job)
        timed = state in {"delayed", "reserved"}
        return ok(
            [
                f"id: {job.id}",
                f'tube: "{job.tube.name.decode()}"',
                f"state: {state}",
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
                "refused-tubes: 0",
                "backup-succeeded-at: 0",
                "backup-failed-at: 0",
                "history-bodies-max: 0",
            ]
        )

    def _job_counts(self, jobs):
        states = Counter(map(shown, jobs))
        yield f"current-jobs-urgent: {sum(job.state == 'ready' and job.pri < 1024 for job in jobs)}"
        for state in ("ready", "reserved", "delayed", "buried"):
            yield f"current-jobs-{state}: {states[state]}"


COUNTED = (
    "put peek peek-ready peek-delayed peek-buried reserve reserve-with-timeout delete release use watch ignore bury "
    "kick touch stats stats-job stats-tube list-tubes list-tube-used list-tubes-watched pause-tube"
)
# As tests.support.core has them.
FACTS_BEFORE = (
    'pid: 1; version: "0"; rusage-utime: 0.000000; rusage-stime: 0.000000; uptime: 0; binlog-oldest-index: 1; '
    "binlog-current-index: 1; binlog-records-migrated: 0; binlog-records-written: 0; binlog-max-size: 0"
)
FACTS_AFTER = 'id: id; hostname: "host"; os: "os"; platform: "x86"; journal-batches: 0; journal-wal-bytes: 0'


def shown(job):
    return "reserved" if job.state == "offered" else job.state


def ok(lines):
    body = "\n".join(["---", *lines, ""]).encode()
    return b"OK %d\r\n%b\r\n" % (len(body), body)
