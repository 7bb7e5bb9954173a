"""The core without a server: an engine whose time stands still until a test advances it."""

from beanlite.core.access import Rights
from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS
from beanlite.core.restore import StoredJob
from beanlite.host.clock import Clock, utc_s
from beanlite.journal.columns import DEFAULTS
from beanlite.protocol.blocked import LOOKING, WORKING, YIELDING
from beanlite.protocol.command_table import new_commands
from beanlite.protocol.framing import FramedSession
from beanlite.protocol.limited import limited_words
from beanlite.protocol.operators.commands import new_operator_commands
from beanlite.protocol.session import Service
from beanlite.protocol.stats import Facts

FACTS = Facts(1, "0", 0.0, 0.0, 0, "id", "host", "os", "x86", True, 0, 0, 0, 0, {"tubes": 0})


class Core:
    """Sessions on one engine. Time passes only in ``wait`` and ``jump``."""

    def __init__(self, max_job_size=65535):
        self.now_ns = 1_000_000 * SECOND_NS
        self.start(Engine(), max_job_size)

    def clock(self):
        """Return a server's clock that shows this time."""
        return Clock(lambda: self.now_ns, lambda: self.now_ns)

    def start(self, engine, max_job_size):
        """Serve from this engine, at first without clients."""
        self.engine = engine
        self.refused = []
        engine.scheduler.utc_s, engine.scheduler.refused = utc_s, self.refused.append
        self.watching = []
        self.service = Service(
            engine,
            max_job_size=max_job_size,
            facts=lambda: FACTS,
            commands=new_commands(),
            operator_commands=new_operator_commands(),
            refused=self.refused.append,
            buffered=lambda client: self.sessions[client].pending,
            watch=lambda *watched: self.watching.append(watched),
            utc_s=utc_s,
            journaled=True,
        )
        self.sessions = {}

    def client(self, *, operator=False):
        session = FramedSession(self.service, f"10.0.0.1:{len(self.sessions) + 1}")
        session.operator = operator
        self.sessions[session.client] = session
        return session

    def limited(self, *grants):
        """Return a client that may do only what these roles, each with a pattern, permit."""
        session = self.client(operator=True)
        self.limit(session, *grants)
        return session

    def limit(self, session, *grants):
        session.rights = Rights(grants)
        session.words = limited_words(self.service, session.rights)

    def send(self, session, data):
        """Send data, and return this client's immediate replies."""
        self.receive(session, data)
        self._wake()
        return session.take_replies()

    def receive(self, session, data):
        """Receive data; a session that yields goes on at once, as no other client could have its turn."""
        session.receive(data, self.now_ns)
        self.go_on(session)

    def go_on(self, session):
        while session.blocked in {YIELDING, LOOKING, WORKING}:
            session.resume(self.now_ns)

    def wait(self, seconds):
        """Let time pass as in a server, with a tick at every instant at which something is due."""
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        while self.engine.timers.next_ns <= end_ns:
            self.now_ns = max(self.now_ns, self.engine.timers.next_ns)
            self.engine.tick(self.now_ns)
            self._wake()
        self.now_ns = end_ns

    def jump(self, seconds):
        """Let time pass without ticks, as when the machine is suspended; then tick once."""
        self.now_ns += round(seconds * SECOND_NS)
        self.engine.tick(self.now_ns)
        self._wake()

    def close(self, session):
        self.sessions.pop(session.client)
        self.engine.clients.disconnect(session.client, self.now_ns)
        self._wake()

    def store(self):
        """Take the changes as a journal does, and report them stored."""
        changes = self.engine.take_changes(deferred=True)
        self.engine.stored(changes.batch, changes.last_id)
        return changes

    def _wake(self):
        while self.engine.clients.woken:
            for client, outcome in self.engine.clients.take_woken():
                session = self.sessions[client]
                session.wake(outcome)
                self.go_on(session)


def put(core, session, body=b"x", pri=0, delay_s=0, ttr_s=10):
    reply = core.send(session, b"put %d %d %d %d\r\n%b\r\n" % (pri, delay_s, ttr_s, len(body), body))
    assert reply.startswith(b"INSERTED ")
    return int(reply.split()[1])


def in_tube(core, session, tube, number, **what):
    """Put jobs into a tube, and return their ids."""
    core.send(session, b"use %b\r\n" % tube)
    return [put(core, session, **what) for _ in range(number)]


def offered(core, client, timeout_s=0):
    """Ask for an offer; return the id of the job, or the reply if there is none."""
    reply = core.send(client, b"offer %d\r\n" % timeout_s)
    return int(reply.split()[1]) if reply.startswith(b"OFFERED ") else reply


def stored_job(job_id, now_ns, **facts):
    """Return a job as a journal reads it: put at that time, and whatever else is told of it."""
    put_as = {"id": job_id, "tube": b"default", "pri": 0, "delay_s": 0, "ttr_s": 10, "body": b"x", "crc32": 0}
    values: dict = DEFAULTS | put_as | {"created_ns": now_ns, "since_ns": now_ns} | facts
    return StoredJob._make(values.get(field) for field in StoredJob._fields)
