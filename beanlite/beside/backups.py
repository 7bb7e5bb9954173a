"""Scheduled backups, each made by a process of its own, so that no client waits for one."""

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final

from beanlite.beside.child import Child, Parent, run_module
from beanlite.host import log
from beanlite.host.signals import how_ended
from beanlite.journal.sqlite.file.dated import dated_backups
from beanlite.journal.sqlite.file.fileformat import size_of
from beanlite.journal.sqlite.file.room import RESERVE_BYTES

# After a failure the next backup is made this soon, or when it would be due anyway.
_AGAIN_S: Final = 60
# A backup on the disk of the database has to leave this much room for jobs: else it would have puts refused.
_LEFT_BYTES: Final = 2 * RESERVE_BYTES
# By how much a backup is nicer than the server, as in nice(1).
_NICE: Final = 19


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def why_failed(output: bytes, returncode: int) -> str:
    """Return why a process that was to make a backup failed: its last line or, if it said nothing, how it ended."""
    return _last_line(output).removeprefix("beanlite: ") or how_ended(returncode)


def _made(output: bytes) -> dict[str, Any] | None:
    """Return what a process printed of the backup that it made; None: nothing that can be read."""
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError):
            result = json.loads(line)
            if isinstance(result, dict) and result.keys() >= {"file", "jobs", "size", "seconds"}:
                return result
    return None


class Backups(Parent):
    """Makes backups of a database into a folder; the first is due one interval after the newest one in the folder.

    The folder may hang, as one on NFS does while its server is away: the loop never looks at it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, db: Path, folder: Path, every_s: int, keep: int) -> None:
        super().__init__(loop)
        self._db = Path(os.path.realpath(db))
        self._folder = folder.absolute()
        self._every_s = every_s
        flags = ["--db", str(self._db), "--keep", str(keep), "--json"]
        self._command = run_module("beanlite", "backup", str(self._folder), *flags)
        self._output: IO[bytes]
        """What the backup's process prints."""
        self._is_looking = False
        """A thread looks at the folder."""
        self.succeeded_at = 0
        """When the newest backup was made, in UTC seconds; 0: there is none, or none was found yet."""
        self.failed_at = 0
        """When a backup last failed, in UTC seconds; 0: none has since the start."""

    def begin(self) -> None:
        """Schedule the first backup for when it is due: at once if there is none in the folder yet."""
        self._timer = self._loop.call_later(self._every_s, self._make)
        self._look(self._newest, self._schedule)

    def _look(self, look: Callable[[], Any], go_on: Callable[[Any], None]) -> None:
        """Look at the folder in a thread, and go on in the loop with what it saw."""

        def end(seen: object) -> None:
            self._is_looking = False
            if not self._is_over:
                go_on(seen)

        def run() -> None:
            seen = look()
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended meanwhile
                self._loop.call_soon_threadsafe(end, seen)

        try:
            Thread(target=run, name="backups", daemon=True).start()  # the end of the server does not wait for it
        except RuntimeError as error:  # the system has no more threads for us
            self._report_failure(str(error))
        else:
            self._is_looking = True

    def _newest(self) -> tuple[float, bool]:
        """Return when the newest backup was made, 0 if there is none, and whether it is on the disk of the database."""
        made_s = 0.0
        with contextlib.suppress(OSError):  # the first backup will report what is wrong with the folder
            backups = dated_backups(self._folder, self._db)
            if backups:
                newest, made_s = backups[-1]
                now_s = time.time()
                if made_s > now_s:  # the clock has been put back; names go on from the newest one all the same
                    made_s = min(newest.stat().st_mtime, now_s)
            return made_s, self._shares_disk()
        return made_s, False

    def _schedule(self, seen: tuple[float, bool]) -> None:
        made_s, shares_disk = seen
        self.succeeded_at = int(made_s)
        if shares_disk:
            log.warning("backup_dir is on the disk of the database", backup_dir=self._folder)
        in_s = self.succeeded_at + self._every_s - time.time()
        self._make_in(min(max(0.0, in_s), self._every_s))

    def _make_in(self, in_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(in_s, self._make)

    def _make(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._make)
        if self._child is not None or self._is_looking:
            log.warning("backup takes longer than backup_every", seconds=self._every_s)
            return
        self._look(self._has_room, self._start)

    def _start(self, has_room: bool) -> None:  # noqa: FBT001 - it is all that was looked for
        if not has_room:
            self._report_failure(
                f"it would leave too little room for jobs on the disk of {self._db}, which {self._folder} shares"
            )
            return
        with contextlib.ExitStack() as undo:
            try:
                # It is only read at the end, so that it is no pipe; and no file on a disk, which may be full.
                output = undo.enter_context(os.fdopen(os.memfd_create("backup"), "w+b"))
                child = Child(self._loop, self._command, self._report, stdout=output)
            except OSError as error:
                self._report_failure(str(error))
                return
            undo.pop_all()
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, child.process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        self._child, self._output = child, output
        child.watch()

    def _shares_disk(self) -> bool:
        return self._db.stat().st_dev == self._folder.stat().st_dev

    def _has_room(self) -> bool:
        """Whether a backup leaves room for jobs. An error is left for the backup to report."""
        with contextlib.suppress(OSError):
            if self._shares_disk():
                return shutil.disk_usage(self._folder).free >= size_of(self._db) + _LEFT_BYTES
        return True

    def _report(self, returncode: int) -> None:
        """Report how the process of a backup has ended."""
        if self._is_over:
            return  # ``wait`` sees to it: the server is about to end, or the settings have changed
        self._child = None
        with self._output as output:
            output.seek(0)
            text = output.read()
        made = _made(text)
        if made is None and returncode:
            self._report_failure(why_failed(text, returncode))
            return
        self.succeeded_at = int(time.time())
        if made is None:
            log.warning("backup made, but its report can't be read", report=_last_line(text))
            return
        log.info("backup made", file=made["file"], jobs=made["jobs"], bytes=made["size"], seconds=made["seconds"])
        if returncode:  # an old one can't be deleted; a new one would change nothing about that
            log.warning("backup made with an error", error=why_failed(text, returncode))

    def _report_failure(self, why: str) -> None:
        self.failed_at = int(time.time())
        in_s = min(self._every_s, _AGAIN_S)
        self._make_in(in_s)
        log.error("backup failed", error=why, next_in_s=in_s)

    async def wait(self) -> None:
        """Wait until no backup reads the database any more, or leaves anything behind; to be called after ``end``."""
        child = self._child
        if child is None:
            return
        await child.wait()
        if self._child is child:  # at a stop amid a reload, this has been called twice
            self._child = None
            self._output.close()
            log.info("stopped during a backup")
