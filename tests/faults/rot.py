"""Random damage to a stopped file: ``python -m tests.faults.rot --seeds 2000 [--from SEED]``.

Each seed damages a copy of one file: a bit, a byte, a sector, a page, its end, or a value that gets another type. The
file is alternately that of a server stopped in an orderly way and that of a killed one, which does not record how many
jobs it has. Then the journal of a server starts on it, once with bodies in memory and once without. Either each job
that it would serve is the one that was stored, or the start is refused in one line, and then verify has to find
something wrong as well. An export and a backup have all jobs, or are refused. Salvage has to bring back every job that
is still sound, and no other, and to report what is missing. If more than one page has changed, salvage may bring back
deleted jobs, but then it must not report that nothing is lost.
"""

import argparse
import asyncio
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest import mock

from beanlite.core.engine import Engine
from beanlite.errors import BeanliteError
from beanlite.host.clock import Clock
from beanlite.journal import policy_rows, schedule_rows
from beanlite.journal.sqlite.file import replay
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served import recovery
from beanlite.journal.sqlite.served.journal import SqliteJournal
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.btree import Pages
from beanlite.journal.sqlite.tools.dump import dump
from beanlite.journal.sqlite.tools.look import looking
from beanlite.journal.sqlite.tools.salvage import salvage
from beanlite.journal.sqlite.tools.verify import reading_whole, verify
from tests.faults.damages import COLUMNS, JOBS, NOW_NS, PAGE, SINCE_BOOT_NS, damage, make
from tests.support.inside import abandon
from tests.support.journal_files import NO_HISTORY
from tests.support.policies import told

LINE_MAX = 600
# For starts that leave bodies in the file: how many bytes of bodies are in memory, and how many jobs are read at once.
BODY_BYTES, CHUNK = 10_000, 30
# How many columns a row of a large body has, and one of a job.
BODY_WIDTH, JOB_WIDTH = 2, 1 + len(COLUMNS["jobs"])
# The tables that have one page each, besides those of jobs.
SINGLE = {
    "meta": "SELECT last_id FROM meta",
    "pauses": "SELECT tube, pause_s, until FROM pauses ORDER BY tube",
    "server": "SELECT seen_at, ahead_s, boot, offset_ns FROM server",
    "policies": f"SELECT {policy_rows.COLUMNS} FROM policies ORDER BY pattern, key",  # noqa: S608
    "schedules": f"SELECT {schedule_rows.COLUMNS} FROM schedules ORDER BY name",  # noqa: S608
}
ROWS = """
    SELECT jobs.*, bodies.body FROM jobs LEFT JOIN bodies USING (id) ORDER BY id
"""


def jobs_of(path):
    """Return the jobs of a file, as lines of an export."""
    with reading_whole(path) as connection:
        return {line for line in dump(connection, path) if '"kind": "job"' in line}


def content_of(path):
    """Return the rows of the jobs of a sound file, by id, and those of the other tables, by table."""
    with closing(sqlite3.connect(path)) as connection:
        rows = {row[0]: row for row in connection.execute(ROWS)}
        return rows, {table: connection.execute(statement).fetchall() for table, statement in SINGLE.items()}


async def _start(path, max_bytes):
    """Return what a server would serve. BeanliteError: it refuses to start."""
    opened = []

    def opening(*arguments, **settings):
        opened.append(open_database(*arguments, **settings))
        return opened[-1]

    engine, clock = Engine(), Clock(lambda: SINCE_BOOT_NS, lambda: NOW_NS)
    if max_bytes is not None:
        engine.memory.bound(max_bytes, BODY_BYTES, fetches=True)
    journal = SqliteJournal(path, "always", 0, 65535, "unix:socket", NO_HISTORY)
    try:
        chunk = mock.patch.object(replay, "_CHUNK", CHUNK)  # so that not all bodies are read at once
        with mock.patch.object(recovery, "open_database", opening), chunk:
            await journal.recover(engine, clock, asyncio.Event())
        served, fetched = {}, 0
        for _, job_ids in engine.jobs.segments():
            for job_id in job_ids:
                job = engine.jobs[job_id]
                body = job.body
                if body is None:
                    fetched += 1
                    (body,) = await journal.fetch([job_id])
                served[job_id] = _seen(job, body)
        assert bool(fetched) == (max_bytes is not None), "bodies are where they should not be"
        pauses = {name: tube.pause_s for name, tube in engine.tubes.items() if tube.pause_until_ns}
        return served, pauses, told(engine), engine.ledger.taken_id, clock()
    finally:
        if hasattr(journal, "_bodies"):
            await abandon(journal)
        for database in opened:
            database.connection.close()
            os.close(database.file)
            os.close(database.index)


def _seen(job, body):
    past = job.past
    past_counts = (past.timeouts, past.releases, past.buries, past.kicks)
    place = None if job.state.value == "ready" else job.key
    put_as = (job.tube.name, job.state.value, job.pri, job.delay_s, job.ttr_s, job.created_ns, body, job.size)
    return (*put_as, place, job.reserves, past_counts, job.why)


def start(path, max_bytes=None):
    return asyncio.run(_start(path, max_bytes))


def _look(path):
    with looking(path) as look:
        look.list_jobs({"limit": 10 * JOBS, "preview": 60})
        look.show_job(JOBS)
        look.list_tubes({})
        look.stats()


class Rot:
    """A sound file, and the checks of damaged copies of it."""

    def __init__(self, folder, jobs=JOBS, *, orderly=True):
        self.folder = folder
        self.origin = folder / "origin.db"
        make(self.origin, jobs, orderly=orderly)
        self.lines = jobs_of(self.origin)
        self.jobs, self.rest = content_of(self.origin)
        with closing(Pages(self.origin)) as pages:
            self.trees = set(pages.in_use())
            self.pages, self.large = _pages_of_jobs(pages, self.trees)
        with closing(sqlite3.connect(self.origin)) as connection:
            roots = connection.execute("SELECT name, rootpage FROM sqlite_schema WHERE type = 'table'").fetchall()
        self.page_of_rest = {name: root for name, root in roots if name in SINGLE}
        unlike = self.pages.keys() ^ self.jobs.keys()
        assert not unlike, f"a file has jobs and pages with jobs, but these in one of both: {sorted(unlike)[:9]}"
        shutil.copy(self.origin, folder / "queue.db")
        _look(folder / "queue.db")
        self.served = start(folder / "queue.db")
        self.clean()
        self.counts = Counter()

    def clean(self):
        for file in self.folder.glob("*"):
            if file != self.origin:
                file.unlink()

    def try_seed(self, seed):
        """Try one random damage; return what went wrong, an empty list if nothing did."""
        return [f"seed {seed}, {each}" for each in self.try_damage(partial(damage, chance=random.Random(seed)))]

    def try_copy(self, source, target):
        """The same after the disk has written one page over another."""

        def copy(path):
            content = bytearray(path.read_bytes())
            content[(target - 1) * PAGE : target * PAGE] = _page(content, source)
            path.write_bytes(content)
            return f"page {source} stands over {target}"

        return self.try_damage(copy)

    def try_damage(self, damaging):
        """The same with any damage: a function that gets the path, and returns a description of what it did."""
        path = self.folder / "queue.db"
        self.clean()
        shutil.copy(self.origin, path)
        what = damaging(path)
        damaged = path.read_bytes()
        wrong = []
        for look in (self._look_at_salvage, self._look_at_copies, self._look_at_verify_and_start):
            try:
                wrong += look(path)
            except Exception as error:  # noqa: BLE001 - the test is that there is none
                wrong.append(f"{type(error).__name__}: {error} at {_place(error)}")
            if look != self._look_at_verify_and_start and path.read_bytes() != damaged:
                wrong.append("it was written to")
        return [f"{what}: {each}" for each in wrong]

    def _look_at_verify_and_start(self, path):
        findings = [finding for finding in verify(path) if not finding.sound]
        self.counts["verify: damaged" if findings else "verify: sound"] += 1
        wrong = [each for finding in findings for each in _check_line(finding.said)]
        for max_bytes in (1 << 20, None):  # a start that serves may write
            copy = path.with_name(f"copy-{max_bytes}.db")
            shutil.copy(path, copy)
            try:
                served = start(copy, max_bytes)
            except BeanliteError as error:
                self.counts["start refused"] += 1
                wrong += _check_line(error)
                if not findings:
                    wrong.append(f"verify finds nothing, and the start is refused: {error}")
            else:
                self.counts["started"] += 1
                if served != self.served:
                    wrong.append(f"the start serves {_difference(served, self.served)}")
        return wrong

    def _look_at_copies(self, path):
        """Check that exports and backups have all jobs or are refused, and that a look has an answer or is refused."""
        wrong = []
        for name, look in (("export", jobs_of), ("backup", self._backup)):
            try:
                found = look(path)
            except BeanliteError as error:
                wrong += _check_line(error)
            else:
                if found != self.lines:
                    wrong.append(
                        f"the {name} lacks {len(self.lines - found)} jobs, and has {len(found - self.lines)} others"
                    )
        try:
            _look(path)
        except BeanliteError as error:
            wrong += _check_line(error)
        return wrong

    def _backup(self, path):
        dest = self.folder / "backup.db"
        backup(path, dest)
        return jobs_of(dest)

    def _look_at_salvage(self, path):
        sound, sound_rest = self.sound(path)
        dest = self.folder / "saved.db"
        try:
            result = salvage(path, dest)
        except BeanliteError as error:
            self.counts["salvage refused"] += 1
            return _check_line(error) + ([f"{len(sound)} sound jobs are not salvaged"] if sound else [])
        jobs, rest = content_of(dest)
        self.counts["salvage: whole" if result.is_all else "salvage: in part"] += 1
        self.counts["jobs salvaged"] += len(jobs)
        self.counts["jobs not salvaged"] += len(self.jobs.keys() - jobs.keys())
        wrong = [f"what is salvaged is not sound: {finding.said}" for finding in verify(dest) if not finding.sound]
        others = {job_id for job_id, row in jobs.items() if row != self.jobs.get(job_id)}
        if others - set(result.doubtful) and (result.is_all or len(self.changed(path)) == 1):
            wrong.append(f"salvage brings {len(others)} jobs that were not stored: {sorted(others)[:9]}")
        if missing := sound - jobs.keys():
            wrong.append(f"{len(missing)} sound jobs are not salvaged: {sorted(missing)[:9]}")
        if named := set(result.lost) & jobs.keys():
            wrong.append(f"jobs are named as lost, and saved: {sorted(named)[:9]}")
        if result.is_all and (jobs, rest) != (self.jobs, self.rest):
            changed = [table for table in SINGLE if rest[table] != self.rest[table]]
            wrong.append(f"salvage says that nothing is lost: {len(jobs)} of {len(self.jobs)} jobs, {changed} differ")
        wrong += [f"{table} is sound, and not salvaged" for table in sound_rest if rest[table] != self.rest[table]]
        wrong += [
            f"salvage brings other {table}: {rest[table]}"
            for table in ("pauses", "policies", "schedules")
            if not set(rest[table]) <= set(self.rest[table])
        ]
        if rest["meta"] < self.rest["meta"]:
            wrong.append(f"ids may be given out again: {rest['meta']}")
        if rest["server"] not in ([], self.rest["server"]):
            wrong.append(f"salvage brings another clock: {rest['server']}")
        return wrong

    def changed(self, path):
        """Return the pages that have changed."""
        before, after = self.origin.read_bytes(), path.read_bytes()
        pages = range(1, len(before) // PAGE + 1)
        return {page for page in pages if _page(before, page) != _page(after, page)}

    def sound(self, path):
        """Return the jobs and the other tables on unchanged pages: at least these have to be salvaged.

        If more than one page has changed, nothing counts as sound: the lists of pages may contradict each other.
        """
        changed = self.changed(path)
        if len(changed) > 1 and path.stat().st_size >= self.origin.stat().st_size:
            return set(), []
        is_rest_sound = not changed - self.trees
        jobs = {
            job_id
            for job_id in self.jobs
            if not self.pages[job_id] & changed and (is_rest_sound or job_id not in self.large)
        }
        return jobs, [table for table, page in self.page_of_rest.items() if page not in changed]


def _pages_of_jobs(pages, trees):
    """Return the tree pages of each job, and the jobs whose body is on pages of its own."""
    found, large = {}, set()
    for page in trees:
        for rowid, values in pages.rows(page):
            if len(values) in {BODY_WIDTH, JOB_WIDTH} and values[0] is None:
                found.setdefault(rowid, set()).add(page)
            if len(values) == BODY_WIDTH:
                large.add(rowid)
    return found, large


def _page(content, number):
    return content[(number - 1) * PAGE : number * PAGE]


def _check_line(said):
    text = str(said)
    return [f"this is no line: {text!r:.200}"] if not text.isprintable() or len(text) > LINE_MAX else []


def _place(error):
    """Return where in our code an error was raised."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((f"{each.filename}:{each.lineno}" for each in frames if "/beanlite/" in each.filename), "?")


def _difference(served, expected):
    jobs, others = served[0], expected[0]
    missing = sorted(others.keys() - jobs.keys())
    changed = sorted(job_id for job_id in jobs if jobs[job_id] != others.get(job_id))
    rest = "" if served[1:] == expected[1:] else f", {served[1:]} for {expected[1:]}"
    return f"without {missing[:5]}, and with {changed[:5]} changed{rest}"


def _rot(folder, *, orderly):
    folder.mkdir()
    return Rot(folder, orderly=orderly)


def main():
    parser = argparse.ArgumentParser(description="Damage a stopped file at random, and see what becomes of it.")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rots = [_rot(Path(folder) / "stopped", orderly=True), _rot(Path(folder) / "killed", orderly=False)]
        wrong = 0
        for seed in range(options.first, options.first + options.seeds):
            for each in rots[seed % 2].try_seed(seed):
                wrong += 1
                sys.stdout.write(f"{each}\n")
                sys.stdout.flush()
    counts = rots[0].counts + rots[1].counts
    sys.stdout.write(f"{options.seeds} damages, {wrong} things wrong; {dict(sorted(counts.items()))}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
