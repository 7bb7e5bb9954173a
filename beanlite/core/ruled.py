"""What the rules of tubes hold back, and what tubes have to know of their jobs for that."""

from typing import Final
from zlib import crc32

from beanlite.core.counts import Counts
from beanlite.core.job import BURIED, ID_BITS, RESERVED, SECOND_NS, SLICE, Job
from beanlite.core.kept import EXPIRY_BYTES, KEPT_BYTES, TWIN_BYTES, Kept
from beanlite.core.policies import Policies
from beanlite.core.rules import WAITING, Rules
from beanlite.core.timers import Timers
from beanlite.core.tube import FULL, PAUSED, SLOWED, Tube

# To work out the checksum of this many bytes costs as much as to move a job.
BYTES_PER_JOB: Final = 4096
# Reservations that a rate does not hold back, such as by reserve-job, shut a tube for no longer than this or, with a
# rate so slow, than those of a burst do.
DEBT_MAX_NS: Final = 60 * SECOND_NS


class Ruled:
    """The policies, and the rules of tubes that follow from them."""

    __slots__ = ("_counts", "_offered", "_timers", "_turn", "other_turn", "policies", "waste")

    def __init__(self, timers: Timers, counts: Counts) -> None:
        self._timers = timers
        self._counts = counts
        self._turn = 0
        """The number of the last reservation, counted while the rules of any tube share them out."""
        self.other_turn = 0
        """The number of the last one from a tube whose rules do not."""
        self._offered: dict[Tube, int] = {}
        """How many jobs each tube has that are offered to clients, which use up a token only once they are taken."""
        self.policies = Policies()
        self.waste: list[Kept] = []
        """What tubes have known of many jobs, and do not need any more: it is freed in slices."""

    def give_rules(self, tube: Tube) -> bool:
        """Give a tube the rules that policies have for it; returns whether its jobs are still to be entered.

        What they hold back is held back at once; what nothing holds back any more is given out in the next tick.
        """
        old, rules = tube.rules, self.policies.rules_of(tube.name)
        if rules is old or (rules is not None and old is not None and rules.values == old.values):
            return False
        tube.rules = rules
        self._counts.ruled_tubes += (rules is not None) - (old is not None)
        self._counts.fair_tubes += (rules is not None and rules.fair) - (old is not None and old.fair)
        unique, ttl_ns = _knowledge(rules)
        old_unique, old_ttl_ns = _knowledge(old)
        if tube.kept is not None:
            # Bodies stay known as long as any rule needs them: those on the disk would not be found again.
            self._forget(tube.kept.take_out(twins=not unique, expiries=ttl_ns != old_ttl_ns))
        tube.kept = None if rules is None else tube.kept or Kept()
        if rules is not None and rules.token_ns and (old is None or rules.token_ns != old.token_ns):
            assert tube.kept is not None
            tube.kept.free_ns = 0
            tube.shut |= SLOWED
        if rules is not None and rules.max_reserved and tube.reserved >= rules.max_reserved:
            tube.shut |= FULL
        if tube.shut or ttl_ns != old_ttl_ns:
            self._timers.set(tube, 0)  # the next tick sees whether it still has to be, and what is too old
        learns = (unique and unique != old_unique) or (ttl_ns and ttl_ns != old_ttl_ns)
        return bool(learns) and tube.holds_jobs

    def _forget(self, kept: Kept) -> None:
        """Count what a tube does not know any more, and have it freed."""
        self._counts.twins -= kept.twin_count
        self._counts.expiries -= kept.expiry_count
        if kept.twin_count + kept.expiry_count > SLICE:
            self.waste.append(kept)

    # -- what is held back

    def hold_back(self, tube: Tube, now_ns: int) -> None:
        """Shut a tube from which a job has been reserved if its rules want no other one to be reserved yet."""
        rules, kept = tube.rules, tube.kept
        if self._counts.fair_tubes:
            self._turn += 1
            if rules is not None and rules.fair and kept is not None:
                kept.turn = self._turn
            else:
                self.other_turn = self._turn
        if rules is None or kept is None:
            return
        if rules.token_ns:
            free_ns = max(now_ns, _free_ns(kept, rules, now_ns)) + rules.token_ns
            kept.free_ns = min(free_ns, now_ns + max(DEBT_MAX_NS, rules.burst * rules.token_ns))
        if rules.max_reserved or rules.token_ns:
            tube.shut |= self._reasons(tube, rules, now_ns)

    def note_offer(self, tube: Tube, now_ns: int) -> None:
        """Count a job that is offered to a client, and shut its tube if no other one may be handed out beside it."""
        self._offered[tube] = self._offered.get(tube, 0) + 1
        if tube.rules is not None:
            tube.shut |= self._reasons(tube, tube.rules, now_ns)

    def end_offer(self, tube: Tube) -> None:
        """Note that a job of a tube is not offered any more: it was taken, or goes back."""
        offered = self._offered[tube] = self._offered[tube] - 1
        if not offered:
            del self._offered[tube]

    def still_shut(self, tube: Tube, now_ns: int) -> int:
        """Return for what reasons no job of a tube is to be handed out now, and set its timer for the end of these."""
        shut = 0
        if tube.pause_until_ns > now_ns:
            shut |= PAUSED
            self._timers.set(tube, tube.pause_until_ns)
        if tube.rules is not None:
            shut |= self._reasons(tube, tube.rules, now_ns)
        return shut

    def _reasons(self, tube: Tube, rules: Rules, now_ns: int) -> int:
        shut = 0
        if rules.max_reserved and tube.reserved >= rules.max_reserved:
            shut = FULL
        if rules.token_ns:
            kept = tube.kept
            assert kept is not None
            kept.free_ns = _free_ns(kept, rules, now_ns)
            more = rules.burst - 1 - self._offered.get(tube, 0)
            opens_ns = kept.free_ns - more * rules.token_ns
            if more < 0:
                shut |= SLOWED  # until an offer ends
            elif opens_ns > now_ns:
                shut |= SLOWED
                self._timers.set(tube, opens_ns)
        return shut

    # -- what tubes have to know of their jobs

    def enter(self, job: Job, checksum: int | None) -> None:
        """Have a tube with rules know what these need of a job; ``checksum`` is the crc32 of its body, if known."""
        tube = job.tube
        rules, kept = tube.rules, tube.kept
        assert rules is not None
        assert kept is not None
        if rules.unique and checksum is not None:
            if not kept.has_twin(job.id):
                kept.add_twin(job.id, kept.twin_key(job.size, checksum))
                self._counts.twins += 1
            if rules.unique == WAITING and (job.state is RESERVED or job.state is BURIED):
                kept.hide_twin(job.id)
            else:
                kept.show_twin(job.id)
        if rules.ttl_ns:
            due_ns = job.created_ns + rules.ttl_ns
            if kept.add_expiry(job.id, due_ns << ID_BITS | job.id):
                self._counts.expiries += 1
                self._timers.set(tube, due_ns)

    def checksum_for(self, rules: Rules | None, job: Job) -> int | None:
        """Return the checksum of a job's body if a tube with these rules needs it; None if that takes fetching it."""
        if rules is None or not rules.unique:
            return None
        if job.body is not None:
            return crc32(job.body)
        return None if job.tube.kept is None else job.tube.kept.crc32_of(job.id)

    def leave(self, job: Job) -> None:
        """Have a tube with rules forget a job that leaves it, or is deleted."""
        kept = job.tube.kept
        assert kept is not None
        self._counts.twins -= kept.remove_twin(job.id)
        self.forget_expiry(kept, job.id)

    def drop(self, rules: Rules) -> None:
        """Note that a tube with these rules, which holds no job, is dropped."""
        self._counts.ruled_tubes -= 1
        self._counts.fair_tubes -= rules.fair

    def forget_expiry(self, kept: Kept, job_id: int) -> None:
        """Have a tube forget when a job expires, if it knows."""
        self._counts.expiries -= kept.remove_expiry(job_id)


def _free_ns(kept: Kept, rules: Rules, now_ns: int) -> int:
    """Return ``Kept.free_ns``. If nobody knows how many jobs were reserved before, none may be yet."""
    return kept.free_ns or now_ns + rules.burst * rules.token_ns


def _knowledge(rules: Rules | None) -> tuple[str, int]:
    """Return what decides what a tube has to know of its jobs."""
    return ("", 0) if rules is None else (rules.unique, rules.ttl_ns)


def more_bytes(tube: Tube, rules: Rules | None) -> int:
    """Return how many bytes more a tube takes once it has these rules and knows its jobs; negative if fewer."""
    unique, ttl_ns = _knowledge(rules)
    old_unique, old_ttl_ns = _knowledge(tube.rules)
    kept = tube.kept
    twins, expiries = (0, 0) if kept is None else (kept.twin_count, kept.expiry_count)
    more_twins = 0 if unique and old_unique else (tube.jobs if unique else 0) - twins
    # With another age all jobs are entered again, also those that were looked at already.
    more_expiries = 0 if ttl_ns == old_ttl_ns else (tube.jobs if ttl_ns else 0) - expiries
    more_kept = (rules is not None) - (tube.rules is not None)
    return more_kept * KEPT_BYTES + more_twins * TWIN_BYTES + more_expiries * EXPIRY_BYTES
