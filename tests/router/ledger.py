"""What the routers have acknowledged to clients, and what that forbids them to say later.

A job is known by its body, because its id changes when its tube moves. A hold of a job, from its reservation on, ends
early only with the connection of its client or the loss of its server or router; a halt of these ends nothing.
"""

import asyncio
import time
from dataclasses import dataclass, field

from beanlite.router.ids import NUMBER_MASK

EARLY_S = 3.5  # a halted server may read the clock that much before the reservation
SEEN_WITHIN_S = 8.0  # a client may notice the end of its connection that much later than the next one gets its job
COMPLAINTS_MAX = 50


@dataclass(slots=True)
class Hold:
    """A reservation of a job."""

    holder: object
    """A connection, with an attribute ``gone``, and ``router``, its number."""
    server: int
    since_s: float
    until_s: float


@dataclass(slots=True)
class Job:
    """A job that was put, or perhaps was."""

    key: int
    tube: str
    ttr_s: int
    put: str = "sent"
    """``sent`` as long as there is no reply, then ``acknowledged``, ``perhaps`` or ``refused``."""
    id: int = 0
    hold: Hold | None = None
    deletes: int = 0
    """Deletes that were sent and not answered."""
    deleted_s: float = 0.0
    """When it was deleted, by the reply."""


@dataclass
class Outage:
    """A time at which a server or a router loses its connections."""

    place: tuple[str, int]
    end_s: float = float("inf")


@dataclass
class Ledger:
    """The ledger of all clients."""

    jobs: dict[int, Job] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    """The tubes that have been moved, whose jobs may have got other ids."""
    moving: str = ""
    """The tube that is being moved: if that is cut off, jobs that nobody has reserved may survive their delete."""
    puts: int = 0
    perhaps: int = 0
    reserves: int = 0
    deletes: int = 0
    open: int = 0
    """How many jobs there are, about."""
    _keys: dict[int, int] = field(default_factory=dict)

    def complain(self, text):
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(text)

    # -- outages

    def begin_outage(self, place):
        outage = Outage(place)
        self.outages.append(outage)
        return outage

    def _is_void(self, hold):
        """Whether a hold may have ended with a connection."""
        places = ("router", hold.holder.router), ("server", hold.server)
        return hold.holder.gone or any(each.place in places and each.end_s >= hold.since_s for each in self.outages)

    def _suspect(self, hold, text):
        """Complain, unless the hold turns out to have ended with a connection."""

        def look():
            if not self._is_void(hold):
                self.complain(text)

        if time.monotonic() < hold.until_s and not self._is_void(hold):
            asyncio.get_running_loop().call_later(SEEN_WITHIN_S, look)

    # -- puts

    def new_job(self, tube, ttr_s):
        """Return a job that is about to be put."""
        key = len(self.jobs)
        job = self.jobs[key] = Job(key, tube, ttr_s)
        return job

    def inserted(self, job, job_id):
        self.puts += 1
        self.open += 1
        job.put = "acknowledged"
        if job.id not in {0, job_id} and job.tube not in self.moved:
            self.complain(f"job {job.key} was put as {job_id}, and reserved as {job.id}")
        if not job.id:
            self._name(job, job_id)

    def _name(self, job, job_id):
        job.id = job_id
        other = self._keys.setdefault(job_id, job.key)
        if other != job.key:
            self.complain(f"id {job_id} is that of the jobs {other} and {job.key}")

    # -- reservations

    def reserved(self, holder, job_id, body, sent_s):
        """Note a reservation that was asked for at ``sent_s``; return the job, None if there can't be such a one."""
        self.reserves += 1
        job = self.jobs.get(int(body.split(b":")[0]))
        if job is None or body != body_of(job):
            self.complain(f"id {job_id} has a body that was never put: {body!r}")
            return None
        if job.put == "refused":
            self.complain(f"job {job.key} is there, though its put was refused")
        if job.id not in {0, job_id} and job.tube not in self.moved:
            self.complain(f"job {job.key} has the ids {job.id} and {job_id}")
        self._name(job, job_id)
        if job.deleted_s and job.deleted_s < sent_s:
            self.complain(f"job {job.key} ({job_id}) is back after its delete")
        if job.hold is not None:
            self._suspect(job.hold, f"job {job.key} ({job_id}) was given to two clients at once")
        job.hold = Hold(holder, job_id & NUMBER_MASK, sent_s, sent_s + job.ttr_s - EARLY_S)
        return job

    def touched(self, holder, job, sent_s):
        if job.hold is not None and job.hold.holder is holder:
            job.hold.until_s = sent_s + job.ttr_s - EARLY_S

    def let_go(self, holder, job):
        """Note that a client is about to give up a job; return its hold, None if that has ended."""
        hold = job.hold
        if hold is None or hold.holder is not holder:
            return None
        job.hold = None
        return hold

    def not_found(self, hold, job, word):
        """Note that a client was told that a job is not its own."""
        if hold is not None:
            self._suspect(hold, f"{word} of job {job.key} ({job.id}) was NOT_FOUND to the client that held it")

    def has_deleted(self, holder, job):
        self.deletes += 1
        self.open -= 1
        held = job.hold is not None and job.hold.holder is holder and not self._is_void(job.hold)
        if job.tube == self.moving and not held:
            return
        job.deletes -= 1
        if job.deleted_s:
            self.complain(f"job {job.key} ({job.id}) was deleted twice")
        if job.hold is not None and job.hold.holder is not holder:
            self._suspect(job.hold, f"job {job.key} ({job.id}) was deleted while another client held it")
        job.deleted_s = time.monotonic()

    # -- what there is

    def audit(self, places):
        """Compare with what the servers have, while no client is there: ``places`` of each key of a job.

        What was unknown is known afterwards.
        """
        self.open = len(places)
        for key in places.keys() - self.jobs.keys():
            self.complain(f"job {key} was never put, and is in {places[key]}")
        for job in self.jobs.values():
            where = places.get(job.key, [])
            if len(where) > 1:
                self.complain(f"job {job.key} ({job.id}) is there more than once: {where}")
            if where and job.deleted_s:
                self.complain(f"job {job.key} ({job.id}) is in {where} after its delete")
            if where and job.put == "refused":
                self.complain(f"job {job.key} is in {where}, though its put was refused")
            if not where and job.put == "acknowledged" and not job.deletes and not job.deleted_s:
                self.complain(f"job {job.key} ({job.id}) of {job.tube} is lost")
            if not where:
                job.deleted_s = job.deleted_s or time.monotonic()
            elif job.put == "perhaps":
                job.put = "acknowledged"
            job.hold, job.deletes = None, 0


def body_of(job):
    return b"%d:%b:%d" % (job.key, job.tube.encode(), job.ttr_s) + b"." * (job.key % 300)
