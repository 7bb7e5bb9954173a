"""What operators and workers do to a core whose tubes have rules."""

import json

from beanlite.core.policies import PolicyRow


def policy(core, pattern=b"default", unset=(), **values):
    """Set a policy, as an operator does."""
    rows = [PolicyRow(pattern, key, str(value), 0.0, "ann") for key, value in values.items()]
    core.engine.set_policies(rows, [(pattern, key) for key in unset], core.now_ns)


def reserve(core, session, timeout_s=0):
    """Reserve a job; return its id, or None."""
    reply = core.send(session, b"reserve-with-timeout %d\r\n" % timeout_s)
    return int(reply.split()[1]) if reply.startswith(b"RESERVED") else None


def change(core, operator, body):
    """Give an operator's command that changes jobs; return the reply."""
    reply = core.send(operator, b"change-jobs %d\r\n%b\r\n" % (len(body), body))
    return json.loads(reply.partition(b"\r\n")[2])


def state(core, job_id=1):
    job = core.engine.jobs[job_id]
    return job.state.value, job.why


def fail(core, session, times=1, job_id=1):
    for _ in range(times):
        assert core.send(session, b"reserve-job %d\r\n" % job_id).startswith(b"RESERVED")
        assert core.send(session, b"release %d 0 0\r\n" % job_id) == b"RELEASED\r\n"
