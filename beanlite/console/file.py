"""A database file, with the same methods for questions as a server."""

import os
import re
from pathlib import Path
from typing import Final

from beanlite.console.filters import Record
from beanlite.console.names import similar
from beanlite.console.stored import Stored
from beanlite.core.policies import KEYS, Policies
from beanlite.errors import BeanliteError, ConfigError
from beanlite.journal.sqlite.tools.look import looking

# Where to continue in a list: an id, or the number of jobs so far. More digits than this no number in SQLite has.
_CURSOR: Final = re.compile("[0-9]{1,18}")


class File(Stored):
    """An open file. JournalRefused: it can't be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__()
        self.look = self._file = self._stack.enter_context(looking(Path(os.path.realpath(path))))

    def list_jobs(self, request: Record) -> Record:
        """Return a slice of the jobs. ConfigError: the cursor is none, or is a server's."""
        after = request.get("after")
        if after is not None and _CURSOR.fullmatch(after) is None:
            raise ConfigError(f"--after: {after!r} is not from a list of a file's jobs")
        return self._file.list_jobs(request)

    def group_jobs(self, request: Record) -> Record:
        """Return how many jobs have each value, all at once."""
        return self._file.group_jobs(request)

    def list_tubes(self, request: Record) -> Record:
        """Return all tubes."""
        return self._file.list_tubes(request)

    def list_policies(self, request: Record) -> Record:
        """Return all policies or, with ``tube``, those that hold for that tube."""
        rows = self._file.list_policies()
        if "tube" in request:
            policies = Policies()
            policies.change(rows)
            effective = policies.effective(request["tube"].encode())
            rows = [effective[key] for key in KEYS if key in effective]
        return {"policies": [{**row._asdict(), "pattern": row.pattern.decode()} for row in rows]}

    def check_tube(self, tube: str) -> None:
        """Check that the file has a tube. BeanliteError: it has no job in it, and no pause of it."""
        if all(each["name"] != tube for each in self.list_tubes({"like": tube})["tubes"]):
            suggestion = similar(tube, (each["name"] for each in self.list_tubes({"like": "*"})["tubes"]))
            raise BeanliteError(
                f"there is no tube {tube} in {self._path}: it has no job, and is not paused{suggestion}"
            )

    def stats(self) -> Record:
        """Return who has the file open, and how many jobs it has."""
        return self._file.stats()
