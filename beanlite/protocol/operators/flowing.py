"""The operators' command that tells what came and went over time. ``docs/protocol.md`` describes it and its reply."""

from typing import Final

from beanlite.core.access import READER
from beanlite.core.flows import RANGES, KeptFlow, Series, series_of
from beanlite.core.job import ID_BITS, ID_MASK, SECOND_NS
from beanlite.core.tube import Tube
from beanlite.protocol.blocked import LOOKING
from beanlite.protocol.operators.lists import permits_for
from beanlite.protocol.operators.replies import Record, as_json
from beanlite.protocol.operators.requests import ShowFlow
from beanlite.protocol.session import Session

# Into how many parts the time is divided in which delayed jobs are looked for that become ready, a fifth of the range.
DUE_PARTS: Final = 12
DUE_SHARE: Final = 5
# With so many looks the delayed jobs of a tube are counted, or else they are estimated.
DUE_LOOKS: Final = 2000
# A slice ends when so many tubes and delayed jobs have been looked at.
SLICE: Final = 3000


def show_flow(session: Session, request: ShowFlow, now_ns: int) -> bytes | None:
    """Tell what came and went, once all delayed jobs that are due soon have been counted."""
    return FlowLook(session, request, now_ns).go_on(session, now_ns)


class FlowLook:
    """A look at a flow for a client, slice by slice."""

    __slots__ = ("_bounds", "_due", "_name", "_permits", "_place", "_range", "_tube", "_tubes")

    def __init__(self, session: Session, request: ShowFlow, now_ns: int) -> None:
        engine = session.engine
        step_s, most = RANGES[request.range]
        part_ns = step_s * most * SECOND_NS // (DUE_SHARE * DUE_PARTS)
        self._bounds = [now_ns + part * part_ns << ID_BITS | ID_MASK for part in range(1, DUE_PARTS + 1)]
        self._due = [0] * DUE_PARTS
        self._range = request.range
        self._name = request.tube
        self._tube = None if request.tube is None else engine.tubes.get(request.tube)
        self._permits = permits_for(session, READER)
        self._tubes: list[Tube] = []
        self._place = 0
        if self._tube is not None:
            self._tubes = [self._tube]
        elif request.tube is None and engine.counts.delayed:
            self._tubes = engine.tubes_in_order()

    def go_on(self, session: Session, now_ns: int) -> bytes | None:
        """Do a slice; returns the reply, or None if there is more to do, which is set aside."""
        tubes, cost = self._tubes, 0
        while self._place < len(tubes) and cost < SLICE:
            cost += self._count(tubes[self._place])
            self._place += 1
        if self._place < len(tubes):
            session.set_aside(_go_on, self, LOOKING)
            return None
        return session.ok_reply(as_json(self._record(session, now_ns)))

    def _count(self, tube: Tube) -> int:
        """Count the delayed jobs of a tube that are due soon; returns the cost."""
        if tube.timer_ns << ID_BITS > self._bounds[-1]:  # which is set for the first delayed job, or earlier
            return 1
        keys = tube.delayed.keys
        if not keys or keys[0] > self._bounds[-1]:
            return 1
        if self._permits is not None and not self._permits(tube.name):
            return 1
        return 1 + tube.delayed.add_between(self._bounds, self._due, DUE_LOOKS)

    def _record(self, session: Session, now_ns: int) -> Record:
        engine, flows = session.engine, session.engine.ledger.flows
        since_ns = flows.since_ns
        flow: KeptFlow | None = flows.total
        is_kept = True
        ready = engine.ready
        if self._name is not None:
            flow = flows.find(self._name)
            ready = 0 if self._tube is None else len(self._tube.ready)
            if flows.lost:  # it may have had another flow, which was dropped
                is_kept = flow is not None
                since_ns = now_ns if flow is None else max(since_ns, flow.made_ns)
        put, reserved, deleted = (0.0, 0.0, 0.0) if flow is None else flow.rates(now_ns)
        series = series_of(flow, self._range, ready, since_ns, now_ns)
        if self._name is None and self._permits is not None:  # it may know the counts, which ``stats`` has, but no more
            unknown: list[float | None] = [None] * len(series.put)
            series = series._replace(wait_p50_s=unknown, wait_p99_s=unknown)
        return {
            "since_at": round(session.service.utc_s(since_ns), 3),
            "kept": is_kept,
            **_columns(series, session),
            "puts_per_s": round(put, 3),
            "reserves_per_s": round(reserved, 3),
            "deletes_per_s": round(deleted, 3),
            "due": self._due,
            "due_step_s": series.step_s * RANGES[self._range][1] // (DUE_SHARE * DUE_PARTS),
        }


def _columns(series: Series, session: Session) -> Record:
    """Describe a series."""
    record: Record = {"from_at": round(session.service.utc_s(series.from_ns), 3), "step_s": series.step_s}
    record["seconds"] = [round(seconds, 3) for seconds in series.seconds]
    record["put"], record["reserved"], record["deleted"] = series.put, series.reserved, series.deleted
    record["delay_over"], record["ready"] = series.delay_over, series.ready
    for key, waits in (("wait_p50_s", series.wait_p50_s), ("wait_p99_s", series.wait_p99_s)):
        record[key] = [None if wait is None else round(wait, 6) for wait in waits]
    return record


def _go_on(session: Session, look: FlowLook, now_ns: int) -> bytes | None:
    return look.go_on(session, now_ns)
