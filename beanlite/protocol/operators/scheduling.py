"""Operators' commands for schedules. ``docs/protocol.md`` describes them and their replies."""

from typing import Final

from beanlite.core.access import OPERATOR, READER
from beanlite.core.recurrence import UTC_ZONE, next_after
from beanlite.core.scheduler import BODY_MAX, SCHEDULES_MAX
from beanlite.core.schedules import ONCE, SKIP, Schedule
from beanlite.journal.lines import body_of
from beanlite.protocol import replies
from beanlite.protocol.batches import TTR_S, on_behalf_of, refusal_of_puts
from beanlite.protocol.operators.replies import Record, as_json
from beanlite.protocol.operators.requests import ListSchedules, OneSchedule, Refused, SetSchedule
from beanlite.protocol.session import Session

# A slice of a list ends with the schedule that brings it to so many records, or bytes of bodies.
LISTED_MAX: Final = 100
LISTED_BYTES: Final = 1 << 18


def set_schedule(session: Session, request: SetSchedule, now_ns: int) -> bytes:
    scheduler, by = session.engine.scheduler, on_behalf_of(request.by, session)
    body = request.body or request.base64 or b""
    most_bytes = min(BODY_MAX, session.service.max_job_size)
    if len(body) > most_bytes:
        raise Refused(f"the body of a schedule's job has at most {most_bytes} bytes")
    if request.name not in scheduler.schedules and len(scheduler.schedules) >= SCHEDULES_MAX:
        raise Refused(f"there are {SCHEDULES_MAX} schedules already")
    now_s = session.service.utc_s(now_ns)
    zone = UTC_ZONE if request.zone is None else request.zone
    try:
        next_at = next_after(request.when, zone, now_s)
    except ValueError as why:
        raise Refused(str(why)) from None
    if len(body) > session.engine.admission.room_bytes:  # what is left on a full disk is for working jobs off
        session.engine.admission.lack_room()
        return replies.OUT_OF_MEMORY
    schedule = Schedule(
        request.name,
        request.when,
        zone,
        request.tube,
        body,
        request.pri or 0,
        TTR_S if request.ttr_s is None else max(1, request.ttr_s),
        if_absent=request.if_absent is not False,
        once_if_missed=request.missed == ONCE,
        next_at=next_at,
        changed_at=now_s,
        changed_by=by.person or by.address,
    )
    scheduler.set(schedule, by, as_json(_settings(schedule)), now_ns)
    session.waits = True
    return session.ok_reply(as_json({"next_at": schedule.next_at}))


def unset_schedule(session: Session, request: OneSchedule, now_ns: int) -> bytes:
    schedule = _find(session, request.name)
    by = on_behalf_of(request.by, session)
    session.engine.scheduler.unset(schedule, by, as_json({"name": schedule.name, "when": None}), now_ns)
    session.waits = True
    return session.ok_reply(as_json({}))


def run_schedule(session: Session, request: OneSchedule, now_ns: int) -> bytes:
    engine = session.engine
    schedule = _find(session, request.name)
    refusal = refusal_of_puts(engine, len(schedule.body))
    if refusal is not None:
        return refusal.encode() + replies.END
    job = engine.scheduler.run(schedule, on_behalf_of(request.by, session).person, now_ns)
    if job is None:
        return replies.OUT_OF_MEMORY
    session.waits = True
    return session.ok_reply(as_json({"id": job.id}))


def list_schedules(session: Session, request: ListSchedules, _now_ns: int) -> bytes:
    schedules, rights = session.engine.schedules, session.rights
    if request.name is not None:
        names = [request.name] if request.name in schedules else []
    else:
        names = sorted(name for name in schedules if request.after is None or name > request.after)
    if rights is not None:
        names = [name for name in names if rights.may(READER, schedules[name].tube)]
    records: list[Record] = []
    size = 0
    for name in names:
        schedule = schedules[name]
        records.append({**_record(schedule), "error": session.engine.scheduler.errors.get(name)})
        size += len(schedule.body)
        if len(records) == LISTED_MAX or size > LISTED_BYTES:
            break
    after = names[len(records) - 1] if len(records) < len(names) else None
    return session.ok_reply(as_json({"schedules": records, "next": after}))


def _find(session: Session, name: str) -> Schedule:
    schedule, rights = session.engine.schedules.get(name), session.rights
    if schedule is None or not (rights is None or rights.may(OPERATOR, schedule.tube)):
        raise Refused(f"there is no schedule {name}")
    return schedule


def _settings(schedule: Schedule) -> Record:
    """Describe what was set, with the keys of ``set-schedule``."""
    return {
        "name": schedule.name,
        "when": schedule.when,
        "zone": schedule.zone,
        "tube": schedule.tube.decode(),
        **body_of(schedule.body),
        "pri": schedule.pri,
        "ttr_s": schedule.ttr_s,
        "if_absent": schedule.if_absent,
        "missed": ONCE if schedule.once_if_missed else SKIP,
    }


def _record(schedule: Schedule) -> Record:
    return {
        **_settings(schedule),
        "next_at": schedule.next_at,
        "last_at": schedule.last_at,
        "last_job": schedule.last_job,
        "changed_at": schedule.changed_at,
        "changed_by": schedule.changed_by,
    }
