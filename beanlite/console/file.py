"""A database file, with the same methods for questions as a server."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from beanlite.console.filters import Record
from beanlite.console.names import similar
from beanlite.core.policies import KEYS, Policies
from beanlite.errors import BeanliteError, ConfigError
from beanlite.journal.sqlite.tools.look import Look, looking

# Where to continue in a list: an id, or the number of jobs so far. More digits than this no number in SQLite has.
_CURSOR: Final = re.compile("[0-9]{1,18}")


class File:
    """An open file. JournalRefused: it can't be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()  # all that holds the file, so that Ctrl-C just before the `with` closes it as well
        self._look: Look = self._stack.enter_context(looking(path.resolve()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def list_jobs(self, request: Record) -> Record:
        """Return a slice of the jobs. ConfigError: the cursor is none, or is a server's."""
        after = request.get("after")
        if after is not None and _CURSOR.fullmatch(after) is None:
            raise ConfigError(f"--after: {after!r} is not from a list of a file's jobs")
        return self._look.list_jobs(request)

    def group_jobs(self, request: Record) -> Record:
        """Return how many jobs have each value, all at once."""
        return self._look.group_jobs(request)

    def list_tubes(self, request: Record) -> Record:
        """Return all tubes."""
        return self._look.list_tubes(request)

    def list_policies(self, request: Record) -> Record:
        """Return all policies or, with ``tube``, those that hold for that tube."""
        rows = self._look.list_policies()
        if "tube" in request:
            policies = Policies()
            policies.change(rows)
            effective = policies.effective(request["tube"].encode())
            rows = [effective[key] for key in KEYS if key in effective]
        return {"policies": [{**row._asdict(), "pattern": row.pattern.decode()} for row in rows]}

    def show_job(self, job_id: int) -> Record | None:
        """Return all facts about a job; None if there are none. Of one that has gone, its history, perhaps its body."""
        facts = self._look.show_job(job_id)
        deleted = None if facts is None or "body" in facts else self._look.deleted_job(job_id)
        return facts if facts is None or deleted is None else {**facts, **deleted}

    def history(self, which: Record, limit: int) -> Iterator[Record]:
        """Yield the last ``limit`` events that meet the conditions, 0 meaning all, the oldest first."""
        return self._look.history(which, limit)

    def deletions(self, which: Record) -> list[int]:
        """Return the jobs whose deletions meet the conditions, and whose bodies are kept."""
        return self._look.deletions_of(which)

    def deleted_job(self, job_id: int) -> Record | None:
        """Return what the history has of a job that was deleted: its tube, pri and body; None without a body."""
        return self._look.deleted_job(job_id)

    def check_tube(self, tube: str) -> None:
        """Check that the file has a tube. BeanliteError: it has no job in it, and no pause of it."""
        if all(each["name"] != tube for each in self.list_tubes({"like": tube})["tubes"]):
            suggestion = similar(tube, (each["name"] for each in self.list_tubes({"like": "*"})["tubes"]))
            raise BeanliteError(
                f"there is no tube {tube} in {self._path}: it has no job, and is not paused{suggestion}"
            )

    def stats(self) -> Record:
        """Return who has the file open, and how many jobs it has."""
        return self._look.stats()
