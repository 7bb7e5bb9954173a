"""The operators' commands that change many jobs, or pause a tube. ``docs/protocol.md`` describes them."""

from beanlite.core.access import OPERATOR
from beanlite.core.clients import Refusal
from beanlite.core.engine import Engine
from beanlite.core.events import BURY, COPY, DELAY, DELETE, KICK, MOVE, NOTE, RELEASE
from beanlite.core.job import Job
from beanlite.core.ledger import BYTES_AT_ONCE
from beanlite.core.operator import concerns
from beanlite.core.operator_find import Filter, Matches, find
from beanlite.core.tube import Tube
from beanlite.protocol import replies
from beanlite.protocol.batches import OUT_OF_MEMORY, acting_in, on_behalf_of, refusal_of_puts
from beanlite.protocol.blocked import WORKING
from beanlite.protocol.operators.lists import filter_of, looked, place_of, still_fits
from beanlite.protocol.operators.replies import Record, as_json, cursor
from beanlite.protocol.operators.requests import CHANGED_MAX, ChangeJobs, SetPause
from beanlite.protocol.ruled_puts import Bodies, has_room, repeat
from beanlite.protocol.session import Session


def change_jobs(session: Session, request: ChangeJobs, now_ns: int) -> bytes | None:
    engine = session.engine
    conditions = filter_of(session, OPERATOR, request, now_ns)
    copies = request.do == COPY and not request.dry_run
    matches = find(engine, conditions, place_of(request), request.limit or CHANGED_MAX, need_bodies=copies)
    change = Change(session, request, conditions, matches)
    if matches.missing:
        session.gather(matches.missing, change.carry_out, WORKING)
        return None
    return change.carry_out({}, now_ns)


def set_pause(session: Session, request: SetPause, now_ns: int) -> bytes:
    by = on_behalf_of(request.by, session)
    if not session.engine.pause(by, request.tube, request.pause_s, now_ns, by_operator=True):
        return replies.NOT_FOUND
    session.waits = True
    return session.ok_reply(as_json({}))


class Change:
    """A change to the jobs that a slice has found."""

    __slots__ = (
        "_by",
        "_changed_ids",
        "_conditions",
        "_engine",
        "_last_id",
        "_matches",
        "_refusal",
        "_request",
        "_session",
        "_skipped_ids",
        "_to",
    )

    def __init__(self, session: Session, request: ChangeJobs, conditions: Filter, matches: Matches) -> None:
        self._session = session
        self._engine: Engine = session.engine
        self._request = request
        self._conditions = conditions
        self._by = on_behalf_of(request.by, session)
        self._matches = matches
        self._last_id = session.engine.last_id
        self._changed_ids: list[int] = []
        """The ids of the jobs that were changed, or would be."""
        self._skipped_ids: list[int] = []
        """The ids of those that were skipped."""
        self._to: Tube | None = None
        """The tube to move or copy to, once a job needs it."""
        self._refusal: str | None = None
        """Why the rest was left undone: the word with which a put or a note is refused."""

    def carry_out(self, late_bodies: dict[Job, bytes | None], now_ns: int) -> bytes | None:
        """Make the change, and return the reply. ``late_bodies``: those that were not in memory.

        It returns None if copies may repeat jobs whose bodies are not in memory either; then those are fetched first.
        """
        session, matches = self._session, self._matches
        twins = [self._twin(job, late_bodies, now_ns)[1] for job in matches.jobs]
        unknown = list(dict.fromkeys(twin for twin in twins if twin is not None))
        if unknown:
            session.gather(unknown, lambda found, then_ns: self.carry_out({**late_bodies, **found}, then_ns), WORKING)
            return None
        next_place, place = matches.next, max(0, place_of(self._request))
        for job in matches.jobs:
            if late_bodies and not still_fits(self._conditions, job, late_bodies):
                continue
            twin, _ = self._twin(job, late_bodies, now_ns)
            if twin is not None:
                repeat(session, twin)
            if twin is not None or not self._concerns(job):
                self._skipped_ids.append(job.id)
            elif self._request.dry_run or self._change(job, self._body(job, late_bodies), now_ns):
                self._changed_ids.append(job.id)
            else:
                next_place = place
                break
            place = job.id
        if self._changed_ids and not self._request.dry_run:
            session.waits = True
        reply: Record = {
            "done": len(self._changed_ids),
            "skipped": len(self._skipped_ids),
            "left": self._skipped_ids,
            "next": cursor(next_place, self._conditions.up_to_id),
            "looked": looked(session, matches),
            "last_id": self._last_id,
        }
        if self._request.ids is not None:
            reply["changed"] = self._changed_ids
        if self._refusal is not None:
            reply["stopped"] = self._refusal
        return session.ok_reply(as_json(reply))

    def _concerns(self, job: Job) -> bool:
        """Whether the change can apply to this job."""
        request = self._request
        return concerns(request.do, job) and not (request.do == MOVE and job.tube.name == request.to)

    def _body(self, job: Job, late_bodies: Bodies) -> bytes | None:
        return late_bodies.get(job, self._matches.bodies.get(job))

    def _twin(self, job: Job, late_bodies: Bodies, now_ns: int) -> tuple[Job | None, Job | None]:
        """Return the job that a copy of this one would repeat, as ``Rulings.twin`` does."""
        request, engine = self._request, self._engine
        if request.do != COPY or request.dry_run or request.to is None:
            return None, None
        tube, body = engine.tubes.get(request.to), self._body(job, late_bodies)
        if tube is None or body is None:
            return None, None
        return engine.rulings.twin(tube, body, late_bodies, now_ns)

    def _change(self, job: Job, body: bytes | None, now_ns: int) -> bool:
        """Change one job; returns False if that can't be done now."""
        request, engine = self._request, self._engine
        do, operator, by = request.do, engine.operator, self._by
        pri = job.pri if request.pri is None else request.pri
        delay_s = request.delay_s or 0
        if do == COPY:
            return body is not None and self._copy(body, pri, delay_s, job.ttr_s, now_ns)
        if do == MOVE:
            tube = self._tube()
            if tube is None:
                return False
            operator.move(job, tube, by, now_ns)
        elif do == DELETE:
            return self._delete(job, now_ns)
        elif do == KICK:
            operator.kick(job, by, now_ns)
        elif do == BURY:
            operator.bury(job, pri, by, now_ns)
        elif do == RELEASE:
            operator.release(job, pri, delay_s, by, now_ns)
        elif do == DELAY:
            operator.delay(job, delay_s, by, now_ns)
        elif do == NOTE:
            return self._note(job, request.note or b"", now_ns)
        else:
            operator.reprioritise(job, pri, by, now_ns)
        return True

    def _delete(self, job: Job, now_ns: int) -> bool:
        """Delete a job, unless the slice has deleted enough; returns whether that was done."""
        if self._changed_ids and self._engine.ledger.event_bytes >= BYTES_AT_ONCE:
            return False
        self._engine.delete(acting_in(job.tube, self._by), job.id, now_ns, by_operator=True)
        return True

    def _note(self, job: Job, text: bytes, now_ns: int) -> bool:
        """Give a job a note, if there is room; returns whether that was done."""
        notes = self._engine.notes
        if not notes.has_room(job, text):
            self._refusal = OUT_OF_MEMORY
            return False
        notes.set(job, text, self._by, now_ns, by_operator=True)
        return True

    def _copy(self, body: bytes, pri: int, delay_s: int, ttr_s: int, now_ns: int) -> bool:
        """Put a copy, if puts are accepted; returns whether that was done."""
        engine, by = self._engine, self._by
        self._refusal = refusal_of_puts(engine, len(body))
        to = self._request.to
        if self._refusal is None and to is not None and not has_room(engine, to, 1, self._session.service.refused):
            self._refusal = OUT_OF_MEMORY
        tube = None if self._refusal else self._tube()
        if tube is None:
            return False
        copy = engine.put(acting_in(tube, by), pri, delay_s, ttr_s, body, now_ns, by_operator=True)
        engine.operator.record_copy(copy, by, now_ns)
        return True

    def _tube(self) -> Tube | None:
        """Return the tube to move or copy to, or None if there are too many tubes."""
        to = self._request.to
        if self._to is None and to is not None:
            tube = self._engine.clients.tube(to)
            if isinstance(tube, Refusal):
                self._session.service.refused(tube.value)
                self._refusal = OUT_OF_MEMORY
            else:
                self._to = tube
        return self._to
