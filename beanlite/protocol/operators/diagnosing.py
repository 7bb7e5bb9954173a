"""The operators' command that tells what is wrong. ``docs/protocol.md`` describes it and its reply."""

from collections.abc import Callable
from typing import Final

from beanlite.core.access import READER
from beanlite.core.diagnosis import Diagnosis, empty_in_s, rates
from beanlite.core.findings import Finding
from beanlite.core.job import ID_MASK, SECOND_NS, SLICE, Job
from beanlite.core.like import Like, tubes_at_once
from beanlite.core.snapshot import HOLDS_MAX
from beanlite.core.tube import Client, Tube
from beanlite.protocol.blocked import LOOKING
from beanlite.protocol.operators.lists import CLIENT_FACTS_MAX, permits_for
from beanlite.protocol.operators.replies import Record, as_json, peer_record, tube_record
from beanlite.protocol.operators.requests import Diagnose
from beanlite.protocol.session import Session
from beanlite.protocol.stats import has_failed_backup

# How many jobs that crash their clients are named of a tube.
CRASHES_TOLD: Final = 10


def diagnose(session: Session, request: Diagnose, now_ns: int) -> bytes | None:
    """Tell what is wrong, once all tubes have been examined."""
    return Examination(session, request, now_ns).go_on(session, now_ns)


class Examination:
    """A diagnosis for a client, slice by slice, and what is known of the tube if it asks for one."""

    __slots__ = (
        "_clients",
        "_diagnosis",
        "_engine",
        "_holders",
        "_like",
        "_named",
        "_oldest",
        "_place",
        "_tube",
        "_tubes",
    )

    def __init__(self, session: Session, request: Diagnose, now_ns: int) -> None:
        engine = session.engine
        self._engine = engine
        self._like = None if request.like is None else Like(request.like)
        self._diagnosis = Diagnosis(engine, now_ns, fits=_fits(session, request, self._like))
        self._named = request.tube is not None
        """The client asks for one tube."""
        self._tube: Tube | None = None
        """That tube; None also if there is none of that name."""
        self._tubes: list[Tube] = []
        self._place = 0
        self._clients: list[Client] = []
        """Those that are still to be asked for jobs of the tube."""
        self._holders = 0
        """Clients that have jobs of the tube reserved."""
        self._oldest: Job | None = None
        """The job of the tube that has been reserved for longest."""
        if request.tube is None:
            self._tubes = engine.tubes_in_order()
        elif request.tube in engine.tubes:
            self._tube = engine.tubes[request.tube]
            self._tubes = [self._tube]
            self._clients = list(engine.clients.connected.values()) if self._tube.reserved else []

    def go_on(self, session: Session, now_ns: int) -> bytes | None:
        """Do a slice; returns the reply, or None if there is more to do, which is set aside."""
        if self._place < len(self._tubes):
            tubes = tubes_at_once(self._tubes, self._place, SLICE, self._like)
            self._place += self._diagnosis.look(tubes, 0, now_ns)
        else:
            self._look_for_holders()
        if self._place < len(self._tubes) or self._clients:
            session.set_aside(_go_on, self, LOOKING)
            return None
        findings = self._diagnosis.findings(backup_failed=has_failed_backup(session.service.facts()))
        reply: Record = {
            "findings": [finding_record(finding) for finding in findings],
            "tubes": self._diagnosis.looked,
            "jobs": self._diagnosis.jobs,
        }
        if self._named:
            reply["tube"] = None if self._tube is None else self._facts(self._tube, session.client, now_ns)
        return session.ok_reply(as_json(reply))

    def _look_for_holders(self) -> None:
        """Look in a slice of the clients for the jobs of the tube that they have reserved."""
        looks = 0
        while self._clients and looks < CLIENT_FACTS_MAX:
            client = self._clients.pop()
            holds = False
            looks += 1
            for key in client.deadlines.keys[:HOLDS_MAX]:
                looks += 1
                job = self._engine.jobs.find(key & ID_MASK)
                if job is None or job.tube is not self._tube or job.holder is not client:
                    continue
                holds = True
                if self._oldest is None or job.since_ns < self._oldest.since_ns:
                    self._oldest = job
            self._holders += holds

    def _facts(self, tube: Tube, asker: Client, now_ns: int) -> Record:
        """Describe the tube, what happens in it, and who has its jobs."""
        pulses = self._engine.ledger.pulses
        pulse = pulses.find(tube)
        paces = None if pulse is None else rates(tube, pulse, now_ns)
        job = self._oldest
        crashes: list[Record] = []
        for job_id, crash in pulses.crashes.items():
            lost = self._engine.jobs.find(job_id)
            losses = crash.losses(lost, now_ns)
            if losses and lost is not None and lost.tube is tube:
                ago_s = (now_ns - crash.at_ns) // SECOND_NS
                crashes.append({"id": job_id, "losses": losses, "last_s": ago_s, "by": peer_record(crash.peer)})
        return {
            **tube_record(self._engine, tube, asker, now_ns),
            "coming_per_s": None if paces is None else round(paces.coming, 3),
            "deleted_per_s": None if paces is None else round(paces.deleted, 3),
            "empty_in_s": None if paces is None else empty_in_s(tube, paces),
            "hold_s": None if pulse is None or pulse.hold_ns < 0 else round(pulse.hold_ns / SECOND_NS, 3),
            "moved_s": (now_ns - tube.moved_ns) // SECOND_NS if tube.moved_ns else None,
            "holders": self._holders,
            "oldest_hold": None if job is None or job.holder is None else _hold_record(job, now_ns),
            "crashes": crashes[-CRASHES_TOLD:],
        }


def _hold_record(job: Job, now_ns: int) -> Record:
    seconds = (now_ns - job.since_ns) // SECOND_NS
    return {"id": job.id, "seconds": seconds, "holder": peer_record(job.last_holder)}


def _go_on(session: Session, examination: Examination, now_ns: int) -> bytes | None:
    return examination.go_on(session, now_ns)


def _fits(session: Session, request: Diagnose, like: Like | None) -> Callable[[bytes], bool] | None:
    """Return what says whether a tube is one that the client asks for, and may look at; None if all are."""
    allowed = permits_for(session, READER)
    if request.tube is not None:
        return lambda name: name == request.tube
    if like is None:
        return allowed
    return lambda name: like.fits(name) and (allowed is None or allowed(name))


def finding_record(finding: Finding) -> Record:
    """Describe a finding."""
    return {**finding._asdict(), "worst": [place._asdict() for place in finding.worst]}
