"""Imports beanstalkd's binlog directory into a beanlite database."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beanlite.binlog.survey import Omission, Survey, find_files, lock
from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.tools.filling import filling

# How many jobs are written between two calls of ``progress``.
_JOBS_PER_CALL = 1000


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What was imported, and what was left out."""

    jobs: int
    ready: int
    delayed: int
    buried: int
    last_id: int
    """The highest id in the binlog, of a deleted job as well; later jobs get higher ones."""
    left_out: list[Omission]
    """An incomplete last record is normal if beanstalkd was killed; anything else is damage."""
    without_body: list[int]
    """Ids of jobs with updates, but without a full record, which has the body, in any file. Normally none."""
    left: str | None
    """A file that stays beside the database, to which it belongs, and why. Normally none."""


def import_binlog(
    directory: Path, db: Path, *, salvage: bool = False, progress: Callable[[int], None] | None = None
) -> ImportResult:
    """Write all jobs of the binlog to the database, or leave it unchanged; the directory is only read.

    ``salvage``: leave out what is damaged. `progress` is called with the percentage done. BinlogRefused: beanstalkd is
    running on the directory, or the binlog is missing or damaged. JournalRefused: the database has jobs, or can't be
    used. BeanliteError: something can't be read or written.
    """
    with lock(directory), filling(db) as queue:
        if queue.has_jobs():
            raise JournalRefused(f"{db} has jobs already; name a new file, or an empty queue")
        survey = _read(directory, salvage=salvage, progress=progress)
        states = {"ready": 0, "delayed": 0, "buried": 0}
        for number, job in enumerate(survey.new_jobs()):
            queue.add(job)
            states[job["state"]] += 1
            if progress is not None and number % _JOBS_PER_CALL == 0:
                progress(50 + 50 * number // len(survey.jobs))
        queue.set_last_id(survey.last_id)
    return ImportResult(
        len(survey.jobs),
        **states,
        last_id=survey.last_id,
        left_out=survey.left_out,
        without_body=sorted(survey.without_body),
        left=queue.leftover,
    )


def _read(directory: Path, *, salvage: bool, progress: Callable[[int], None] | None) -> Survey:
    files = find_files(directory)
    survey = Survey(salvage=salvage)
    for position, (number, file) in enumerate(files):
        if progress is not None:
            progress(50 * position // len(files))
        survey.read(number, file)
    return survey
