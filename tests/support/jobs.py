"""Stand-ins for jobs."""

from typing import NamedTuple


class Numbered(NamedTuple):
    """All that the table of jobs knows of a job."""

    id: int
