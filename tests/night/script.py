"""What has happened in the night, by a seed: the jobs that are there in the morning, and what operators did.

All times are seconds before the scene begins; a job that is due has them ahead. Nothing here asks a server.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

JOBS: Final = 50_400
MINUTE_S: Final = 60
HOUR_S: Final = 3600
# The customer with the most jobs, and the one whose jobs ann deleted.
LARGEST: Final = 2077
DELETED: Final = 4711
DELETED_JOBS: Final = 37
POISON_RESERVES: Final = 480
# A wave of reminders becomes due all at once, so many in each, at these minutes of the scene.
WAVE_JOBS: Final = 1200
WAVES_MIN: Final = (4, 10, 16, 22, 28)
ERRORS: Final = (
    ("payments", "timeout: payments.example.com did not answer within 30 s", 260),
    ("payments", "template receipt_de is missing", 95),
    ("payments", "card declined by the issuer", 40),
    ("payments", "no amount in the body", 25),
)
DEAD_WEBHOOKS: Final = 12


@dataclass(frozen=True, slots=True)
class Tube:
    """A tube: what is in it, how old that is at most, and how many jobs a second come and go."""

    name: str
    ready: int = 0
    delayed: int = 0
    """Due in an hour to two days."""
    hours: float = 0.1
    coming: float = 0.0
    going: float = 0.0


TUBES: Final = (
    Tube("mail", ready=3200, hours=0.5, coming=1),
    Tube("thumbnails", ready=420, hours=2),
    Tube("reports.nightly", ready=1200, hours=8),
    Tube("legacy-sync", ready=6100, hours=9),
    Tube("emial", ready=340, hours=7),
    Tube("events", ready=5200, hours=0.7, coming=30, going=10),
    Tube("reminders", going=1),
    Tube("payments", ready=60, coming=2, going=2),
    Tube("webhooks", ready=20, coming=1, going=1),
    Tube("invoices", ready=500, hours=0.8, coming=1, going=0.1),
    Tube("search-index", ready=900, hours=0.8),
    Tube("translations", ready=260, hours=5, going=0.1),
    Tube("backfill", ready=2400, hours=0.9, going=1),
    Tube("orders", ready=30, coming=3, going=3),
    Tube("exports", ready=300, hours=0.5, delayed=500, going=1),
    Tube("signups", delayed=900, coming=1, going=1),
    Tube("sms", delayed=1900, coming=2, going=2),
    Tube("push", delayed=2100, coming=2, going=2),
    Tube("audit", delayed=5000, coming=2, going=2),
    Tube("cache-warm", coming=1, going=1),
    Tube("imports", ready=150, hours=0.8, delayed=600, going=0.5),
    Tube("geo", delayed=900, coming=1, going=1),
    Tube("ratings", delayed=1500, coming=1, going=1),
    Tube("stock", delayed=1200, coming=2, going=2),
    Tube("prices", delayed=1700, coming=2, going=2),
    Tube("returns", delayed=700, coming=1, going=1),
    Tube("labels", delayed=3150, coming=1, going=1),
    Tube("fraud", delayed=400, coming=2, going=2),
    Tube("cleanup", delayed=1100, going=1),
    Tube("images.resize", delayed=1238, coming=4, going=4),
)
# The largest customer has every tenth job of these, which keep their jobs.
_OF_LARGEST: Final = frozenset({"legacy-sync", "reminders", "audit", "mail", "labels", "payments"})
_TENANTS: Final = ("acme", "globex", "initech", "umbrella")


@dataclass(slots=True)
class Job:
    """A job that is there, or that has been deleted."""

    tube: str
    state: str
    age_s: float
    body: dict[str, Any]
    in_state_s: float = 0.0
    due_s: float = 0.0
    pri: int = 1024
    why: str | None = None
    note: str | None = None
    reserves: int = 0
    releases: int = 0
    buries: int = 0
    id: int = 0


@dataclass(frozen=True, slots=True)
class Act:
    """What an operator did: to a job, or with the number 0 to a tube or a pattern."""

    ago_s: float
    by: str
    what: str
    tube: str
    job: int = 0
    delay_s: int = 0
    body: str | None = None


@dataclass(slots=True)
class Night:
    """The script."""

    seed: int
    scale: float = 1.0
    """How many of the jobs there are; what only counts above a number is not made smaller."""
    begins_at: float = field(default_factory=time.time)
    jobs: list[Job] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        for tube in TUBES:
            self._fill(tube, chance)
        self._bury(chance)
        self._delete(chance)
        for minute in WAVES_MIN:
            for _ in range(WAVE_JOBS):
                job = self._job(TUBES[6], chance, "delayed", HOUR_S * chance.uniform(2, 9))
                job.due_s = minute * MINUTE_S + chance.uniform(0, 20)
        for number in range(self._scaled(140)):
            job = self._job(TUBES[7], chance, "delayed", chance.uniform(60, 900))
            job.due_s = MINUTE_S * (2 + 26 * number / self._scaled(140))
            job.reserves = job.releases = 1
        poison = Job("thumbnails", "ready", 8.2 * HOUR_S, {"image": "products/panorama.tiff", "megapixels": 22_000})
        poison.pri, poison.reserves, poison.in_state_s = 0, POISON_RESERVES, 3
        self.jobs.append(poison)
        self.jobs.sort(key=lambda job: -job.age_s)
        for number, job in enumerate(self.jobs, 1):
            job.id = number
        self._act()

    # -- what is there

    def _scaled(self, jobs: int) -> int:
        return max(1, round(jobs * self.scale))

    def _job(self, tube: Tube, chance: random.Random, state: str, age_s: float) -> Job:
        body = body_of(tube.name, chance)
        job = Job(tube.name, state, age_s, body, in_state_s=age_s)
        self.jobs.append(job)
        return job

    def _fill(self, tube: Tube, chance: random.Random) -> None:
        is_full = tube.name == "invoices"  # and so needs as many as its limit
        for _ in range(tube.ready if is_full else self._scaled(tube.ready) if tube.ready else 0):
            self._job(tube, chance, "ready", chance.uniform(1, tube.hours * HOUR_S))
        for _ in range(self._scaled(tube.delayed) if tube.delayed else 0):
            job = self._job(tube, chance, "delayed", chance.uniform(1, 9 * HOUR_S))
            job.due_s = chance.uniform(HOUR_S, 48 * HOUR_S)

    def _bury(self, chance: random.Random) -> None:
        for tube, note, jobs in ERRORS:
            for _ in range(self._scaled(jobs)):
                job = self._job(tube_of(tube), chance, "buried", chance.uniform(1, 6) * HOUR_S)
                job.in_state_s = job.age_s * chance.uniform(0.3, 0.95)
                job.why, job.note, job.reserves, job.buries = "client", note, 1, 1
        for _ in range(DEAD_WEBHOOKS):
            job = self._job(tube_of("webhooks"), chance, "buried", chance.uniform(1, 6) * HOUR_S)
            job.in_state_s = job.age_s * chance.uniform(0.3, 0.95)
            job.why, job.note, job.reserves, job.releases = "tries", "410 Gone: hooks.globex.example", 3, 3

    def _delete(self, chance: random.Random) -> None:
        for _ in range(DELETED_JOBS):
            job = self._job(tube_of("exports"), chance, "deleted", self.ago_s("02:14") + chance.uniform(60, 7200))
            job.body |= {"customer": DELETED, "tenant": "initech"}

    # -- what operators did

    def ago_s(self, clock: str) -> float:
        """Return how long ago a time of the last night was that is over, as it is at half past five."""
        now = time.localtime(self.begins_at)
        night = (now.tm_year, now.tm_mon, now.tm_mday - ((now.tm_hour, now.tm_min) < (5, 30)))
        hour, minute = map(int, clock.split(":"))
        return self.begins_at - time.mktime((*night, hour, minute, 7, 0, 0, -1))

    def _act(self) -> None:
        for job in self.deleted:
            self.acts.append(Act(self.ago_s("02:14"), "ann", "delete", job.tube, job.id, body="its own"))
        pause_s = 48 * HOUR_S  # as the last night may be a day and some hours ago
        self.acts.append(Act(self.ago_s("03:10"), "bob", "pause", "reports.nightly", delay_s=pause_s))
        self.acts.append(Act(self.ago_s("04:05"), "carl", "policy", "invoices", body="max_jobs=500"))
        self.acts.append(Act(self.ago_s("04:20"), "carl", "policy", "search-index", body="max_reserved=2"))

    # -- what the answers are made of

    @property
    def deleted(self) -> list[Job]:
        """The jobs that ann deleted."""
        return [job for job in self.jobs if job.state == "deleted"]

    @property
    def present(self) -> list[Job]:
        """The jobs that are there."""
        return [job for job in self.jobs if job.state != "deleted"]

    @property
    def poison(self) -> Job:
        """The job that kills its workers."""
        return next(job for job in self.jobs if job.pri == 0)

    def customers(self) -> list[tuple[int, int]]:
        """Return how many jobs each customer has, the most first."""
        return Counter(job.body["customer"] for job in self.present if "customer" in job.body).most_common()

    def errors(self, tube: str) -> list[tuple[str, int]]:
        """Return the notes of a tube's buried jobs, the most frequent first."""
        buried = [job for job in self.present if (job.tube, job.state) == (tube, "buried")]
        return Counter(job.note or "" for job in buried).most_common()

    def count(self, tube: str, state: str) -> int:
        """Return how many jobs of a tube are in a state."""
        return sum((job.tube, job.state) == (tube, state) for job in self.jobs)

    def due(self, seconds: float) -> Counter[str]:
        """Return how many jobs of each tube become due within some time."""
        return Counter(job.tube for job in self.present if job.state == "delayed" and job.due_s <= seconds)


def tube_of(name: str) -> Tube:
    """Return a tube of the scene by its name."""
    return next(tube for tube in TUBES if tube.name == name)


def body_of(tube: str, chance: random.Random) -> dict[str, Any]:
    """Return what is in a job of a tube."""
    is_largest = tube in _OF_LARGEST and chance.random() < 0.1
    customer = LARGEST if is_largest else 1001 + int(900 * chance.random() ** 2)
    body: dict[str, Any] = {"tenant": chance.choice(_TENANTS), "customer": customer, "order": chance.randrange(48_000)}
    if tube in {"mail", "emial"}:
        body |= {"to": f"customer{customer}@example.org", "template": chance.choice(("welcome", "invoice", "receipt"))}
    elif tube == "payments":
        body |= {"amount": {"cents": chance.randrange(500, 90_000), "currency": "EUR"}}
    elif tube in {"thumbnails", "images.resize"}:
        body = {"image": f"products/{chance.randrange(90_000)}.jpg", "sizes": [160, 480]}
    return body
