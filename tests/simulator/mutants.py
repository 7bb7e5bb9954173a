"""Bugs to be planted in the server, each a line of it replaced by another: the simulator has to find all of them.

::

    python -m tests.simulator --mutants              # all of them, each with the seed that found it
    python -m tests.simulator --mutant "a sync left out" --seed 17
"""

import importlib.machinery
import sys
from typing import NamedTuple


class Mutant(NamedTuple):
    """In this module, the first text stands exactly once, and the second takes its place."""

    module: str
    text: str
    instead: str


ENGINE, RESTORE, WRITER = "beanlite.core.engine", "beanlite.core.restore", "beanlite.journal.sqlite.writer"
SQLITE, BATCH, DATABASE = "beanlite.journal.sqlite.journal", "beanlite.journal.sqlite.batch", "beanlite.journal.sqlite.database"
UPKEEP, CONNECTION = "beanlite.journal.sqlite.upkeep", "beanlite.net.connection"
MUTANTS = {
    "a sync left out": Mutant(SQLITE, "        if self._sync_interval_ms != 0:\n            self._writer.check()", "        if True:\n            self._writer.check()"),
    "a sync that failed is taken for one that did not": Mutant(WRITER, "        if error is not None:\n            return JournalFailed(f\"syncing", "        if False:\n            return JournalFailed(f\"syncing"),
    "a reply too early": Mutant(CONNECTION, "if (session.waits or self._group.in_doubt) and self._journaled:", "if False:"),
    "replies out of order": Mutant(CONNECTION, "elif not self._owed:", "else:"),
    "a batch not stored as a whole": Mutant(WRITER, "                changed = db.executemany(statement, parameters).rowcount", '                db.execute("COMMIT"), db.execute("BEGIN")\n                changed = db.executemany(statement, parameters).rowcount'),
    "a batch forgotten on a full disk": Mutant(UPKEEP, "            try:\n                self._writer.write(batch)", "            try:\n                pass"),
    "a delete not journaled": Mutant(ENGINE, "        else:\n            ledger.changed[job_id] = job", "        else:\n            pass"),
    "a kick journaled too late": Mutant(ENGINE, "self.ledger.tally(job.tube).kicked += 1\n        self.ledger.note(job)", "self.ledger.tally(job.tube).kicked += 1\n        self.ledger.deferred[job.id] = job"),
    "a bury not journaled": Mutant(ENGINE, "self.ledger.tally(job.tube).buried += 1\n        self.ledger.note(job)", "self.ledger.tally(job.tube).buried += 1"),
    "the new pri of a release not journaled": Mutant(BATCH, "UPDATE jobs SET tube = ?, state = ?, pri = ?,", "UPDATE jobs SET tube = ?, state = ?, pri = max(?, pri),"),
    "order by id ignored": Mutant("beanlite.core.heap", "            heappush(self.keys, key)", "            self.keys.append(key)"),
    "the order of burials not journaled": Mutant("beanlite.journal.rows", "return None, job.key >> ID_BITS", "return None, 1"),
    "the last id not restored": Mutant(ENGINE, "self.last_id = ledger.taken_id = ledger.stored_id = last_id", "ledger.taken_id = ledger.stored_id = last_id"),
    "ids not promised ahead": Mutant(WRITER, "db.execute(_UPDATE_META, (batch.number, promised_id))", "db.execute(_UPDATE_META, (batch.number, batch.last_id))"),
    "a counter not restored": Mutant(RESTORE, "job.past = Past(timeouts, releases, buries, kicks)", "job.past = Past(timeouts, releases, buries)"),
    "a delay forgotten at a restart": Mutant(RESTORE, "elif state == _DELAYED and place is not None and place > now_ns:", "elif False:"),
    "a pause forgotten at a restart": Mutant(SQLITE, "engine.restore_pause(name, pause_s, until_ns)", "pass"),
    "a deleted job written once more": Mutant("beanlite.core.ledger", "if job.state is not GONE:", "if True:"),
    "the reserve file forgotten": Mutant(WRITER, "            self.room.give_up_reserve()\n        except", "            pass\n        except"),
    "reservations not returned by who leaves": Mutant("beanlite.net.turns", "            self._engine.clients.disconnect(client, self.now())", "            client.gone = True"),
    "memory has no bound": Mutant("beanlite.core.admission", "min(self._disk_bytes, self._memory.room_bytes)", "self._disk_bytes"),
    "an unloaded body counted wrongly": Mutant("beanlite.core.bodies", "        job.body = None\n        memory.body_bytes -= job.size + BODY_BYTES", "        job.body = None\n        memory.body_bytes -= job.size"),
    "a move by an operator not journaled": Mutant("beanlite.core.operator", "        self._ledger.note(job)\n", ""),
}  # fmt: skip


class _Loader(importlib.machinery.SourceFileLoader):
    mutant: Mutant

    def get_code(self, fullname):
        text = self.get_data(self.path).decode()
        assert text.count(self.mutant.text) == 1, f"{self.mutant.text!r} does not stand once in {self.path}"
        return compile(text.replace(self.mutant.text, self.mutant.instead), self.path, "exec")


class _Finder:
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name, path, target=None):
        if name != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        loader = _Loader(spec.loader.name, spec.loader.path)
        loader.mutant = self._mutant
        spec.loader = loader
        return spec


def plant(name: str) -> None:
    """Have the module imported with that bug; to be called before anything of beanlite is imported."""
    mutant = MUTANTS[name]
    assert mutant.module not in sys.modules
    sys.meta_path.insert(0, _Finder(mutant))  # type: ignore[arg-type]
