"""The backups of a server: lists them, and makes one on request."""

import asyncio
import contextlib
import subprocess
from pathlib import Path
from typing import NamedTuple

from beanlite.beside.backups import why_failed
from beanlite.beside.child import run_module
from beanlite.errors import BeanliteError
from beanlite.journal.sqlite.file.dated import dated_backups
from beanlite.settings.sources import bare_environment


class Backup(NamedTuple):
    """A backup."""

    name: str
    made_at: float
    """In UTC seconds."""
    size: int


class Folder:
    """A folder for backups of one database. Each is made by a process of its own; no older one is deleted for it."""

    def __init__(self, path: Path, db: Path) -> None:
        self.path = path
        self._db = db
        self._making: asyncio.Task[None] | None = None
        self.error = ""
        """Why the last backup requested here failed; empty if it did not."""

    @property
    def is_busy(self) -> bool:
        """Whether a backup requested here is being made."""
        return self._making is not None and not self._making.done()

    def existing(self) -> list[Backup]:
        """Return the existing backups, the newest first. OSError: the folder can't be read."""
        backups = []
        for file, made_at in reversed(dated_backups(self.path, self._db)):
            with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile, for a newer one
                backups.append(Backup(file.name, made_at, file.stat().st_size))
        return backups

    def begin(self) -> asyncio.Task[None]:
        """Start making a backup. BeanliteError: one is being made already."""
        if self.is_busy:
            raise BeanliteError("a backup is being made already")
        self.error = ""
        self._making = asyncio.create_task(self._make())
        return self._making

    async def _make(self) -> None:
        folder = f"{self.path}/"  # without the slash, a file of that name would be made if the folder is missing
        command = run_module("beanlite", "backup", folder, "--db", str(self._db))
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=bare_environment(),
            )
        except OSError as error:
            self.error = str(error)
            return
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()  # it cleans up after itself
            await process.wait()
            raise
        if process.returncode:
            self.error = why_failed(output, process.returncode)

    async def close(self) -> None:
        """Cancel a backup that is being made."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
