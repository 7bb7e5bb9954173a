"""A core whose totals are taken once a second, as in a server, so that it can be diagnosed."""

from beanlite.core.diagnosis import Diagnosis
from tests.support.core import Core, put


class Diagnosed(Core):
    """Time passes in ``live``, second by second."""

    def live(self, seconds, *, each=lambda: None):
        """Let time pass; ``each`` is called in every second."""
        for _ in range(seconds):
            each()
            self.wait(1)
            self.engine.take_changes(deferred=True, totals=True, now_ns=self.now_ns)

    def findings(self, **what):
        """Return the findings by kind."""
        diagnosis = Diagnosis(self.engine, self.now_ns)
        tubes = list(self.engine.tubes.values())
        at = 0
        while at < len(tubes):
            at = diagnosis.look(tubes, at, self.now_ns)
        return {finding.kind: finding for finding in diagnosis.findings(**what)}

    def producer(self, tube=b"mail"):
        client = self.client()
        self.send(client, b"use %b\r\n" % tube)
        return client

    def worker(self, tube=b"mail"):
        client = self.client()
        self.send(client, b"watch %b\r\nignore default\r\n" % tube)
        return client

    def fill(self, tube, jobs, **how):
        """Put jobs into a tube, and return the ids."""
        producer = self.producer(tube)
        ids = [put(self, producer, **how) for _ in range(jobs)]
        self.close(producer)
        return ids

    def work(self, worker, jobs=1, do=b"delete %d"):
        """Have a worker reserve jobs and end each at once."""
        for _ in range(jobs):
            reply = self.send(worker, b"reserve-with-timeout 0\r\n")
            if reply.startswith(b"RESERVED"):
                self.send(worker, do % int(reply.split()[1]) + b"\r\n")
