"""What has changed in tubes over the last minutes, for ``diagnosis``.

It is noted once a second, when the tallies are taken for the totals: commands pay nothing for it, and neither does a
tube in which nothing happens.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from beanlite.core.job import BURIED, GONE, RESERVED, SECOND_NS, Job
from beanlite.core.totals import Tally
from beanlite.core.tube import Peer, Tube

MINUTE_NS: Final = 60 * SECOND_NS
# A level is the beginning of what is compared with the present until it is twice as old as this.
LEVEL_NS: Final = 150 * SECOND_NS
# After a time in which so long nothing has happened, levels are made anew.
IDLE_NS: Final = 5 * MINUTE_NS
# A tube grows if, for this long, it has had so many jobs ready, and so many more and so much more than it worked off
# than at the older level.
GROWN_NS: Final = 30 * SECOND_NS
GROWN_LEAST: Final = 100
GROWN_SHARE: Final = 0.1
# A tube buries more than its past explains if, since the older level, it has buried so many jobs, so large a share of
# those that ended, and so many times the share before; that is told for so long while jobs are buried.
BURIED_LEAST: Final = 10
BURIED_SHARE: Final = 0.05
BURIED_TIMES: Final = 3
BURIED_NS: Final = 24 * 60 * MINUTE_NS
# A past of fewer jobs explains nothing.
PAST_LEAST: Final = 100
# A job crashes its clients if so many of its reservations have ended because the client left; of so many such jobs the
# last ones are known, for so long.
LOSSES: Final = 5
CRASHES_MAX: Final = 1000
CRASHES_NS: Final = 10 * MINUTE_NS
# Rates are computed from so many jobs that came or left, if there are as many.
MOVES_LEAST: Final = 5
# So many more pulses are examined than tallies are taken, to find those that are not needed any more.
EXAMINED: Final = 10


class Level:
    """The counts of a pulse before a second in which something happened, and some of them after it.

    Rates are computed from the end of that second: what happened in it may have been long in coming.
    """

    __slots__ = ("at_ns", "backlog", "buried", "deleted", "end_backlog", "end_deleted", "end_left", "end_ns", "refused")

    def __init__(self, at_ns: int, backlog: int, deleted: int, buried: int, refused: int) -> None:
        self.at_ns = at_ns
        self.backlog = backlog
        """Jobs that were ready or reserved."""
        self.deleted = deleted
        self.buried = buried
        self.refused = refused
        self.end_ns = self.end_backlog = self.end_deleted = self.end_left = 0


class Pulse:
    """What is known of a tube in which something has happened recently: counts since it was made, and two levels."""

    __slots__ = (
        "buried",
        "buries_ns",
        "deleted",
        "grown_ns",
        "had_ready",
        "held",
        "held_ns",
        "hold_before_ns",
        "left",
        "newer",
        "noted_ns",
        "older",
        "peak",
        "refused",
        "spared",
    )

    def __init__(self, tube: Tube, tally: Tally, now_ns: int) -> None:
        self.deleted = self.buried = self.refused = 0
        self.left = 0
        """Jobs that ceased to be ready or reserved, in whatever way."""
        self.held = 0
        """Reservations that ended."""
        self.held_ns = 0
        """How long jobs had been reserved then, in total."""
        self.hold_before_ns = tube.hold_ns
        self.had_ready = False
        """Whether jobs were ready when anything last happened."""
        self.noted_ns = now_ns
        """When anything last happened."""
        self.older = self.newer = self.peak = self._level(tube, tally, now_ns)
        """The peak is the level with the largest backlog, of those since the older one."""
        self.grown_ns = 0
        """Since when it has grown; 0: it has not."""
        self.buries_ns = 0
        """The level since which more jobs are buried than the past explains, as its time; 0: no more are."""
        self.spared = 0
        """How many were buried before that."""

    def note(self, tube: Tube, tally: Tally, now_ns: int) -> None:
        """Add what has happened within the last second."""
        if now_ns - self.newer.at_ns > LEVEL_NS:
            level = self._level(tube, tally, now_ns)
            self.older = level if now_ns - self.noted_ns > IDLE_NS else self.newer
            self.newer = level
            if self.peak.at_ns < self.older.at_ns:
                self.peak = level
        self.noted_ns = now_ns
        if tube.ready.keys and not self.had_ready:
            tube.open_ns = now_ns
        self.had_ready = bool(tube.ready.keys)
        self.deleted += tally.deleted
        self.buried += tally.buried
        self.refused += tally.refused
        self.left += tally.deleted + tally.buried + tally.left
        self.held += tally.held
        self.held_ns += tally.held_ns
        backlog = len(tube.ready) + tube.reserved
        if not self.newer.end_ns:
            self._end(self.newer, backlog, now_ns)
        if backlog >= self.peak.backlog:
            self.peak = Level(now_ns, backlog, self.deleted, self.buried, self.refused)
            self._end(self.peak, backlog, now_ns)
        if not self._has_grown(tube, backlog):
            self.grown_ns = 0
        elif not self.grown_ns:
            self.grown_ns = now_ns
        self._note_buried(tube, tally, now_ns)

    def _note_buried(self, tube: Tube, tally: Tally, now_ns: int) -> None:
        if self.buries_ns:
            # Those that were there before this second are gone, or it is long ago.
            if len(tube.buried) <= tally.buried or not self.buries_more(now_ns):
                self.buries_ns = 0
        elif tally.buried and self._has_buried_more(tube):
            self.buries_ns = self.older.at_ns
            self.spared = self.older.buried

    def _end(self, level: Level, backlog: int, now_ns: int) -> None:
        level.end_ns, level.end_backlog, level.end_deleted, level.end_left = now_ns, backlog, self.deleted, self.left

    def _level(self, tube: Tube, tally: Tally, now_ns: int) -> Level:
        """Return a level of the moment before the last second; jobs that were put with a delay are not known there."""
        came = tally.put + tally.kicked + tally.delay_over + tally.came
        more = came - tally.deleted - tally.buried - tally.left
        backlog = max(0, len(tube.ready) + tube.reserved - more)
        return Level(now_ns - SECOND_NS, backlog, self.deleted, self.buried, self.refused)

    def _has_grown(self, tube: Tube, backlog: int) -> bool:
        """Whether more jobs have come than were worked off since the older level."""
        more = backlog - self.older.backlog
        least = max(GROWN_LEAST, GROWN_SHARE * (self.deleted - self.older.deleted))
        return len(tube.ready) >= GROWN_LEAST and more >= least

    def _has_buried_more(self, tube: Tube) -> bool:
        """Whether a larger share of the jobs has been buried since the older level than before it."""
        buried, deleted = self.buried - self.older.buried, self.deleted - self.older.deleted
        past_buried = max(self.older.buried, len(tube.buried) - buried)
        past = past_buried + tube.cmd_delete - deleted
        least = max(BURIED_SHARE, BURIED_TIMES * past_buried / past if past >= PAST_LEAST else 0.0)
        return buried >= BURIED_LEAST and buried >= least * (buried + deleted)

    def buries_more(self, now_ns: int) -> bool:
        """Whether it is to be told that more jobs are buried than the past explains."""
        return self.buries_ns > 0 and now_ns - self.buries_ns <= BURIED_NS

    @property
    def hold_ns(self) -> int:
        """For how long a job is reserved on average; -1: that is not known."""
        return self.held_ns // self.held if self.held else self.hold_before_ns

    def start(self, backlog: int, now_ns: int) -> Level | None:
        """Return the level to compute rates from: the newer one, unless it has only just been made.

        If the backlog has become smaller since a peak after that, it is the peak: what came at once comes no more. With
        few jobs that came or left since, it is an older one; None: none has even since the oldest one.
        """
        level = self.newer if now_ns - self.newer.at_ns >= MINUTE_NS else self.older
        first = self.peak if level.at_ns < self.peak.at_ns <= now_ns - GROWN_NS else level
        for each in (first, level):
            if self._moves(each, backlog) >= MOVES_LEAST:
                return each
        return self.older if self._moves(self.older, backlog) else None

    def _moves(self, level: Level, backlog: int) -> int:
        """Return how many jobs have come and left since the end of a level."""
        left = self.left - level.end_left
        return max(0, backlog - level.end_backlog + left) + left


class Crash:
    """A job whose clients have left again and again while they had it."""

    __slots__ = ("at_ns", "peer")

    def __init__(self, at_ns: int, peer: Peer) -> None:
        self.at_ns = at_ns
        """When a client last left."""
        self.peer = peer
        """That client."""

    def losses(self, job: Job | None, now_ns: int) -> int:
        """Return how many clients have left that had the job; 0 if it is no crash loop any more."""
        if job is None or job.state is GONE or job.state is BURIED or now_ns - self.at_ns > CRASHES_NS:
            return 0
        losses = losses_of(job) - (job.state is RESERVED)
        return losses if losses >= LOSSES else 0


def losses_of(job: Job) -> int:
    """Return how many reservations of a job ended because a client left, or have not ended, at most.

    Those that a stop of the server ended are forgiven, as are all before a kick or a move.
    """
    past = job.past
    return min(job.reserves - past.timeouts - past.releases - past.buries, job.tries)


class Pulses:
    """The pulses of the tubes in which something has happened recently, and the jobs that crash their clients."""

    __slots__ = ("_pulses", "crashes")

    def __init__(self) -> None:
        self._pulses: OrderedDict[Tube, Pulse] = OrderedDict()
        self.crashes: OrderedDict[int, Crash] = OrderedDict()
        """By the id of the job, the latest last."""

    def __len__(self) -> int:
        return len(self._pulses)

    def find(self, tube: Tube) -> Pulse | None:
        """Return the pulse of a tube; None if nothing has happened there for long, or the tube holds nothing."""
        return self._pulses.get(tube)

    def note(self, tube: Tube, tally: Tally, now_ns: int) -> None:
        """Note the tally of a tube, which has just been taken."""
        if tally.is_moved:
            tube.moved_ns = now_ns
        pulse = self._pulses.get(tube)
        if pulse is None:
            if not (tube.holds_jobs or tube.watching):  # it may be gone, and there may be very many such tubes
                return
            pulse = self._pulses[tube] = Pulse(tube, tally, now_ns)
        pulse.note(tube, tally, now_ns)

    def prune(self, most: int, now_ns: int) -> None:
        """Drop those of the next pulses that are not needed any more."""
        pulses = self._pulses
        for _ in range(min(most, len(pulses))):
            tube = next(iter(pulses))
            if _is_needed(tube, pulses[tube], now_ns):
                pulses.move_to_end(tube)
            else:
                tube.hold_ns = pulses.pop(tube).hold_ns

    def note_loss(self, job: Job, peer: Peer, now_ns: int) -> None:
        """Note that a client has left that had this job."""
        if losses_of(job) < LOSSES:
            return
        crashes = self.crashes
        crashes[job.id] = Crash(now_ns, peer)
        crashes.move_to_end(job.id)
        while len(crashes) > CRASHES_MAX or now_ns - crashes[next(iter(crashes))].at_ns > CRASHES_NS:
            crashes.popitem(last=False)


def _is_needed(tube: Tube, pulse: Pulse, now_ns: int) -> bool:
    if now_ns - pulse.noted_ns <= IDLE_NS:
        return tube.holds_jobs or tube.using > 0 or tube.watching > 0
    # Nothing happens: its clients may hang, or its jobs be buried still.
    return bool((tube.ready.keys and tube.watching) or (tube.buried.keys and pulse.buries_more(now_ns)))
