"""Random damages to a stopped file: ``python -m tests.faults.rot --seeds 2000 [--from SEED]``.

Each seed damages a copy of one file: a bit, a byte, a page, its end, or a value that gets another type. Then a server
starts on it, as far as a journal goes, and each job that it would serve has to be the one that was stored, or the
start is refused in one line; verify has to find something wrong, or what is served is whole; and salvage has to bring
back every job that is still sound, and no other.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import closing
from pathlib import Path
from unittest import mock

from beanlite.clock import Clock, utc_s
from beanlite.core.engine import Engine
from beanlite.errors import BeanliteError
from beanlite.journal.sqlite import journal as journal_module
from beanlite.journal.sqlite.database import open_database
from beanlite.journal.sqlite.dump import dump
from beanlite.journal.sqlite.journal import SqliteJournal
from beanlite.journal.sqlite.mark import boot_id
from beanlite.journal.sqlite.pages import Pages
from beanlite.journal.sqlite.reading import reading
from beanlite.journal.sqlite.salvage import salvage
from beanlite.journal.sqlite.verify import verify
from tests.support.inside import abandon
from tests.support.journal_files import NO_HISTORY, put, unchecked

PAGE = 4096
JOBS = 700
LINE_MAX = 600
# What no column may hold, as SQL.
WRONG = ("NULL", "-1", "1.5", "''", "'text'", "x''", "x'ff00'", "CAST(x'ff' AS TEXT)", "9223372036854775807")
COLUMNS = {
    "jobs": (
        "tube state pri delay_s ttr_s created_at due_at buried_seq reserves timeouts releases buries kicks crc32 body"
        " since holder holder_conn why row_crc32"
    ).split(),
    "bodies": ["body"],
    "meta": ["batch", "last_id", "unchecked_id", "jobs"],
    "pauses": ["pause_s", "until"],
    "server": ["seen_at", "boot", "offset_ns"],
}
# When all of it happens, by the machine's clock since 2000, and since it was booted.
NOW_NS, SINCE_BOOT_NS = 850_000_000_250_000_000, 3_600_000_000_000
KINDS = ("bit", "bit", "byte", "byte", "zeros", "noise", "copy", "cut", "value", "value")


def make(path, jobs):
    """A stopped file with jobs in all states, bodies of all sizes, pauses, and free pages with jobs that are gone."""
    chance = random.Random(7)
    with closing(open_database(path)) as database:
        execute = database.connection.execute
        execute("BEGIN")
        for number in range(1, jobs + 1):
            state = ("ready", "delayed", "reserved", "buried")[number % 4]
            body = chance.randbytes(chance.choice([0, 20, 100, 300, 900, 2000, 9000]))
            put(
                database.connection,
                number,
                body,
                large=len(body) > 1024,
                tube=chance.choice(["default", "a", "other-tube"]),
                state=state,
                pri=chance.choice([0, 1, 1000, 2**32 - 1]),
                delay_s=chance.choice([0, 1, 100]),
                due_at=chance.choice([4e9, 4.1e9 + number / 7]) if state in {"delayed", "reserved"} else None,
                buried_seq=number if state == "buried" else None,
                reserves=number % 3,
                **({"timeouts": number % 3, "kicks": 1} if number % 5 == 0 else {}),
                **({"holder": "10.0.0.1:7", "holder_conn": number} if state == "reserved" else {}),
            )
        execute("INSERT INTO pauses VALUES ('default', 60, 4e9), ('other-tube', 5, 4.1e9)")
        seen_s, offset_ns = utc_s(NOW_NS), NOW_NS - SINCE_BOOT_NS
        execute(
            "INSERT INTO server VALUES (1, '1', 1, 'unix:socket', ?, ?, ?, 0, ?, ?)",
            (seen_s, seen_s, seen_s, boot_id(), offset_ns),
        )
        execute("COMMIT")
        execute("BEGIN")
        for table in ("jobs", "bodies"):
            execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ? OR id % 11 = 0", (jobs // 3, jobs // 2))  # noqa: S608
        (count,) = execute("SELECT count(*) FROM jobs").fetchone()
        execute("UPDATE meta SET batch = 9, last_id = ?, jobs = ?", (jobs, count))
        execute("COMMIT")


def jobs_of(path):
    """The jobs of a file, as an export tells."""
    with reading(path) as connection:
        return {line for line in dump(connection, path) if '"kind": "job"' in line}


def damage(path, chance):
    """Damage the file in one way, and return which."""
    kind = chance.choice(KINDS)
    if kind == "value":
        return _damage_value(path, chance)
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content))
    page = place // PAGE * PAGE
    if kind == "bit":
        content[place] ^= 1 << chance.randrange(8)
    elif kind == "byte":
        content[place] = (content[place] + chance.randrange(1, 256)) % 256
    elif kind == "zeros":
        content[page : page + PAGE] = bytes(PAGE)
    elif kind == "noise":
        content[page : page + PAGE] = chance.randbytes(PAGE)
    elif kind == "copy":
        other = chance.randrange(len(content) // PAGE) * PAGE
        content[page : page + PAGE] = content[other : other + PAGE]
    else:
        del content[place:]
    path.write_bytes(content)
    return f"{kind} at {place}"


def _damage_value(path, chance):
    table = chance.choice(["jobs", "jobs", "jobs", "bodies", "meta", "pauses", "server"])
    column, value = chance.choice(COLUMNS[table]), chance.choice(WRONG)
    with unchecked(path) as connection:
        key = {"pauses": "tube", "meta": "one", "server": "one"}.get(table, "id")
        keys = [key for (key,) in connection.execute(f"SELECT {key} FROM {table}")]  # noqa: S608 - our own words
        statement = f"UPDATE {table} SET {column} = {value}"  # noqa: S608 - likewise
        row = chance.choice(keys)
        connection.execute(f"{statement} WHERE {key} = ?", (row,))
    return f"{statement} of {row}"


async def _start(path):
    """What a server would serve; BeanliteError: it refuses."""
    opened = []

    def opening(*arguments, **settings):
        opened.append(open_database(*arguments, **settings))
        return opened[-1]

    engine, clock = Engine(), Clock(lambda: SINCE_BOOT_NS, lambda: NOW_NS)
    journal = SqliteJournal(path, "always", 0, 65535, "unix:socket", NO_HISTORY)
    try:
        with mock.patch.object(journal_module, "open_database", opening):
            await journal.recover(engine, clock, asyncio.Event())
        served = {}
        for _, jobs in engine.jobs.segments():
            served |= {job_id: _seen(job) for job_id, job in jobs.items()}
        pauses = {name: tube.pause_s for name, tube in engine.tubes.items() if tube.pause_until_ns}
        return served, pauses, engine.ledger.taken_id, clock()
    finally:
        if hasattr(journal, "_bodies"):
            await abandon(journal)
        for database in opened:
            database.connection.close()
            os.close(database.file)
            os.close(database.index)


def _seen(job):
    past = job.past
    past_counts = (past.timeouts, past.releases, past.buries, past.kicks)
    place = None if job.state.value == "ready" else job.key
    put_as = (job.tube.name, job.state.value, job.pri, job.delay_s, job.ttr_s, job.created_ns, job.body)
    return (*put_as, place, job.reserves, past_counts, job.why)


def start(path):
    return asyncio.run(_start(path))


class Rot:
    """A sound file, and what there is to say of it."""

    def __init__(self, folder, jobs=JOBS):
        self.folder = folder
        self.origin = folder / "origin.db"
        make(self.origin, jobs)
        self.lines = jobs_of(self.origin)
        self.by_id = {json.loads(line)["id"]: line for line in self.lines}
        with closing(Pages(self.origin)) as pages:
            self.trees = set(pages.in_use())
            self.pages, self.large = _pages_of_jobs(pages, self.trees)
        assert self.pages.keys() == self.by_id.keys()
        shutil.copy(self.origin, folder / "queue.db")
        self.served = start(folder / "queue.db")
        self.clean()
        self.counts = Counter()

    def clean(self):
        for file in self.folder.glob("*"):
            if file != self.origin:
                file.unlink()

    def try_seed(self, seed):
        """What is wrong with what became of one damage; nothing if all is well."""
        path, dest = self.folder / "queue.db", self.folder / "saved.db"
        self.clean()
        shutil.copy(self.origin, path)
        what = damage(path, random.Random(seed))
        damaged = path.read_bytes()
        wrong = []
        try:
            wrong += self._look_at_salvage(path, dest)
            wrong += self._look_at_verify(path)
            if path.read_bytes() != damaged:
                wrong.append("it was written to")
            wrong += self._look_at_start(path)
        except Exception as error:  # noqa: BLE001 - that there is none is what is tried
            wrong.append(f"{type(error).__name__}: {error} at {_place(error)}")
        return [f"seed {seed}, {what}: {each}" for each in wrong]

    def _look_at_start(self, path):
        try:
            served = start(path)
        except BeanliteError as error:
            self.counts["start refused"] += 1
            return _check_line(error)
        self.counts["started"] += 1
        return [] if served == self.served else [f"the start serves {_difference(served, self.served)}"]

    def _look_at_verify(self, path):
        try:
            findings = [finding for finding in verify(path) if not finding.sound]
        except BeanliteError as error:
            return _check_line(error)
        self.counts["verify: sound" if not findings else "verify: damaged"] += 1
        return [each for finding in findings for each in _check_line(finding.said)]

    def _look_at_salvage(self, path, dest):
        sound = self.sound_jobs(path)
        try:
            result = salvage(path, dest)
        except BeanliteError as error:
            self.counts["salvage refused"] += 1
            return _check_line(error) + ([f"{len(sound)} sound jobs are not salvaged"] if sound else [])
        saved = jobs_of(dest)
        self.counts["salvage: whole" if result.is_all else "salvage: in part"] += 1
        self.counts["jobs salvaged"] += len(saved)
        self.counts["jobs not salvaged"] += len(self.lines) - len(saved)
        wrong = []
        if new := saved - self.lines:
            wrong.append(f"salvage brings {len(new)} jobs that were not stored: {min(new)}")
        if sound - saved:
            wrong.append(f"{len(sound - saved)} sound jobs are not salvaged: {min(sound - saved):.100}")
        if result.is_all and saved != self.lines:
            wrong.append("salvage says that nothing is lost")
        return wrong

    def sound_jobs(self, path):
        """The jobs on pages that have not changed: they, at least, have to be salvaged."""
        before, after = self.origin.read_bytes(), path.read_bytes()
        pages = range(1, len(before) // PAGE + 1)
        changed = {page for page in pages if _page(before, page) != _page(after, page)}
        is_rest_sound = not changed - self.trees
        return {
            line
            for job_id, line in self.by_id.items()
            if not self.pages[job_id] & changed and (is_rest_sound or job_id not in self.large)
        }


def _pages_of_jobs(pages, trees):
    """The pages in trees that each job stands on, and which jobs have a body on pages of its own."""
    found, large = {}, set()
    for page in trees:
        for rowid, values in pages.rows(page):
            if len(values) in {2, 21} and values[0] is None:
                found.setdefault(rowid, set()).add(page)
            if len(values) == 2:
                large.add(rowid)
    return found, large


def _page(content, number):
    return content[(number - 1) * PAGE : number * PAGE]


def _check_line(said):
    text = str(said)
    return [f"this is no line: {text!r:.200}"] if "\n" in text or len(text) > LINE_MAX else []


def _place(error):
    """Where in our code an error came from."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((f"{each.filename}:{each.lineno}" for each in frames if "/beanlite/" in each.filename), "?")


def _difference(served, expected):
    jobs, others = served[0], expected[0]
    missing = sorted(others.keys() - jobs.keys())
    changed = sorted(job_id for job_id in jobs if jobs[job_id] != others.get(job_id))
    rest = "" if served[1:] == expected[1:] else f", {served[1:]} for {expected[1:]}"
    return f"without {missing[:5]}, and with {changed[:5]} changed{rest}"


def main():
    parser = argparse.ArgumentParser(description="Damage a stopped file at random, and see what becomes of it.")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rot = Rot(Path(folder))
        wrong = 0
        for seed in range(options.first, options.first + options.seeds):
            for each in rot.try_seed(seed):
                wrong += 1
                sys.stdout.write(f"{each}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{options.seeds} damages, {wrong} things wrong; {dict(sorted(rot.counts.items()))}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
