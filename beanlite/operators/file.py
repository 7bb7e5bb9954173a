"""A database file, asked as a server is."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from beanlite.errors import BeanliteError
from beanlite.journal.sqlite.look import Look, looking
from beanlite.operators.filters import Record


class File:
    """An open file. JournalRefused: it can't be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        try:
            self._look: Look = self._runner.run(self._stack.enter_async_context(looking(path.resolve())))
        except BaseException:
            self._runner.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def list_jobs(self, request: Record) -> Record:
        """A slice of the jobs."""
        return self._runner.run(self._look.list_jobs(request))

    def list_tubes(self, request: Record) -> Record:
        """All tubes."""
        return self._runner.run(self._look.list_tubes(request))

    def show_job(self, job_id: int) -> Record | None:
        """All that is known of a job."""
        return self._runner.run(self._look.show_job(job_id))

    def check_tube(self, tube: str) -> None:
        """BeanliteError: there is no such tube, as far as a file can tell."""
        if all(each["name"] != tube for each in self.list_tubes({"like": tube})["tubes"]):
            raise BeanliteError(f"there is no tube {tube} in {self._path}: it has no job, and is not paused")

    def stats(self) -> Record:
        """Who has the file, and how many jobs there are."""
        return self._runner.run(self._look.stats())
