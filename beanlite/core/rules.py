"""The rules of a tube: what operators have set for it. ``policies`` makes them."""

from typing import Final

# The values of ``Rules.unique``.
WAITING: Final = "waiting"
PRESENT: Final = "present"
# The limit ``Rules.max_jobs``, as the statistics name it.
MAX_JOBS: Final = "max-jobs"


class Rules:
    """What holds for a tube. It is never changed, and shared by all tubes for which the same holds."""

    __slots__ = (
        "burst",
        "checks_puts",
        "expired_deletes",
        "expired_to",
        "fair",
        "max_jobs",
        "max_reserved",
        "max_tries",
        "retry_most_s",
        "retry_s",
        "then_to",
        "token_ns",
        "ttl_ns",
        "unique",
        "values",
    )

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        """What was set, by key, without what is off."""
        self.max_tries = 0
        """A job that comes back after so many tries is dead; 0: never. So for all numbers here: 0 is no limit."""
        self.then_to: bytes | None = None
        """The tube to which dead jobs move; None: they are buried."""
        self.retry_s = 0
        """The delay after the first try. It doubles with each other, up to ``retry_most_s``."""
        self.retry_most_s = 0
        self.max_reserved = 0
        """How many jobs of the tube may be reserved at a time."""
        self.token_ns = 0
        """How long it takes until another job may be reserved, on average."""
        self.burst = 0
        """How many jobs may be reserved at once after a time in which none was."""
        self.max_jobs = 0
        self.checks_puts = False
        """Whether a put depends on the jobs that are there: ``max_jobs`` or ``unique`` is set."""
        self.fair = False
        self.unique = ""
        """WAITING or PRESENT: a put whose body a job has that waits, or that is there, makes no other job."""
        self.ttl_ns = 0
        """The age at which a job that is ready or delayed expires."""
        self.expired_deletes = False
        self.expired_to: bytes | None = None
        """The tube to which such jobs move; None: they are deleted or buried."""
