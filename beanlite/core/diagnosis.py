"""The diagnosis: what is wrong with the server and its tubes, worst first, grouped by cause.

All surfaces tell the same: it is made here, of what the engine knows, in slices of tubes, and without a look at jobs
other than the first of a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from beanlite.core import findings
from beanlite.core.engine import Engine
from beanlite.core.findings import NOTE, URGENT, WARNING, Case, Finding, Group
from beanlite.core.job import ID_BITS, ID_MASK, READY, SECOND_NS
from beanlite.core.policies import KEYS, OFF
from beanlite.core.pulse import GROWN_NS, IDLE_NS, MINUTE_NS, Pulse
from beanlite.core.queues import DEFAULT_TUBE
from beanlite.core.rules import Rules
from beanlite.core.snapshot import first_s, shut_words
from beanlite.core.tube import PAUSED, Client, Tube

# How many tubes of each kind are named.
NAMED: Final = 5
# What a slice may cost: a tube without jobs costs 1, another one EXAMINED, and to count its storm STORM_COST.
SLICE: Final = 3000
EXAMINED: Final = 8
STORM_COST: Final = 500
# Where nothing moves for so many times as long as a job is reserved on average, workers hang.
HOLDS: Final = 3
# Clients that reconnect, as some do for each job, leave their tube for a moment.
AWAY_S: Final = 10
STILL_S: Final = 60
# What waits for this long is grave, or very late.
GRAVE_S: Final = 600
# So many names of watched tubes are looked at to find those whose clients are given jobs of other tubes.
WATCHED_MAX: Final = 10_000
# And at so many of the jobs that each of these has.
HELD_MAX: Final = 10
LATE_S: Final = 3600
# So many jobs that come due within this time, and so many times more than the tube works off, are a storm.
STORM_LEAST: Final = 1000
STORM_NS: Final = 5 * MINUTE_NS
STORM_TIMES: Final = 3
# Above this share of the memory there is a warning.
MEMORY_SHARE: Final = 0.9


class Diagnosis:
    """A diagnosis under way."""

    def __init__(
        self, engine: Engine, now_ns: int, *, fits: Callable[[bytes], bool] | None = None, named: int = NAMED
    ) -> None:
        """``fits``: whether a tube is to be examined; None: all are."""
        self._engine = engine
        self._pulses = engine.ledger.pulses
        self._now_ns = now_ns
        self._fits = fits
        self._named = named
        self._groups: dict[str, Group] = {}
        self._set_aside = _set_aside(engine)
        """The names of the tubes to which policies move jobs."""
        self._busy: dict[Tube, bool] | None = None
        """The tubes whose clients are kept busy by jobs of whatever tube, and whether that is certain; None: not known
        yet."""
        self.looked = 0
        """Tubes that were examined."""
        self._jobs = 0
        self._oldest_left_id = ID_MASK
        """The lowest id of the first jobs of tubes that nobody consumes, and whose jobs were not looked at."""

    def look(self, tubes: list[Tube], first: int, now_ns: int) -> int:
        """Examine a slice of the tubes from the ``first`` on; returns with which to go on."""
        self._now_ns = now_ns
        fits = self._fits
        cost = 0
        place = first
        while place < len(tubes) and cost < SLICE:
            tube = tubes[place]
            place += 1
            cost += 1
            if fits is not None and not fits(tube.name):
                continue
            self.looked += 1
            if tube.holds_jobs:
                if fits is not None:
                    self._jobs += tube.jobs
                cost += EXAMINED + self._examine(tube)
        return place

    @property
    def jobs(self) -> int:
        """Jobs in these, in whatever state."""
        return len(self._engine.jobs) if self._fits is None else self._jobs

    def findings(self, *, backup_failed: bool = False) -> list[Finding]:
        """Return what was found, the worst first, when all tubes have been examined."""
        self._find_crashes()
        self._look_at_oldest_left()
        everything = [group.finding() for group in self._groups.values()]
        everything += self._of_server(backup_failed=backup_failed)
        everything.sort(key=findings.order)
        return everything

    def _add(self, kind: str, case: Case) -> Case:
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = Group(kind, self._named)
        group.add(case)
        return case

    # -- tubes

    def _examine(self, tube: Tube) -> int:
        """Examine a tube that has jobs; returns the cost beyond EXAMINED."""
        pulse = self._pulses.find(tube)
        if pulse is not None and pulse.refused and self._now_ns - pulse.noted_ns <= IDLE_NS:
            refused = pulse.refused - pulse.older.refused
            if refused:
                seconds = (self._now_ns - pulse.older.at_ns) // SECOND_NS
                self._add(findings.REFUSED, Case(tube.name.decode(), WARNING, refused, seconds))
        if tube.ready.keys and not self._is_another_left(tube, pulse):
            self._examine_ready(tube, pulse)
        if tube.buried.keys:
            self._examine_buried(tube, pulse)
        # A tube with delayed jobs has its timer set for the first of them, or earlier: that is looked at without them.
        if tube.timer_ns > self._now_ns + STORM_NS or len(tube.delayed.keys) < STORM_LEAST:
            return 0
        return self._examine_delayed(tube, pulse)

    def _is_another_left(self, tube: Tube, pulse: Pulse | None) -> bool:
        """Count one more tube that nobody consumes if no job has to be looked at for that; returns whether it is one.

        To read from memory what is far apart takes most of the time, and a job is far from its tube. So only the first
        job of the worst tubes is looked at, and the oldest one of all others, once these are known.
        """
        if tube.watching or tube.shut or tube.tally is not None or tube.name in self._set_aside:
            return False
        group = self._groups.get(findings.NOBODY_CONSUMES)
        if group is None or not group.has_worse(len(tube.ready)):
            return False
        quiet_since_ns = tube.moved_ns if pulse is None else max(tube.moved_ns, pulse.noted_ns)
        if self._now_ns - quiet_since_ns < (AWAY_S + 1) * SECOND_NS:  # what is noted has happened within a second
            return False
        group.count(WARNING, len(tube.ready), 0)
        self._oldest_left_id = min(self._oldest_left_id, tube.ready.keys[0] & ID_MASK)
        return True

    def _look_at_oldest_left(self) -> None:
        """Tell for how long jobs have waited in the tubes that nobody consumes: the oldest one has for longest."""
        job = self._engine.jobs.find(self._oldest_left_id)
        if job is None or job.state is not READY:  # it has gone since
            return
        waits_s = (self._now_ns - job.since_ns) // SECOND_NS
        self._groups[findings.NOBODY_CONSUMES].see(self._severity_of_nobody(job.tube, waits_s), waits_s)

    def _examine_ready(self, tube: Tube, pulse: Pulse | None) -> None:
        """Find the one thing that keeps the ready jobs of a tube waiting."""
        waits_s = first_s(self._engine, tube.ready, self._now_ns) or 0
        kind, severity, seconds = self._cause(tube, pulse, waits_s)
        if not kind:
            return
        group = self._groups.get(kind)
        if group is not None and kind != findings.GROWING and group.has_worse(len(tube.ready)):
            group.count(severity, len(tube.ready), seconds)  # a case for each of very many tubes takes long
            return
        case = Case(tube.name.decode(), severity, len(tube.ready), seconds)
        case.reserved = tube.reserved
        case.watching = tube.watching
        if kind == findings.PAUSED:
            case.left_s = max(0, tube.pause_until_ns - self._now_ns) // SECOND_NS
        elif kind == findings.SHUT:
            case.why = " and ".join([word for word in shut_words(tube) if word != "paused"])
        elif pulse is not None:
            paces = rates(tube, pulse, self._now_ns)
            if paces is not None:
                case.coming, case.going = paces.coming, paces.deleted
                case.left_s = empty_in_s(tube, paces)
            if kind == findings.GROWING and case.left_s is not None and case.left_s < LATE_S:
                case.severity = NOTE
        self._add(kind, case)

    def _cause(self, tube: Tube, pulse: Pulse | None, waits_s: int) -> tuple[str, str, int]:
        """Return the kind, the severity and for how long it has been so; an empty kind if nothing is wrong."""
        if tube.shut & PAUSED:
            paused_s = tube.pause_s - max(0, tube.pause_until_ns - self._now_ns) // SECOND_NS
            return findings.PAUSED, WARNING if waits_s >= LATE_S else NOTE, paused_s
        if not tube.watching and tube.name in self._set_aside:
            return findings.SET_ASIDE if self._away_s(tube, waits_s) >= AWAY_S else "", NOTE, waits_s
        if not tube.watching:
            kind = findings.NOBODY_CONSUMES if self._away_s(tube, waits_s) >= AWAY_S else ""
            return kind, self._severity_of_nobody(tube, waits_s), waits_s
        if tube.shut:
            kind = findings.SHUT if shut_words(tube) and waits_s >= STILL_S else ""
            return kind, WARNING if waits_s >= GRAVE_S else NOTE, waits_s
        return self._cause_of_open(tube, pulse, waits_s)

    def _cause_of_open(self, tube: Tube, pulse: Pulse | None, waits_s: int) -> tuple[str, str, int]:
        """Return the same of a tube that is watched, and that nothing keeps shut."""
        still_s = 0 if tube.waiting else self._still_s(tube, pulse, waits_s)
        is_busy = self._is_passed_over(tube) if still_s and not tube.reserved else None
        if is_busy:
            still_s = 0
        if still_s and tube.name == DEFAULT_TUBE and not tube.reserved:  # which each client watches that connects
            return findings.NOBODY_CONSUMES, self._severity_of_nobody(tube, waits_s), waits_s
        if still_s:
            # The first of long jobs may be under way.
            is_known = (pulse is not None and pulse.hold_ns >= 0) if tube.reserved else is_busy is None
            return findings.HUNG, URGENT if is_known else WARNING, still_s
        if pulse is not None and _grows(pulse, self._now_ns):
            return findings.GROWING, WARNING, (self._now_ns - pulse.older.at_ns) // SECOND_NS
        return findings.LATE if waits_s >= LATE_S else "", WARNING, waits_s

    def _still_s(self, tube: Tube, pulse: Pulse | None, waits_s: int) -> int:
        """Return for how long nothing has moved in a tube with ready jobs, where that is too long; otherwise 0."""
        tally = tube.tally
        if tally is not None and tally.is_moved:
            return 0
        still_s = (self._now_ns - max(tube.moved_ns, tube.open_ns)) // SECOND_NS
        if pulse is None:
            still_s = 0 if tally is not None else min(still_s, waits_s)  # else jobs may have just been moved here
            return still_s if still_s >= STILL_S else 0
        if not pulse.had_ready:
            return 0
        return still_s if still_s >= max(STILL_S, HOLDS * pulse.hold_ns // SECOND_NS) else 0

    def _is_passed_over(self, tube: Tube) -> bool | None:
        """Whether clients that watch a tube are kept busy by other jobs; None: they are not.

        False: it may be, as it is not known how long the jobs take that they have.
        """
        busy = self._busy
        if busy is None:
            busy = self._busy = {}
            looks = 0
            for client in self._engine.clients.connected.values():
                looks += 1 + min(len(client.deadlines), HELD_MAX)
                is_certain = self._is_busy(client)
                if is_certain is not None:
                    looks += len(client.watched)
                    for watched in client.watched:
                        if is_certain or watched not in busy:
                            busy[watched] = is_certain
                if looks >= WATCHED_MAX:
                    break
        return busy.get(tube)

    def _is_busy(self, client: Client) -> bool | None:
        """Return the same of a client: one that has a job for many times as long as such jobs take may hang."""
        if self._now_ns - client.reserved_ns < STILL_S * SECOND_NS:
            return True
        is_certain: bool | None = None
        for key in client.deadlines.keys[:HELD_MAX]:
            job = self._engine.jobs.find(key & ID_MASK)
            if job is None or job.holder is not client:  # it has ended it, and a heap may keep a key for a while
                continue
            pulse = self._pulses.find(job.tube)
            hold_ns = job.tube.hold_ns if pulse is None else pulse.hold_ns
            if self._now_ns - job.since_ns < HOLDS * hold_ns:
                return True
            if hold_ns < 0:
                is_certain = False
        return is_certain

    def _away_s(self, tube: Tube, waits_s: int) -> int:
        """Return for how long the next job has waited and no job of the tube has moved."""
        return min(waits_s, (self._now_ns - tube.moved_ns) // SECOND_NS) if tube.moved_ns else waits_s

    def _severity_of_nobody(self, tube: Tube, waits_s: int) -> str:
        return URGENT if self._away_s(tube, waits_s) >= GRAVE_S else WARNING

    def _examine_buried(self, tube: Tube, pulse: Pulse | None) -> None:
        if pulse is not None and pulse.buries_more(self._now_ns):
            seconds = (self._now_ns - pulse.buries_ns) // SECOND_NS
            jobs = min(len(tube.buried), pulse.buried - pulse.spared)
            self._add(findings.BURIED, Case(tube.name.decode(), WARNING, jobs, seconds))
            return
        seconds = first_s(self._engine, tube.buried, self._now_ns) or 0
        self._add(findings.LEFT_BURIED, Case(tube.name.decode(), NOTE, len(tube.buried), seconds))

    def _examine_delayed(self, tube: Tube, pulse: Pulse | None) -> int:
        first_ns = tube.delayed.keys[0] >> ID_BITS
        if first_ns > self._now_ns + STORM_NS:
            return 0
        jobs = tube.delayed.about_up_to((self._now_ns + STORM_NS + 1) << ID_BITS, STORM_LEAST)
        paces = None if pulse is None else rates(tube, pulse, self._now_ns)
        going = 0.0 if paces is None else paces.deleted
        if jobs >= max(STORM_LEAST, going * (STORM_TIMES * STORM_NS // SECOND_NS)):
            case = Case(tube.name.decode(), WARNING, jobs, 0)
            case.left_s = max(0, first_ns - self._now_ns) // SECOND_NS
            self._add(findings.STORM_DUE, case)
        return STORM_COST

    # -- jobs and the server

    def _find_crashes(self) -> None:
        """Find the jobs that have been lost by clients again and again."""
        cases: dict[bytes, Case] = {}
        for job_id, crash in self._pulses.crashes.items():
            job = self._engine.jobs.find(job_id)
            losses = crash.losses(job, self._now_ns)
            if job is None or not losses:
                continue
            name = job.tube.name
            if self._fits is not None and not self._fits(name):
                continue
            case = cases.get(name)
            if case is None:
                case = cases[name] = Case(name.decode(), URGENT, 0, 0)
            case.jobs += 1
            if losses > case.losses:
                case.job_id, case.losses, case.client = job_id, losses, crash.peer.address
                case.seconds = (self._now_ns - crash.at_ns) // SECOND_NS
        for case in cases.values():
            self._add(findings.CRASH_LOOP, case)

    def _of_server(self, *, backup_failed: bool) -> list[Finding]:
        """Return what concerns the server as a whole."""
        admission, memory = self._engine.admission, self._engine.memory
        found: list[Finding] = []
        if admission.disk_full:
            found.append(findings.of_server(
                findings.DISK, URGENT, "the disk is full: puts are refused until there is room again",
                "make room on the disk of the database; deletes go on, unless it is PostgreSQL",
            ))  # fmt: skip
        most = memory.max_bytes
        needed = most - memory.free_bytes  # bodies that can leave memory are not counted
        if needed > MEMORY_SHARE * most:
            full = memory.room_bytes < 0
            found.append(findings.of_server(
                findings.MEMORY, URGENT if full else WARNING,
                f"{needed * 100 // most} % of the memory that may be used is needed; puts are refused "
                + ("until there is room again" if full else "when all of it is"),
                "have jobs worked off, or raise max_memory", "beanlite tubes --sort ready",
            ))  # fmt: skip
        if admission.draining:
            found.append(findings.of_server(
                findings.DRAINING, WARNING, "the server is draining: puts are refused until it is restarted",
                "restart it when its jobs are worked off",
            ))  # fmt: skip
        if backup_failed:
            found.append(findings.of_server(
                findings.BACKUP, WARNING, "the last scheduled backup failed; the log of the server says why",
                "mend that, and make one by hand meanwhile", "beanlite backup DEST",
            ))  # fmt: skip
        return found


def _set_aside(engine: Engine) -> set[bytes]:
    """Return the names of the tubes to which policies move jobs: nobody need consume these."""
    rules = Rules()
    names: set[bytes] = set()
    for row in engine.policies.rows.values():
        if row.key in {"then", "expired"} and row.value != OFF:
            KEYS[row.key](rules, row.value)
            names |= {name for name in (rules.then_to, rules.expired_to) if name is not None}
    return names


class Rates(NamedTuple):
    """What comes into a tube and leaves it, in jobs a second of the last minutes."""

    coming: float
    deleted: float
    left: float
    """Those that were deleted, buried, delayed or moved to another tube."""


def rates(tube: Tube, pulse: Pulse, now_ns: int) -> Rates | None:
    """Return the rates of a tube; None if none has come or left."""
    backlog = len(tube.ready) + tube.reserved
    level = pulse.start(backlog, now_ns)
    if level is None:
        return None
    took_s = max(1.0, (now_ns - level.end_ns) / SECOND_NS)
    left = pulse.left - level.end_left
    coming = max(0, backlog - level.end_backlog + left)
    return Rates(coming / took_s, (pulse.deleted - level.end_deleted) / took_s, left / took_s)


def empty_in_s(tube: Tube, paces: Rates) -> int | None:
    """Return in how long a tube will be empty at these rates; None: never."""
    return int(len(tube.ready) / (paces.left - paces.coming)) if paces.left > paces.coming else None


def _grows(pulse: Pulse, now_ns: int) -> bool:
    """Whether more jobs have come into a tube than it has worked off, over the last minutes."""
    return 0 < pulse.grown_ns <= now_ns - GROWN_NS and now_ns - pulse.noted_ns <= IDLE_NS
