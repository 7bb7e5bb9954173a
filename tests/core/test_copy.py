"""A copy of all jobs, as it is given to the engine."""

from itertools import pairwise

from beanlite.core.copy import Copy
from beanlite.core.engine import Engine
from beanlite.core.memory import NOTE_BYTES
from tests.support.core import Core, put
from tests.support.ruled_sessions import stored

JOBS = 12_000
AT_ONCE = 5_000


def test_notes_of_a_copy_are_given_some_thousand_at_a_time():
    core = Core()
    client = core.client()
    for _ in range(JOBS):
        put(core, client)
    engine = Engine()
    copy = Copy(engine.memory)
    copy.add([stored(core.engine.jobs[job_id]) for job_id in range(1, JOBS + 1)], 0)
    for job_id in range(1, JOBS + 1):
        copy.note(job_id, b"why")
    engine.take_copy(copy)
    given, goes_on = [engine.memory.note_bytes], True
    while goes_on:
        goes_on = copy.enter(0)
        given.append(engine.memory.note_bytes)
    steps = [(after - before) // (NOTE_BYTES + len(b"why")) for before, after in pairwise(given)]
    assert (given[0], sum(steps), max(steps)) == (0, JOBS, AT_ONCE)
    assert engine.notes.text(engine.jobs[JOBS]) == b"why"
    assert engine.notes.stray_id() is None
