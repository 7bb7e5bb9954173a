"""The state of each job after all files of a binlog have been read.

Bodies are not kept: only their positions are noted, and they are read when needed.
"""

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.binlog.records import (
    BURIED,
    CRLF,
    DELAYED,
    GONE,
    READY,
    RESERVED,
    VERSION_BYTES,
    Format,
    Gap,
    Record,
    format_of,
    likely_format,
    records,
)
from beanlite.errors import BeanliteError, BinlogRefused
from beanlite.journal.sqlite.file.fileformat import open_regular
from beanlite.journal.sqlite.tools.filling import JobRow

_NAME: Final = re.compile(r"binlog\.(0|[1-9][0-9]*)")
# Reserved jobs become ready, because the clients that had reserved them are gone.
_STATES: Final = {READY: "ready", RESERVED: "ready", BURIED: "buried", DELAYED: "delayed"}


class LiveJob(NamedTuple):
    """A job that has not been deleted."""

    tube: bytes
    file: Path
    """The file with the job's last full record, which has the body."""
    body_at: int
    body_size: int
    form: Format
    """The format of ``job``: the last record may be in a newer format than the last full one."""
    job: bytes
    """The bytes of the job in its last record."""


@dataclass(frozen=True, slots=True)
class Omission:
    """A part of the binlog that could not be read."""

    file: str
    at: int
    size: int
    """In bytes, like ``at``."""
    why: str


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Keep beanstalkd out of the directory with its own lock. BinlogRefused: a beanstalkd is running on it.

    Without a lock file, beanstalkd has never run there: the directory is a copy, and no lock file is created in it.
    """
    file = directory / "lock"
    with ExitStack() as undo:
        try:
            lock = open_regular(file)
            undo.callback(os.close, lock)
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, NotADirectoryError):  # if the directory can't be read, reading it reports the error
            pass
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise BinlogRefused(f"a beanstalkd is running on {directory}; stop it first") from error
            raise BeanliteError(f"{file} can't be opened and locked: {error.strerror}") from error
        yield


def find_files(directory: Path) -> list[tuple[int, Path]]:
    """Return the files of the binlog with their numbers, in the order in which they were written."""
    try:
        paths = list(directory.iterdir())
    except OSError as error:
        raise BeanliteError(f"{directory} can't be read: {error.strerror}") from error
    files = sorted((int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name)))
    if not files:
        raise BinlogRefused(f"{directory} has no binlog: no file binlog.1 or the like")
    return files


class Survey:
    """The state of the jobs after the files read so far; ``read`` is to be called with the files in order."""

    def __init__(self, *, salvage: bool) -> None:
        self._salvage = salvage
        self.jobs: dict[int, LiveJob] = {}
        self.left_out: list[Omission] = []
        self.last_id = 0
        self.without_body: set[int] = set()
        """Ids of jobs with updates, but without a full record in any of these files."""
        self._tubes: dict[bytes, bytes] = {}  # interns names
        self._number = 0  # of the last file
        self._records = 0
        self._burials: dict[int, int] = {}  # of each buried job, its place in the order of burials

    def read(self, number: int, file: Path) -> None:
        """Read the next file. BinlogRefused: it is damaged. BeanliteError: it can't be read."""
        if self._number and number != self._number + 1:
            self._leave_out(file, 0, 0, f"the files between binlog.{self._number} and this one are missing")
        self._number = number
        try:
            with os.fdopen(open_regular(file), "rb") as stream:
                data = stream.read()
        except OSError as error:
            raise BeanliteError(f"{file} can't be read: {error.strerror}") from error
        try:
            form = format_of(data, str(file))
        except BinlogRefused:
            if not self._salvage:
                raise
            form = likely_format(data)
            if form is None:
                self._leave_out(file, 0, len(data), "it does not begin as a binlog")
            else:
                self._leave_out(file, 0, VERSION_BYTES, "it does not begin as a binlog, but has records")
        if form is None:
            return
        for each in records(data, form):
            if isinstance(each, Record):
                self._take(each, form, file)
            else:
                self._pass_over(each, file)

    def _pass_over(self, gap: Gap, file: Path) -> None:
        size = gap.end - gap.at
        if gap.is_torn:
            why = f"the last record, of which no more than {size} bytes were written"
            self.left_out.append(Omission(file.name, gap.at, size, why))
        else:
            self._leave_out(file, gap.at, size, f"{size} bytes from byte {gap.at} on are no record")

    def _leave_out(self, file: Path, at: int, size: int, why: str) -> None:
        if not self._salvage:
            raise BinlogRefused(f"{file} is damaged: {why}; --salvage goes on without that")
        self.left_out.append(Omission(file.name, at, size, why))

    def _take(self, record: Record, form: Format, file: Path) -> None:
        self._records += 1
        job_id = record.id
        self.last_id = max(self.last_id, job_id)
        # beanstalkd deletes files, the oldest first, once each job in them is deleted or rewritten to a later file. So
        # updates of a job may come before its full record. They tell in which order jobs were buried.
        if record.state != BURIED:
            self._burials.pop(job_id, None)
        elif not (record.tube and job_id in self._burials):
            self._burials[job_id] = self._records
        if record.state == GONE:
            self.jobs.pop(job_id, None)
            self.without_body.discard(job_id)
        elif record.tube:
            tube = self._tubes.setdefault(record.tube, record.tube)
            self.jobs[job_id] = LiveJob(
                tube, file, record.body_at, record.end - record.body_at - len(CRLF), form, record.job
            )
            self.without_body.discard(job_id)
        elif job_id in self.jobs:
            self.jobs[job_id] = self.jobs[job_id]._replace(form=form, job=record.job)
        else:
            self.without_body.add(job_id)

    def new_jobs(self) -> Iterator[JobRow]:
        """Yield all jobs with their bodies, by ascending id. BeanliteError: a file can't be read."""
        for file, job_ids in groupby(sorted(self.jobs), lambda job_id: self.jobs[job_id].file):
            try:
                with file.open("rb", buffering=0) as stream:
                    for job_id in job_ids:
                        yield self._new_job(self.jobs[job_id], stream.fileno())
            except OSError as error:
                raise BeanliteError(f"{file} can't be read: {error.strerror}") from error

    def _new_job(self, live: LiveJob, file: int) -> JobRow:
        """Return the job, with its body read from this file descriptor."""
        job = live.form.read(live.job)
        second = live.form.second
        body = os.pread(file, live.body_size, live.body_at)
        if len(body) != live.body_size:
            raise BeanliteError(f"{live.file} has changed since it was first read")
        return JobRow(
            id=job.id,
            tube=live.tube.decode(),
            state=_STATES[job.state],
            pri=job.pri,
            delay_s=job.delay // second,
            ttr_s=job.ttr // second,
            created_at=job.created_at / second,
            due_at=job.deadline_at / second if job.state == DELAYED else None,
            buried_seq=self._burials.get(job.id),
            reserves=job.reserves,
            timeouts=job.timeouts,
            releases=job.releases,
            buries=job.buries,
            kicks=job.kicks,
            body=body,
        )
