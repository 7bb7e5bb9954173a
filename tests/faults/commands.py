"""Commands that replace or copy a server's file, and what the file may hold after they were killed: old or new."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from beanlite.journal.migrations import FOLDER
from tests.faults.forker import CHANGES, DATABASE, KILL_BEFORE, Fault, Forker
from tests.faults.record import read_trace
from tests.faults.scenarios import BEFORE, NEXT, Act, Content, brief, contents, copy, look, look_beside
from tests.support.journal_files import interrupt

COPY = "copy.db"
FEW = BEFORE[:2]  # what is in the backup
JOURNAL = f"{DATABASE}-journal"


@dataclass
class Command:
    """A command that is carried out on a copy of the folder `data`."""

    data: Path
    args: str
    """With {data} for the folder, and {backup} for the file that is restored."""
    backup: Path
    old: Content
    new: Content
    ids: dict[str, int]
    """The ids of the jobs."""
    last_id: int
    """The highest id that was given out: it is not given out again, whichever content is in place."""
    copies: tuple[Content, ...] = ()
    """What may be in a copy beside the database."""
    acts: tuple[Act, ...] = ()
    """What a server does on the copy of the folder before it is killed: its mark is not that of another file."""

    def run(self, forker: Forker, data: Path, **more):
        """Carry out the command on a copy of the folder."""
        shutil.copytree(self.data, data, copy_function=copy)
        if self.acts:
            forker.run(data, [act.step for act in self.acts], dict(self.ids), kill=True)
        return forker.command(self.args.format(data=data, backup=self.backup).split(), data, **more)

    def check(self, data: Path) -> bool:
        """Start on the file, and on a copy that was made; return whether the new content is in place."""
        if self.copies:
            copied = look_beside(data / COPY, FOLDER).content
            assert copied in self.copies, f"the copy has {brief(copied)}"
        found = look(data, FOLDER)
        assert found.content in (self.old, self.new), f"it has {brief(found.content)}"
        assert found.last_id >= self.last_id, "an id can be given out twice"
        assert not found.lost_batches, f"{found.lost_batches} batches are said to be lost"
        return bool(copied == self.copies[-1] if self.copies else found.content == self.new)


def make_commands(forker: Forker, scenarios, folder: Path) -> dict[str, Command]:
    """Return all commands by name, with their files made in `folder`."""
    stopped, killed = scenarios["stop"], scenarios["start after a kill"]
    few = folder / "few"
    few.mkdir()
    forker.run(few, [act.step for act in FEW])
    backup = folder / "backup.db"
    assert forker.command(["backup", str(backup), "--db", str(few / DATABASE)], few).code == 0
    whole, less = stopped.content, contents({}, FEW)[-1]
    made = dict(_make_folders(forker, scenarios, backup, folder))

    def command(data, args, old, new, **more):
        last_id = max(stopped.ids.values()) if old else 0
        return Command(data, f"{args} --db {{data}}/{DATABASE}", backup, old, new, stopped.ids, last_id, **more)

    copying = "backup {data}/" + COPY + " --force"
    return {
        "restore where nothing is": command(made["nothing"], "restore {backup}", {}, less),
        "restore": command(stopped.data, "restore {backup}", whole, less),
        "restore after a kill": command(killed.data, "restore {backup}", whole, less),
        "restore after a kill in place": command(
            stopped.data, "restore {backup}", contents(whole, NEXT)[-1], less, acts=tuple(NEXT)
        ),
        "restore over a rollback journal": command(made["interrupted"], "restore {backup}", whole, less),
        "restore after a kill in the first start": command(made["begun"], "restore {backup}", {}, less),
        "undo": command(made["restored"], "restore --undo", less, whole),
        "undo over rollback journals": command(made["both interrupted"], "restore --undo", less, whole),
        "compact": command(stopped.data, "compact", whole, whole),
        "compact over a rollback journal": command(made["interrupted"], "compact", whole, whole),
        "backup": command(made["copied"], copying, whole, whole, copies=(less, whole)),
        "backup after a kill": command(made["copied, killed"], copying, whole, whole, copies=(less, whole)),
    }


def _make_folders(forker, scenarios, backup, folder) -> Iterator[tuple[str, Path]]:
    """Make what the scenarios do not have: folders that somebody else has worked on, or an earlier command."""
    stopped, killed = scenarios["stop"].data, scenarios["start after a kill"].data

    def copied(name, origin):
        return Path(shutil.copytree(origin, folder / name, copy_function=copy))

    yield "nothing", copied("nothing", scenarios["first start"].data)
    interrupt(copied("interrupted", stopped) / DATABASE)
    yield "interrupted", folder / "interrupted"
    yield "begun", _first_start_killed(forker, scenarios["first start"], folder)
    restored = copied("restored", stopped)
    assert forker.command(["restore", str(backup), "--db", str(restored / DATABASE)], restored).code == 0
    yield "restored", restored
    both = copied("both interrupted", restored)
    for file in sorted(both.iterdir()):
        interrupt(file)
    yield "both interrupted", both
    for name, origin in (("copied", stopped), ("copied, killed", killed)):
        data = copied(name, origin)
        shutil.copyfile(backup, data / COPY)
        yield name, data


def _first_start_killed(forker, first, folder):
    """Make the folder of a server that was killed when its first transaction had been written, but not committed."""
    trace = folder / "trace"
    first.run(forker, folder / "whole", trace=trace)
    counted = [each for each in read_trace(trace) if each.counted]
    number = next(n for n, each in enumerate(counted, 1) if (each.kind, each.name) == ("unlink", JOURNAL))
    data = folder / "begun"
    first.run(forker, data, fault=Fault(KILL_BEFORE, CHANGES, number))
    assert (data / JOURNAL).stat().st_size, "the rollback journal is gone"
    return data
