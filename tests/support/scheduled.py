"""A core with schedules, on a machine whose clock can be set."""

from beanlite.core.engine import Engine
from beanlite.core.job import GONE, SECOND_NS
from beanlite.core.recurrence import next_after
from beanlite.core.schedules import Schedule
from beanlite.core.tube import Peer
from beanlite.host.clock import utc_s
from tests.support.core import Core, stored_job
from tests.support.operators import all_jobs
from tests.support.policies import facts

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


class Machine:
    """A core on a machine whose clock can be set, with what its batches have stored."""

    def __init__(self):
        self.core = Core()
        self.set_by_s = 0.0
        self.jobs = {}
        self.schedules = {}
        self.start(Engine())

    def start(self, engine):
        self.core.start(engine, 65535)
        engine.scheduler.utc_s = self.utc_s

    def utc_s(self, clock_ns):
        return utc_s(clock_ns) + self.set_by_s

    @property
    def now_s(self):
        return self.utc_s(self.core.now_ns)

    def set(self, when, name="nightly", next_at=None, *, if_absent=False, once=False, tube=b"reports", body=b"report"):
        """Set a schedule; returns it."""
        if next_at is None:
            next_at = next_after(when, "UTC", self.now_s)
        facts = {"next_at": next_at, "changed_at": self.now_s, "changed_by": "ann"}
        schedule = Schedule(name, when, "UTC", tube, body, 5, 60, if_absent=if_absent, once_if_missed=once, **facts)
        self.core.engine.scheduler.set(schedule, Peer("unix", 1, "ann"), b"{}", self.core.now_ns)
        self.core.wait(0)
        return schedule

    def puts(self):
        """When each job was put that is there, in order, as UTC by the clock as it is now."""
        return [self.utc_s(job.created_ns) for job in all_jobs(self.core.engine)]

    def delete_all(self):
        client = self.core.client()
        for job in all_jobs(self.core.engine):
            self.core.send(client, b"delete %d\r\n" % job.id)
        self.core.close(client)

    def store(self):
        changes = self.core.store()
        for job in changes.jobs:
            if job.state is GONE:
                del self.jobs[job.id]
            else:
                self.jobs[job.id] = (job.tube.name, job.created_ns, job.body)
        for name, schedule in changes.schedules:
            self.schedules[name] = Schedule(**facts(schedule))
        self.last_id = changes.last_id

    def kill(self, down_s=0):
        """End the server without a batch, and start the next one from what is stored."""
        self.core.now_ns += round(down_s * SECOND_NS)
        engine = Engine()
        rows = [
            stored_job(job_id, created_ns, tube=tube, body=body)
            for job_id, (tube, created_ns, body) in sorted(self.jobs.items())
        ]
        engine.restore(rows, self.core.now_ns)
        engine.recovered(self.last_id, 0)
        for schedule in self.schedules.values():
            if schedule is not None:
                engine.restore_schedule(Schedule(**facts(schedule)))
        self.start(engine)
        self.core.wait(0)


def minutes(first_s, last_s):
    """Return the full minutes from the first time to the last one."""
    return list(range(-(-int(first_s) // MINUTE_S) * MINUTE_S, int(last_s) + 1, MINUTE_S))
