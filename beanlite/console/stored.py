"""What a database knows of the past, be it a file or PostgreSQL, for questions of operators."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

from beanlite.console import units
from beanlite.console.filters import Record
from beanlite.errors import BeanliteError

Location = Path | str
"""The path of a database file, or the URL of a PostgreSQL database."""


class PastView(Protocol):
    """A view of a database that is open for reading. Its methods raise BeanliteError if it can't be read."""

    def show_job(self, job_id: int, events: int = 0) -> Record | None:
        """Return everything known about a job, with the last ``events`` of its history, 0 meaning all."""

    def history(self, which: Mapping[str, Any], limit: int) -> Iterator[Record]:
        """Yield the last ``limit`` events that meet the conditions, 0 meaning all, the oldest first."""

    def deletions_of(self, which: Mapping[str, Any]) -> list[int]:
        """Return the jobs whose deletions meet the conditions, and whose bodies are kept."""

    def kept_since(self) -> float | None:
        """Return since when what clients do is kept; None: it is not."""

    def end_of_history(self) -> int:
        """Return the number of the last event; later ones have higher numbers."""

    def deletions(self, after: int, end: int) -> list[tuple[int, int, int]]:
        """Return the deletions with a body that have numbers above ``after`` up to ``end``: job, number, size."""

    def bodies(self, events: Sequence[int]) -> dict[int, bytes]:
        """Return the bodies that are kept with events, by their numbers."""

    def deleted_job(self, job_id: int) -> Record | None:
        """Return what the history knows of a job that was deleted: its tube, pri and body; None without a body."""

    def alive(self) -> Record:
        """Return the server that has the database, or had it last; empty if none has had it."""

    def totals(self, span_s: int, spans: int, tubes: Sequence[str]) -> list[Record]:
        """Return the totals of these tubes in the last ``spans`` hours or days, as given by ``span_s``."""

    def totals_of_all(self, span_s: int, spans: int) -> list[Record]:
        """Return the totals of all tubes together, likewise."""


def looking_at(location: Location) -> AbstractContextManager[PastView]:
    """Open a database for reading only. BeanliteError: it can't be read."""
    if isinstance(location, str):
        from beanlite.journal.postgres.past import looking as looking_at_postgres  # noqa: PLC0415 - it may be missing

        return looking_at_postgres(location)
    from beanlite.journal.sqlite.tools.look import looking  # noqa: PLC0415 - not with PostgreSQL

    return looking(location)


class Stored:
    """An open database, and what it knows of the past."""

    look: PastView
    """The view of the database."""

    def __init__(self) -> None:
        self._stack = ExitStack()  # all that holds the file, so that Ctrl-C just before the `with` closes it as well

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show_job(self, job_id: int) -> Record | None:
        """Return all facts about a job; None if there are none. Of one that has gone, its history, perhaps its body."""
        facts = self.look.show_job(job_id)
        deleted = None if facts is None or "body" in facts else self.look.deleted_job(job_id)
        return facts if facts is None or deleted is None else {**facts, **deleted}

    def kept(self, put_at: float | None = None) -> str:
        """Return in words how far the history of clients goes back.

        ``put_at``: when a job was put whose put is not there.
        """
        since_at = self.look.kept_since()
        if since_at is None:
            return "the history has no event of a client; these are kept with the server's setting history"
        known = put_at is not None and since_at <= put_at
        otherwise = "; the job was imported, or no history was kept when it was put" if known else ""
        return f"the first event of a client in the history is of {units.utc(since_at)} UTC{otherwise}"

    def check_tube(self, tube: str) -> None:
        """Check that there is a tube. BeanliteError: the database has no job in it, and no pause of it."""
        raise NotImplementedError


class OpenDatabase(Stored):
    """A PostgreSQL database. BeanliteError: it can't be read."""

    def __init__(self, url: str) -> None:
        from beanlite.journal.postgres.past import looking  # noqa: PLC0415 - as above

        super().__init__()
        self.look = look = self._stack.enter_context(looking(url))
        self._has_tube = look.has_tube

    def check_tube(self, tube: str) -> None:
        """Check that there is a tube. BeanliteError: the database has no job in it, and no pause of it."""
        if not self._has_tube(tube):
            raise BeanliteError(f"there is no tube {tube} in the database: it has no job, and is not paused")
