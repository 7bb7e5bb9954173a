"""The counts of jobs and clients."""


class Counts:
    """The counts that ``stats`` reports, and that say how much memory is taken."""

    __slots__ = (
        "burials",
        "buried",
        "clients",
        "delayed",
        "expiries",
        "fair_tubes",
        "producers",
        "reserved",
        "ruled_tubes",
        "timeouts",
        "total_clients",
        "total_jobs",
        "twins",
        "urgent",
        "waiting",
        "watched",
        "with_past",
        "workers",
    )

    def __init__(self) -> None:
        self.urgent = 0
        self.reserved = 0
        self.with_past = 0
        """Jobs that have been reserved, kicked or buried."""
        self.delayed = 0
        self.buried = 0
        self.burials = 0
        """The number of the last burial."""
        self.timeouts = 0
        self.total_jobs = 0
        self.clients = 0
        self.producers = 0
        self.workers = 0
        self.waiting = 0
        self.watched = 0
        """How many tubes all clients watch together: a tube counts once for each client."""
        self.total_clients = 0
        self.fair_tubes = 0
        """Tubes whose rules share out the reservations."""
        self.ruled_tubes = 0
        """Tubes that have rules."""
        self.twins = 0
        """Jobs whose body is known to their tube, so that it is not put again."""
        self.expiries = 0
        """Jobs of which their tube knows when they expire."""
