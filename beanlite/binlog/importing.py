"""From a directory of beanstalkd's to a database of ours."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beanlite.binlog.survey import LeftOut, Survey, find_files, held
from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.filling import filling

# How many jobs are written between two calls of who shows the progress.
_JOBS_PER_CALL = 1000


@dataclass(frozen=True, slots=True)
class Imported:
    """What has come into the database, and what has not."""

    jobs: int
    ready: int
    delayed: int
    buried: int
    last_id: int
    """The highest id in the binlog, of a deleted job as well; later jobs get higher ones."""
    left_out: list[LeftOut]
    """A record that was not written to its end is normal where beanstalkd was killed; the rest is damage."""
    without_body: list[int]
    """Ids of jobs that were changed later on, but whose own record, with the body, was in no file. Normally none."""
    left: str | None
    """What is left beside the database and why: it belongs to it. Normally nothing."""


def import_binlog(
    directory: Path, db: Path, *, salvage: bool = False, progress: Callable[[int], None] | None = None
) -> Imported:
    """Fill the database with all jobs of the binlog, or leave it as it is; the directory is only read.

    ``salvage``: leave out what is damaged. `progress` is called with the percentage that is done. BinlogRefused:
    a beanstalkd is running on the directory, it has no binlog, or a damaged one. JournalRefused: the database has jobs,
    or can't be used. BeanliteError: something can't be read or written.
    """
    with held(directory), filling(db) as queue:
        if queue.has_jobs():
            raise JournalRefused(f"{db} has jobs already; name a new file, or an empty queue")
        survey = _read(directory, salvage=salvage, progress=progress)
        states = {"ready": 0, "delayed": 0, "buried": 0}
        for number, job in enumerate(survey.new_jobs()):
            queue.add(job)
            states[job.state] += 1
            if progress is not None and number % _JOBS_PER_CALL == 0:
                progress(50 + 50 * number // len(survey.jobs))
        queue.set_last_id(survey.last_id)
    return Imported(
        len(survey.jobs),
        **states,
        last_id=survey.last_id,
        left_out=survey.left_out,
        without_body=sorted(survey.without_body),
        left=queue.left,
    )


def _read(directory: Path, *, salvage: bool, progress: Callable[[int], None] | None) -> Survey:
    files = find_files(directory)
    survey = Survey(salvage=salvage)
    for done, (number, file) in enumerate(files):
        if progress is not None:
            progress(50 * done // len(files))
        survey.read(number, file)
    return survey
