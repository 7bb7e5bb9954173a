"""A database file, asked as a server is."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from beanlite.journal.sqlite.look import Look, looking
from beanlite.operators.filters import Record


class File:
    """An open file. JournalRefused: it can't be read."""

    def __init__(self, path: Path) -> None:
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

    def stats(self) -> Record:
        """Who has the file, and how many jobs there are."""
        return self._runner.run(self._look.stats())
