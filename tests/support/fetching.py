"""The core with a journal that can fetch bodies: a dict of what has been stored."""

from collections import Counter

from beanlite.core.job import GONE, READY
from beanlite.core.memory import BODY_BYTES, JOB_BYTES, NO_BOUND
from beanlite.protocol.blocked import FETCHING, LOOKING, WORKING, YIELDING
from tests.support.core import Core, put
from tests.support.operators import Operator


class FetchingCore(Core):
    """Sessions on an engine with bounded memory. Nothing is stored or fetched ahead until a test calls for it."""

    def __init__(self, max_job_size=65535, *, max_bytes=NO_BOUND, body_max_bytes=0):
        super().__init__(max_job_size)
        self.engine.bound_memory(max_bytes, body_max_bytes, fetches=True)
        self.shelf = {}
        """All bodies that were ever stored, by job id."""
        self.late = set()
        """Sessions that wait for a body until ``answer`` is called."""
        self.answers_late = lambda _session: False
        """Called with a session that needs a body: returns whether it has to wait for ``answer``."""

    def store(self):
        changes = self.engine.take_changes(deferred=True)
        for job in changes.jobs:
            if job.id >= changes.first_id:
                self.shelf[job.id] = job.body
        self.engine.stored(changes.batch, changes.last_id)
        return changes

    def go_on(self, session):
        while session not in self.late and session.blocked in {YIELDING, LOOKING, WORKING, FETCHING}:
            if session.blocked is not FETCHING:
                session.resume(self.now_ns)
            elif self.answers_late(session):
                self.late.add(session)
            else:
                self._hand_over(session)

    def answer(self, session):
        """Hand over the body that a session waits for; return whether it waited for one."""
        if session not in self.late:
            return False
        self.late.remove(session)
        self._hand_over(session)
        self.go_on(session)
        self._wake()
        return True

    def _hand_over(self, session):
        for job in session.gathering.jobs:
            # The body may have been fetched ahead meanwhile, and the job may even have been deleted.
            assert job.body is None or job.id in self.engine.bodies.ahead or job.state is GONE
            self.engine.bodies.note_miss(job)
            session.bring(job, self.shelf[job.id])
        session.resume(self.now_ns)

    def fetch_ahead(self):
        """Fetch all bodies that are due to be fetched ahead; return their jobs."""
        jobs = self.engine.bodies.take_due()
        for job in jobs:
            assert job.state is READY
            assert job.body is None
        assert len(set(jobs)) == len(jobs)
        for job in jobs:
            self.engine.bodies.load(job, self.shelf[job.id])
        return jobs

    def compare_counts(self):
        """Compare the counts, which are updated with each change, with a recount."""
        engine = self.engine
        memory, bodies, admission = engine.memory, engine.bodies, engine.admission
        jobs = [engine.jobs[job_id] for _, part in engine.jobs.segments() for job_id in part]
        loaded = [job for job in jobs if job.body is not None]
        unloaded = [job for job in jobs if job.body is None]
        untaken_bytes = admission.used_bytes - (engine.last_id - engine.ledger.taken_id) * JOB_BYTES
        assert memory.body_bytes + untaken_bytes == sum(job.size + BODY_BYTES for job in loaded)
        assert (memory.unloaded, memory.unloaded_bytes) == (len(unloaded), sum(job.size for job in unloaded))
        assert all(job.id <= engine.ledger.stored_id for job in unloaded)
        ahead = list(bodies.ahead.values())
        assert set(ahead) <= set(loaded)
        assert bodies.ahead_bytes == sum(job.size + BODY_BYTES for job in ahead)
        assert bodies._ahead_counts == Counter(job.tube for job in ahead)


def unloaded_core(bodies):
    """Return a core with these jobs, none of whose bodies is in memory, and an operator."""
    core = FetchingCore()
    operator = Operator(core)
    producer = core.client()
    for body in bodies:
        put(core, producer, body)
    core.store()
    core.store()
    assert core.engine.memory.unloaded == len(bodies)
    return core, operator
