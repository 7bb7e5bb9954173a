"""What is wrong with a server or its tubes, in words: kinds of findings, how grave they are, and what to do."""

from __future__ import annotations

from typing import Final, NamedTuple

from beanlite.core.phrases import age, jobs_text, named, quantity, rates_text, shell_word

URGENT: Final = "urgent"
WARNING: Final = "warning"
NOTE: Final = "note"
SEVERITIES: Final = (URGENT, WARNING, NOTE)

# The kinds of findings; of the same severity, those that are further up come first.
DISK: Final = "disk"
MEMORY: Final = "memory"
HUNG: Final = "hung"
CRASH_LOOP: Final = "crash loop"
NOBODY_CONSUMES: Final = "nobody consumes"
REFUSED: Final = "refused"
GROWING: Final = "growing"
BURIED: Final = "buried"
SHUT: Final = "shut"
LATE: Final = "late"
STORM_DUE: Final = "storm due"
PAUSED: Final = "paused"
BACKUP: Final = "backup"
DRAINING: Final = "draining"
LEFT_BURIED: Final = "left buried"
SET_ASIDE: Final = "set aside"
KINDS: Final = (
    DISK, MEMORY, HUNG, CRASH_LOOP, NOBODY_CONSUMES, REFUSED, GROWING, BURIED, SHUT, LATE, STORM_DUE, PAUSED, BACKUP,
    DRAINING, LEFT_BURIED, SET_ASIDE,
)  # fmt: skip

# How many tubes a sentence names.
NAMED_MAX: Final = 3


class Case:
    """A tube with which something is wrong. What the numbers are of depends on the kind."""

    __slots__ = (
        "client",
        "coming",
        "going",
        "job_id",
        "jobs",
        "left_s",
        "losses",
        "reserved",
        "seconds",
        "severity",
        "tube",
        "watching",
        "why",
    )

    def __init__(self, tube: str, severity: str, jobs: int, seconds: int) -> None:
        self.tube = tube
        self.severity = severity
        self.jobs = jobs
        """The jobs that are concerned; of REFUSED the puts."""
        self.seconds = seconds
        """For how long it has been so."""
        self.reserved = 0
        self.watching = 0
        self.coming = 0.0
        """Jobs that come in a second."""
        self.going = 0.0
        """Jobs that are deleted in a second."""
        self.left_s: int | None = None
        """Until it is over; None: that is not in sight."""
        self.job_id = 0
        self.losses = 0
        self.client = ""
        self.why = ""


class WorstTube(NamedTuple):
    """One of the tubes of a finding."""

    tube: str
    severity: str
    jobs: int
    seconds: int
    job: int | None  # the worst one


class Finding(NamedTuple):
    """Something that is wrong, in all tubes with which it is, or with the server as a whole."""

    kind: str
    severity: str
    tubes: int  # 0: it concerns the server
    jobs: int
    seconds: int  # for how long it has been so, at most
    worst: list[WorstTube]  # the tubes with the most jobs
    text: str  # what is wrong
    do: str  # what to do about it
    command: str | None  # with which to look at the worst tube, or to do it


class Group:
    """All tubes with which the same is wrong."""

    def __init__(self, kind: str, most: int) -> None:
        self.kind = kind
        self.tubes = 0
        self.jobs = 0
        self.seconds = 0
        self.severity = NOTE
        self.cases: list[Case] = []
        """The worst ones."""
        self._most = most

    def has_worse(self, jobs: int) -> bool:
        """Whether a tube with so many jobs is not one of the worst."""
        return len(self.cases) >= self._most and jobs <= self.cases[-1].jobs

    def count(self, severity: str, jobs: int, seconds: int) -> None:
        """Count a tube."""
        self.tubes += 1
        self.jobs += jobs
        self.see(severity, seconds)

    def see(self, severity: str, seconds: int) -> None:
        """Take over how grave it is in a tube, and for how long, if that is worse than what is known."""
        self.seconds = max(self.seconds, seconds)
        if severity != self.severity and SEVERITIES.index(severity) < SEVERITIES.index(self.severity):
            self.severity = severity

    def add(self, case: Case) -> None:
        """Count a tube, and keep its case if it is one of the worst."""
        self.count(case.severity, case.jobs, case.seconds)
        if not self.has_worse(case.jobs):
            cases = self.cases
            cases.append(case)
            cases.sort(key=_jobs_first)
            del cases[self._most :]

    def finding(self) -> Finding:
        """Return this as a finding."""
        worst = self.cases[0]
        text, do, command = _WORDS[self.kind](self, worst)
        places = [
            WorstTube(each.tube, each.severity, each.jobs, each.seconds, each.job_id or None) for each in self.cases
        ]
        return Finding(self.kind, self.severity, self.tubes, self.jobs, self.seconds, places, text, do, command)

    @property
    def names(self) -> str:
        """The names of the worst tubes, and how many others there are."""
        return named([case.tube for case in self.cases[:NAMED_MAX]], self.tubes)


def order(finding: Finding) -> tuple[int, int]:
    """Return what findings are sorted by, the worst first."""
    return SEVERITIES.index(finding.severity), KINDS.index(finding.kind)


def _jobs_first(case: Case) -> tuple[int, int]:
    return -case.jobs, -case.seconds


_Words = tuple[str, str, str | None]
"""What is wrong, what to do, and a command."""


def _hung(group: Group, worst: Case) -> _Words:
    still = "stands still" if group.tubes == 1 else "stand still"
    state, watch = f"{jobs_text(group.jobs)} ready", ""
    command = "beanlite clients"
    if worst.reserved:
        command = f"beanlite jobs --tube {shell_word(worst.tube)} --state reserved"
    if group.tubes > 1:
        watch = ", though clients watch them"
    elif worst.reserved:
        state += f", {worst.reserved:,} reserved"
    else:
        watch = f", though {quantity(worst.watching, 'client watches', 'clients watch')} it"
    moved = f"for {age(group.seconds)} none was reserved, touched, deleted, released or buried"
    return (
        f"{group.names} {still}: {state}, and {moved}{watch}",
        "look at what the workers do, and restart those that hang: their jobs become ready again",
        command,
    )


def _crash_loop(group: Group, worst: Case) -> _Words:
    last = f"the last {age(worst.seconds)} ago, {worst.client}"
    if group.jobs == 1:
        text = (
            f"job {worst.job_id} of {worst.tube} was lost by {worst.losses} clients that left while they had it, {last}"
        )
    else:
        text = (
            f"{jobs_text(group.jobs)} of {group.names} were each lost by clients that left while they had them,"
            f" job {worst.job_id} by {worst.losses}, {last}"
        )
    return (
        text,
        "see in the log of the worker why it dies, and bury the job until that is mended",
        f"beanlite job {worst.job_id}",
    )


def _nobody_consumes(group: Group, worst: Case) -> _Words:
    what = "reserves from" if worst.watching else "consumes"
    return (
        f"nobody {what} {group.names}: {jobs_text(group.jobs)} ready, the next one for {age(group.seconds)}",
        "start workers that watch " + ("it" if group.tubes == 1 else "them"),
        "beanlite clients",
    )


def _refused(group: Group, worst: Case) -> _Words:
    puts = f"{quantity(group.jobs, 'put')} into {group.names} {'was' if group.jobs == 1 else 'were'} refused"
    return (
        f"{puts} in the last minutes, because of max_jobs",
        "add workers, or raise max_jobs",
        f"beanlite policy show {shell_word(worst.tube)}",
    )


def _growing(group: Group, worst: Case) -> _Words:
    if group.tubes == 1:
        end = (
            "never empty at the rate of the last minutes"
            if worst.left_s is None
            else f"empty in {age(worst.left_s)} at the rate of the last minutes"
        )
        coming, going = rates_text(worst.coming, worst.going)
        verb = "grows" if worst.left_s is None else "has grown"
        text = f"{worst.tube} {verb}: {jobs_text(worst.jobs)} ready, {coming} come and {going} are deleted; {end}"
    else:
        text = f"{group.names} grow: {jobs_text(group.jobs)} ready, and more come than are deleted"
    return text, "add workers, or have fewer jobs put", f"beanlite why {shell_word(worst.tube)}"


def _buried(group: Group, worst: Case) -> _Words:
    text = f"{jobs_text(group.jobs)} of {group.names} {'was' if group.jobs == 1 else 'were'} buried within the last"
    return (
        f"{text} {age(group.seconds)}, more than {'its' if group.tubes == 1 else 'their'} past explains",
        "see why they fail, mend that, and kick them",
        f"beanlite jobs --tube {shell_word(worst.tube)} --state buried",
    )


def _left_buried(group: Group, worst: Case) -> _Words:
    verb = "is" if group.jobs == 1 else "are"
    return (
        f"{jobs_text(group.jobs)} of {group.names} {verb} buried, the first for {age(group.seconds)}",
        "kick or delete them: nothing becomes of them by itself",
        f"beanlite jobs --tube {shell_word(worst.tube)} --state buried",
    )


def _set_aside(group: Group, worst: Case) -> _Words:
    verb = "is" if group.jobs == 1 else "are"
    return (
        f"{jobs_text(group.jobs)} set aside by policies {verb} in {group.names}, the next one for {age(group.seconds)}",
        "see why they failed, mend that, and move them back, or delete them",
        f"beanlite jobs --tube {shell_word(worst.tube)}",
    )


def _shut(group: Group, worst: Case) -> _Words:
    by = f" by {worst.why}" if group.tubes == 1 else " by policies"
    held = f"held back{by}, the next one for {age(group.seconds)}"
    return (
        f"{jobs_text(group.jobs)} of {group.names} {'is' if group.jobs == 1 else 'are'} {held}",
        "raise what the policy permits, if the workers can do more",
        f"beanlite policy show {shell_word(worst.tube)}",
    )


def _late(group: Group, worst: Case) -> _Words:
    end = (
        ""
        if group.tubes > 1 or worst.left_s is None
        else f"; empty in {age(worst.left_s)} at the rate of the last minutes"
    )
    text = f"{group.names} {'is' if group.tubes == 1 else 'are'} late: {jobs_text(group.jobs)} ready"
    return (
        f"{text}, the next one for {age(group.seconds)}{end}",
        "add workers, or mend what keeps those that there are",
        f"beanlite why {shell_word(worst.tube)}",
    )


def _storm_due(group: Group, worst: Case) -> _Words:
    when = "" if worst.left_s is None else f", the first in {age(worst.left_s)}"
    return (
        f"about {group.jobs:,} delayed jobs of {group.names} become ready within 5 min{when}",
        "have more workers ready, or pause the tube and end the pause when they are",
        f"beanlite jobs --tube {shell_word(worst.tube)} --state delayed --sort queue",
    )


def _paused(group: Group, worst: Case) -> _Words:
    left = f", for another {age(worst.left_s or 0)}" if group.tubes == 1 else ""
    return (
        f"{group.names} {'is' if group.tubes == 1 else 'are'} paused{left}: {jobs_text(group.jobs)} ready",
        "end the pause when its reason is over",
        f"beanlite pause {shell_word(worst.tube)} 0",
    )


_WORDS: Final = {
    HUNG: _hung,
    CRASH_LOOP: _crash_loop,
    NOBODY_CONSUMES: _nobody_consumes,
    REFUSED: _refused,
    GROWING: _growing,
    BURIED: _buried,
    LEFT_BURIED: _left_buried,
    SET_ASIDE: _set_aside,
    SHUT: _shut,
    LATE: _late,
    STORM_DUE: _storm_due,
    PAUSED: _paused,
}


def of_server(kind: str, severity: str, text: str, do: str, command: str | None = None) -> Finding:
    """Return a finding that concerns the server as a whole."""
    return Finding(kind, severity, 0, 0, 0, [], text, do, command)
