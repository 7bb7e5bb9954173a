"""Servers that live one after another on the same file, until they are killed; what was acknowledged is always there.

::

    python -m tests.faults.lives 100       # this many series, chosen at random
    python -m tests.faults.lives 1 --seed 17

The client of each server first asks for all jobs, then does something by chance. The server ends by a kill at one of
its file operations, by a kill between two commands, or by an orderly stop. Between two lives the file is backed up,
restored or compacted, and that may be killed as well. The last lives bring a migration. Nothing is replaced inside the
server: this is for the compiled one what the simulator is for the sources.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from beanlite.journal.migrations import FOLDER
from tests.faults.forker import CHANGES, DATABASE, KILL_AMID, KILL_BEFORE, Fault, Forker, build
from tests.faults.scenarios import (
    SOON,
    Content,
    ask,
    back_up,
    brief,
    bury,
    check_said,
    contents,
    copy,
    delete,
    fail,
    look,
    look_beside,
    make_newer,
    pause,
    policy,
    put,
    wait,
)

LIVES = 7
MIGRATES = 5  # from this life on
MODES = ("always", "50ms", "never")  # a kill loses nothing in any of them
SIZES = (0, 0, 300, 5000, 20_000)
MOST = (30, 60, 120)  # the operation at which a server or command is killed is up to one of these


class Series:
    """The lives on one file: what is in it, and what was backed up and set aside."""

    def __init__(self, forker: Forker, newer: Path, folder: Path, seed: int) -> None:
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        self.kills = 0
        self._forker = forker
        self._newer = newer
        self._folder = folder
        self._chance = random.Random(seed)
        self._content, self._ids, self._last_id = {}, {}, 0
        self._backups = []
        self._aside: Content | None = None
        """What the last restore has set aside."""
        self._names = 0

    def play(self):
        for number in range(LIVES):
            migrations = self._newer if number >= MIGRATES else FOLDER
            self._live(migrations)
            if number < MIGRATES - 1:
                getattr(self, self._chance.choice(("_live_again", "_back_up", "_restore", "_undo", "_compact")))()

    # -- lives

    def _live(self, migrations):
        chance = self._chance
        acts = [ask(self._ids), *self._acts(chance.randrange(8))]
        how = chance.choice(("kill", "stop", "fault", "fault", "fault"))
        fault = self._fault() if how == "fault" else Fault()
        ended = self._forker.run(
            self.data, [act.step for act in acts], dict(self._ids), migrations=migrations, fault=fault,
            kill=how == "kill", fsync=chance.choice(MODES), constants=chance.choice(((), SOON)),
        )  # fmt: skip
        self.kills += how == "kill"
        assert ended.code in {0, -9}, f"a server ended with {ended.code}: {ended.stderr}"
        assert ended.code == -9 or not ended.stderr, f"a server said {ended.stderr}"
        assert how != "stop" or (ended.code, ended.acked) == (0, len(acts)), f"{ended.acked} of {len(acts)} answered"
        if ended.acked:
            check_said(ended.said, [self._content], self._ids)
        self._settle(contents(self._content, acts)[ended.acked : ended.acked + 2], ended.ids, migrations)

    def _live_again(self):
        self._live(FOLDER)

    def _acts(self, number):
        """Choose what the client does, and what is possible then."""
        acts, content = [], self._content
        for _ in range(number):
            jobs = [name for name in content if isinstance(content[name], tuple)]
            waiting = [name for name in jobs if content[name][0] == "ready"]
            what = self._chance.choice(
                ("put", "put", "put", "bury", "delete", "pause", "wait", "back up", "policy", "fail")
            )
            if what == "bury" and waiting:
                act = bury(self._chance.choice(waiting))
            elif what == "delete" and jobs:
                act = delete(self._chance.choice(jobs))
            elif what == "pause":
                act = pause("default", self._chance.randrange(1000, 9000))
            elif what == "policy":
                act = policy(self._chance.choice(("default", "mail.*")), "max_tries", self._chance.choice((None, "1")))
            elif what == "fail" and waiting:
                act = fail(self._chance.choice(waiting))
            elif what == "wait":
                act = wait()
            elif what == "back up":
                act = back_up()
            else:
                self._names += 1
                act = put(f"job{self._names}", self._chance.choice(SIZES), self._chance.choice((0, 0, 100_000)))
            acts.append(act)
            content = act.effect(content)
        return acts

    def _fault(self):
        most = self._chance.choice(MOST)
        return Fault(self._chance.choice((KILL_BEFORE, KILL_AMID)), CHANGES, self._chance.randint(1, most))

    def _settle(self, possible, ids=None, migrations=FOLDER):
        """See which of the possible contents is there, by a start on a copy; the file itself stays as it is."""
        beside = self._folder / "beside"
        shutil.copytree(self.data, beside, copy_function=copy)
        found = look(beside, migrations)
        shutil.rmtree(beside)
        assert found.content in possible, f"it has {brief(found.content)}, not {[brief(each) for each in possible]}"
        assert not found.lost_batches, f"{found.lost_batches} batches are said to be lost"
        known = self._ids | (ids or {})
        assert {name: known.get(name, job_id) for name, job_id in found.ids.items()} == found.ids, "ids have changed"
        self._last_id = max(self._last_id, *known.values(), 0) if known else self._last_id
        assert found.last_id >= self._last_id, "an id can be given out twice"
        self._content, self._ids = found.content, found.ids

    # -- commands

    def _command(self, *args):
        """Carry out a command, which is perhaps killed; return whether it was completed."""
        fault = self._chance.choice((Fault(), self._fault()))
        ended = self._forker.command([*args, "--db", str(self.data / DATABASE)], self._folder, fault=fault)
        assert ended.code in {0, -9, 3}, f"{args} ended with {ended.code}: {ended.stderr}"
        # In order: after a kill in the first start, and a file that was not stopped.
        in_order = "is empty" in ended.stderr or (args[0] == "compact" and "killed" in ended.stderr)
        assert ended.code != 3 or in_order, f"{args} was refused: {ended.stderr}"
        return ended.code == 0

    def _back_up(self):
        if not (self.data / DATABASE).exists():  # the first start was killed before it made the file
            return
        file = self._folder / f"backup{len(self._backups)}.db"
        done = self._command("backup", str(file))
        assert file.exists() or not done, "the backup is missing"
        if file.exists():
            found = look_beside(file, FOLDER).content
            assert found == self._content, f"the backup has {brief(found)}"
            self._backups.append((file, self._content))
        self._settle([self._content])

    def _restore(self):
        if self._backups:
            file, content = self._chance.choice(self._backups)
            before = self._content
            done = self._command("restore", str(file))
            self._settle([content] if done else [before, content])
            self._aside = before if done else None

    def _undo(self):
        if self._aside is not None:
            before, content = self._content, self._aside
            done = self._command("restore", "--undo")
            self._settle([content] if done else [before, content])
            self._aside = before if done else None

    def _compact(self):
        if (self.data / DATABASE).exists():
            self._command("compact")
            self._settle([self._content])


def play(number, seed, tell):
    """Play this many series; return the number of kills."""
    kills = 0
    with tempfile.TemporaryDirectory(prefix="beanlite-lives-") as name:
        folder = Path(name)
        build(folder / "faults.so")
        newer = make_newer(folder)
        with Forker(folder / "faults.so") as forker:
            for each in range(seed, seed + number):
                series = Series(forker, newer, folder / "series", each)
                try:
                    series.play()
                except Exception as error:  # noqa: BLE001 - whatever it is
                    tell(each, f"{type(error).__name__}: {error}")
                kills += series.kills
                shutil.rmtree(folder / "series")
            return kills + forker.kills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the first series")
    given = parser.parse_args()
    wrong = []

    def tell(seed, what):
        wrong.append(seed)
        print(f"{what}\n    python -m tests.faults.lives 1 --seed {seed}", flush=True)

    kills = play(given.number, given.seed, tell)
    print(f"{given.number} series, {kills} kills, {len(wrong)} series went wrong, seed {given.seed}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
