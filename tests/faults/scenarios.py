"""What the servers do before they are killed: each scenario has a file of its own, and knows what must be in it."""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from beanlite import is_compiled
from beanlite.core.restore import StoredJob
from beanlite.journal.migrations import FOLDER
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.migrations import read_version
from beanlite.journal.sqlite.file.replay import read_jobs, read_state
from tests.faults.forker import DATABASE, Forker, Step
from tests.support.journal_files import VERSION

Content = dict[str, Any]
"""Jobs by name, with their state and body; pauses by "pause of TUBE", with their seconds; and policies by "KEY of
PATTERN"."""
COPIED = "-copy.db"
RESERVE = f"{DATABASE}-reserve"
TURNS = 300  # of the loop, approximately
NEXT_MIGRATION = "CREATE TABLE labels (tube TEXT PRIMARY KEY) STRICT; INSERT INTO labels VALUES ('default');"


# -- what the client does


class Act(NamedTuple):
    """A step of the client, and what it does to the content."""

    step: Step
    effect: Callable[[Content], Content]


def put(name, size=0, delay_s=0):
    body = name.ljust(size, ".")
    stored = ("delayed" if delay_s else "ready", body.encode())
    return Act(Step(f"put 0 {delay_s} 60 {len(body)}\r\n{body}\r\n", 1, name), lambda content: content | {name: stored})


def bury(name):
    step = Step(f"reserve-job {{{name}}}\r\nbury {{{name}}} 0\r\n", 2)
    return Act(step, lambda content: content | {name: ("buried", content[name][1])})


def delete(name):
    return Act(Step(f"delete {{{name}}}\r\n"), lambda content: {key: content[key] for key in content if key != name})


def pause(tube, pause_s):
    return Act(Step(f"pause-tube {tube} {pause_s}\r\n"), lambda content: content | {f"pause of {tube}": pause_s})


def policy(pattern, key, value):
    """Set a key of a policy, or unset it if the value is None."""
    change = {"unset": [key]} if value is None else {"set": {key: value}}
    request = json.dumps({"pattern": pattern, **change})
    name = f"{key} of {pattern}"

    def effect(content):
        others = {each: content[each] for each in content if each != name}
        return others if value is None else others | {name: value}

    text = request.replace("{", "{{").replace("}", "}}")  # single braces stand around the names of jobs
    return Act(Step(f"set-policy {len(request)}\r\n{text}\r\n"), effect)


def fail(name):
    """Reserve a job and release it, which buries it if its tube has ``max_tries=1``."""

    def effect(content):
        state = "buried" if "max_tries of default" in content else "ready"
        return content | {name: (state, content[name][1])}

    return Act(Step(f"reserve-job {{{name}}}\r\nrelease {{{name}}} 0 0\r\n", 2), effect)


def back_up():
    """Have the file copied beside the folder while the server has it open."""
    command = ("backup", "{data}" + COPIED, "--db", f"{{data}}/{DATABASE}", "--force")
    return Act(Step("list-tube-used\r\n", command=command), lambda content: content)


def wait():
    """Give the server time for its upkeep."""
    return Act(Step("list-tube-used\r\n" * TURNS, TURNS), lambda content: content)


def contents(first, acts):
    """Return the content before all acts, after the first one, and so on."""
    found = [first]
    for act in acts:
        found.append(act.effect(found[-1]))
    return found


# -- what is in a file


class Found(NamedTuple):
    """What a start finds, and the files that are left after the stop."""

    content: Content
    ids: dict[str, int]
    last_id: int
    version: int
    lost_batches: int
    names: set[str]


def look(folder, migrations):
    """Start on the file in the folder, in this process, and stop in an orderly way."""
    path = folder / DATABASE
    database = open_database(path, migrations)
    try:
        content, ids = read_content(database.connection, path)
        state = read_state(database.connection, path)
        content |= {f"pause of {tube.decode()}": pause_s for tube, pause_s, _ in state.pauses}
        content |= {f"{row.key} of {row.pattern.decode()}": row.value for row in state.policies}
        version = read_version(database.connection)
    finally:
        left = database.close()
        assert left is None, f"{left} is left"
    return Found(content, ids, state.last_id, version, database.lost_batches, {each.name for each in folder.iterdir()})


def look_beside(file, migrations):
    """Do the same with a copy that has another name."""
    beside = file.with_name(f"{file.name}-beside")
    beside.mkdir()
    shutil.copyfile(file, beside / DATABASE)
    found = look(beside, migrations)
    shutil.rmtree(beside)
    return found


def read_content(connection, path):
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "it is not sound"
    content, ids = {}, {}
    for rows in read_jobs(connection, path):
        for job in map(StoredJob._make, rows):
            assert isinstance(job.body, bytes)
            name = job.body.partition(b".")[0].decode()
            content[name] = ("ready" if job.state in {None, "reserved"} else job.state, job.body)
            ids[name] = job.id
    return content, ids


def ask(ids):
    """Ask for the jobs of these ids."""
    send = "".join(f"peek {number}\r\nstats-job {number}\r\n" for number in sorted(ids.values()))
    return Act(Step(send, 2 * len(ids), asks=True), lambda content: content)


def check_said(said, possible, ids):
    """Check that the answer has the jobs of a possible content."""
    jobs = {}
    for body, stats in zip(said[::2], said[1::2], strict=True):
        if body != "NOT_FOUND":
            jobs[body.partition(".")[0]] = (re.findall(r"^state: (\w+)", stats, re.MULTILINE)[0], body.encode())
    known = [{name: each[name] for name in each if name in ids} for each in possible]
    assert jobs in known, f"it serves {brief(jobs)}"


def check_served(forker, data, possible, ids, migrations=None):
    """Have a whole server start on the file in the folder, and ask it for the jobs of these ids."""
    ended = forker.run(data, [ask(ids).step], migrations=migrations)
    assert (ended.code, ended.stderr, ended.acked) == (0, "", 1), f"the next ended with {ended.code}: {ended.stderr}"
    check_said(ended.said, possible, ids)


def brief(content):
    """Return a content to be shown: of large bodies, only the size."""
    return {name: (each[0], len(each[1])) if isinstance(each, tuple) else each for name, each in content.items()}


# -- the scenarios


@dataclass
class Scenario:
    """A server that starts on a copy of `data`, and a client that does its `acts`."""

    data: Path
    migrations: Path
    acts: list[Act]
    content: Content = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    """The ids of the jobs that the file already has."""
    from_stop: bool = False
    """Whether only operations from the stop on are of interest."""
    constants: tuple[tuple[str, float], ...] = ()
    """Values for constants of modules that make the server's upkeep begin sooner."""

    @property
    def steps(self):
        return [act.step for act in self.acts]

    @property
    def migrates(self):
        return bool(self.content) and self.migrations != FOLDER

    def run(self, forker: Forker, data: Path, *, idle=False, **more):
        """Run the scenario on a copy of the file; if `idle`, the client does nothing."""
        shutil.copytree(self.data, data, copy_function=copy)
        steps = [] if idle else self.steps
        return forker.run(data, steps, self.ids, migrations=self.migrations, constants=self.constants, **more)

    def possible(self, acked):
        """Return what may be there after so many steps were answered: the next one was under way."""
        return contents(self.content, self.acts)[acked : acked + 2]

    def check(self, found, acked, ids, beside=frozenset()):
        """Compare what a start has found with what must be there after `acked` steps were answered."""
        possible = self.possible(acked)
        assert found.content in possible, f"{brief(found.content)} after {acked} steps"
        assert {name: found.ids.get(name, job_id) for name, job_id in ids.items()} == ids, f"{found.ids}, not {ids}"
        assert found.last_id >= max(ids.values(), default=0), "an id can be given out twice"
        assert found.version == len(list(self.migrations.glob("*.sql"))), f"it has version {found.version}"
        assert not found.lost_batches, f"{found.lost_batches} batches are said to be lost"
        copies = {f"{DATABASE}.before-v{VERSION + 1}"} if self.migrates else set()
        assert found.names - beside == {DATABASE} | copies, f"what is left is {sorted(found.names)}"

    def check_copy(self, folder, acked=0):
        """Check that a backup has what was there, and that the copy made by a migration is the file as it was."""
        backup = folder.with_name(folder.name + COPIED)
        backups = [number for number, act in enumerate(self.acts) if act.step.command]
        assert backup.exists() or not backups or acked <= backups[0], "the backup is missing"
        if backup.exists():
            found = look_beside(backup, self.migrations).content
            states = contents(self.content, self.acts)
            assert found in [states[number] for number in backups], f"the backup has {brief(found)}"
        if self.migrates:
            copy = folder / f"{DATABASE}.before-v{VERSION + 1}"
            with closing(sqlite3.connect(f"{copy.as_uri()}?immutable=1", uri=True)) as connection:
                assert read_version(connection) == VERSION, "the copy is of another version"
                content, ids = read_content(connection, copy)
            jobs = {name: self.content[name] for name in self.ids}
            assert (content, ids) == (jobs, self.ids), f"the copy has {content}"


def copy(source, target):
    """Copy a file; only the size of the reserve file matters."""
    if source.endswith(RESERVE):
        with open(target, "wb") as file:  # noqa: PTH123 - shutil gives names
            file.truncate(os.stat(source).st_size)  # noqa: PTH116 - likewise
    else:
        shutil.copyfile(source, target)


BEFORE = [
    put("first"),
    put("large", size=5000),
    put("later", delay_s=100_000),
    put("gone"),
    bury("first"),
    delete("gone"),
    pause("default", 3600),
    policy("default", "max_tries", "1"),
    policy("mail.*", "rate", "5/s"),
    policy("mail.*", "rate", None),
]
NEXT = [fail("large"), policy("l*", "ttl", "1h"), put("after"), put("large after", size=5000), bury("later")]
MANY = [put(f"many{number}", size=900 * (number % 4)) for number in range(10)] + [bury("many1"), delete("later")]


# Compiled, some of the constants below are built in, and it takes as much as they say to have a file shrunk.
NUMBER, SIZE = (170, 60_000) if is_compiled() else (4, 20_000)
LARGE = [f"large{number}" for number in range(NUMBER)]
SHRINKING = [*(put(name, SIZE) for name in LARGE), *map(delete, LARGE), wait(), *NEXT]
SOON = (
    ("beanlite.journal.sqlite.served.frames.CHECKPOINT_FRAMES", 12),
    ("beanlite.journal.sqlite.served.leisure.LOOSE_LOOK_S", 0.001),
    ("beanlite.journal.sqlite.served.leisure.SHRINK_REST_S", 0.001),
    ("beanlite.journal.sqlite.served.writer.LOOSE_TIMES", 0),
    ("beanlite.journal.sqlite.served.writer.SPARE_PAGES", 2),
)


def make_newer(folder):
    """Make a folder of migrations that has one more."""
    newer = folder / "migrations"
    shutil.copytree(FOLDER, newer)
    (newer / f"{VERSION + 1:04}_notes.sql").write_text(NEXT_MIGRATION)
    return newer


def make_scenarios(forker, folder):
    """Return all scenarios by name, with their files made in `folder`."""
    newer = make_newer(folder)
    nothing, stopped, killed = (folder / name for name in ("nothing", "stopped", "killed"))
    for each in (nothing, stopped, killed):
        each.mkdir()
    content = contents({}, BEFORE)[-1]

    def ids_after(data, **more):
        ended = forker.run(data, [act.step for act in BEFORE], **more)
        del ended.ids["gone"]
        return ended.ids

    stopped_ids, killed_ids = ids_after(stopped), ids_after(killed, kill=True)
    return {
        "first start": Scenario(nothing, FOLDER, BEFORE),
        "migration": Scenario(stopped, newer, NEXT, content, stopped_ids),
        "stop": Scenario(stopped, FOLDER, MANY, content, stopped_ids, from_stop=True),
        "start after a kill": Scenario(killed, FOLDER, NEXT, content, killed_ids),
        "migration after a kill": Scenario(killed, newer, NEXT, content, killed_ids),
        BACKUP: Scenario(stopped, FOLDER, [NEXT[0], back_up(), *NEXT[1:], back_up()], content, stopped_ids),
        UPKEEP: Scenario(stopped, FOLDER, SHRINKING, content, stopped_ids, constants=SOON),
    }


NAMES = ["first start", "migration", "stop", "start after a kill"]
UPKEEP, BACKUP = "checkpoints and shrinking", "backup of a running server"
if "FAULTS" in os.environ:
    NAMES += ["migration after a kill", BACKUP, UPKEEP]
