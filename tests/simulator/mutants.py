"""Bugs to be planted in the server; the simulator has to find all of them.

::

    python -m tests.simulator --mutants                             # which seed finds each?
    python -m tests.simulator --mutant "a sync left out" --seed 17
"""

import importlib.machinery
import sys
from typing import NamedTuple

from tests.simulator.hooks import IS_COMPILED


class Mutant(NamedTuple):
    """A replacement in a module of beanlite: ``text`` occurs exactly once, and ``instead`` takes its place."""

    module: str
    text: str
    instead: str


MUTANTS = {
    "a sync left out": Mutant(
        "journal.sqlite.served.journal",
        "        if self._sync_interval_ms == 0:\n            under_way.sync()",
        "        if False:\n            under_way.sync()",
    ),
    "a sync that failed is taken for one that did not": Mutant(
        "journal.sqlite.served.writer",
        "        if error is not None:\n            raise JournalFailed(",
        "        if False:\n            raise JournalFailed(",
    ),
    "syncs by time left out": Mutant(
        "journal.sqlite.served.upkeep",
        "            took_s = 0.0\n            if self._unsynced_since_s:",
        "            took_s = 0.0\n            if False:",
    ),
    "a reply too early": Mutant(
        "net.outbox",
        "if (session.waits or self._group.in_doubt) and self._journaled:",
        "if False:",
    ),
    "replies out of order": Mutant("net.outbox", "elif not self.held:", "elif True:"),
    "a batch not stored as a whole": Mutant(
        "journal.sqlite.served.writer",
        "                rows = cursor.executemany(",
        '                cursor.executescript("COMMIT; BEGIN")\n                rows = cursor.executemany(',
    ),
    "a batch forgotten on a full disk": Mutant(
        "journal.sqlite.served.upkeep",
        "            again = await self._write(batch)",
        "            again = None",
    ),
    "a delete not journaled": Mutant(
        "core.engine", "        else:\n            ledger.changed[job_id] = job", "        else:\n            pass"
    ),
    "a kick journaled too late": Mutant(
        "core.engine",
        ".kicked += 1\n        self.ledger.note(job)",
        ".kicked += 1\n        self.ledger.deferred[job.id] = job",
    ),
    "a bury not journaled": Mutant("core.engine", ".buried += 1\n        self.ledger.note(job)", ".buried += 1"),
    "a move by an operator not journaled": Mutant("core.operator", "        self._ledger.note(job)\n", ""),
    "the new pri of a release not journaled": Mutant(
        "journal.sqlite.served.batch",
        'f"UPDATE jobs SET {_SET} WHERE id = ?1"',
        "f\"UPDATE jobs SET {_SET.replace('= ?4', '= max(?4, pri)')} WHERE id = ?1\"",
    ),
    "the order of burials not journaled": Mutant("journal.rows", "buried_seq = job.key >> ID_BITS", "buried_seq = 1"),
    "a deleted job written once more": Mutant("core.ledger", "if job.state is not GONE:", "if True:"),
    "order by id ignored": Mutant("core.heap", "if not self.keys or self.keys[-1] < key:", "if True:"),
    "ids not promised ahead": Mutant(
        "journal.sqlite.served.writer",
        "(_UPDATE_META, (batch.number, promised_id))",
        "(_UPDATE_META, (batch.number, batch.last_id))",
    ),
    "the last id not restored": Mutant(
        "core.engine",
        "self.last_id = ledger.taken_id = ledger.stored_id = last_id",
        "ledger.taken_id = ledger.stored_id = last_id",
    ),
    "a counter not restored": Mutant(
        "core.restore",
        "Past(timeouts, releases, buries, kicks, forgiven)",
        "Past(timeouts, releases, buries, 0, forgiven)",
    ),
    "a delay forgotten at a restart": Mutant(
        "core.restore", "elif state is DELAYED and job.key > now_ns:", "elif False:"
    ),
    "a pause forgotten at a restart": Mutant(
        "journal.sqlite.served.recovery", "engine.restore_pause(name, pause_s, until_ns)", "pass"
    ),
    "the reserve file forgotten": Mutant(
        "journal.sqlite.served.writer",
        "            self.room.give_up_reserve()\n        except",
        "            pass\n        except",
    ),
    "reservations not returned by who leaves": Mutant(
        "net.turns", "self._engine.clients.disconnect(client, self.now())", "client.gone = True"
    ),
    "a batch of reserves told too early": Mutant("protocol.batches", "        session.show(job)\n", ""),
    "a batch forgotten while the file is locked": Mutant(
        "journal.sqlite.served.upkeep",
        "                await asyncio.sleep(BUSY_RETRY_S)\n            self._lock",
        "                break\n            self._lock",
    ),
    "a disk that can't be read taken for a damaged file": Mutant(
        "journal.sqlite.file.fileformat",
        "                rule_out_disk(path)\n",
        "                pass\n",
    ),
    "a body unloaded while a batch is fetched": Mutant(
        "protocol.batches",
        "bodies | late",
        "{job: late.get(job, job.body) for job in jobs}",
    ),
    "a job told that the client no longer has": Mutant(
        "protocol.session", "        return job.holder is self.client", "        return True"
    ),
    "an event told too early": Mutant(
        "commit.group",
        "            self._committing.append((changes.batch, now_ns, held, held_bytes, changes.events))",
        "            self._tell_events(changes.events)\n"
        "            self._committing.append((changes.batch, now_ns, held, held_bytes, []))",
    ),
    "who waits for room in a batch forgotten": Mutant(
        "commit.group", "+= held_bytes\n        self._tell_room()\n", "+= held_bytes\n"
    ),
    "memory has no bound": Mutant(
        "core.admission", "min(self._disk_bytes, self._memory.room_bytes)", "self._disk_bytes"
    ),
    "an unloaded body counted wrongly": Mutant(
        "core.bodies",
        "        job.body = None\n        memory.body_bytes -= job.size + BODY_BYTES",
        "        job.body = None\n        memory.body_bytes -= job.size",
    ),
    "a try not counted": Mutant("core.rulings", "tries >= rules.max_tries:", "tries > rules.max_tries:"),
    "a stop that buries": Mutant("core.ticker", "            if self._queues.stopping:", "            if False:"),
    "a stop that leaves what no client waits for": Mutant(
        "commit.group",
        "        self._totals_due = True\n        self._take_deferred()",
        "        self._totals_due = True\n        self._turn()",
    ),
    "a restart that counts a try": Mutant(
        "core.restore", "                job.spare()  # no client is to blame\n", "                pass\n"
    ),
    "a kick that forgives nothing": Mutant("core.queues", "            job.forgive()\n", ""),
    "forgiven tries not journaled": Mutant("journal.rows", "past.why, past.forgiven,", "past.why, 0,"),
    "a place not freed": Mutant(
        "core.queues", "            if tube.shut and tube.shut & FULL:", "            if False:"
    ),
    "a limit ignored for clients that wait": Mutant(
        "core.queues", "tube.ready.keys and not tube.shut:", "tube.ready.keys:"
    ),
    "a token given twice after a restart": Mutant(
        "core.ruled", "kept.free_ns or now_ns + rules.burst * rules.token_ns", "kept.free_ns or now_ns"
    ),
    "an expiry not journaled": Mutant(
        "core.rulings",
        "        if deferred:\n            ledger.deferred[job.id] = job",
        "        if deferred:\n            pass",
    ),
    "an age taken from the restart": Mutant(
        "core.ruled", "due_ns = job.created_ns + rules.ttl_ns", "due_ns = job.since_ns + rules.ttl_ns"
    ),
    "a dead letter stored in its old tube": Mutant(
        "core.rulings", "        self._note(job, MOVE, by, now_ns, deferred=deferred)\n", ""
    ),
    "a policy acknowledged before it is stored": Mutant(
        "protocol.operators.policies", "        session.waits = True\n", "        pass\n"
    ),
    "policies not restored": Mutant(
        "journal.sqlite.served.recovery", "        engine.restore_policies(state.policies)\n", ""
    ),
    "a policy that was unset is there again": Mutant(
        "journal.sqlite.served.batch", "statements.append((UNSET_POLICY, (pattern.decode(), key)))", "pass"
    ),
    "notes not restored": Mutant(
        "journal.sqlite.served.recovery", "        engine.notes.restore(notes)\n", "        pass\n"
    ),
    "a note acknowledged before it is stored": Mutant(
        "protocol.noting", "    session.waits = True\n    return replies.NOTED", "    return replies.NOTED"
    ),
    "a note that outlives its job": Mutant("core.notes", "if job.state is GONE]", "if False]"),
    "a tick not stored with its put": Mutant(
        "core.ledger",
        "self.schedules = list(self.schedules.items()), {}",
        "self.schedules = [] if changes.jobs else list(self.schedules.items()), {}",
    ),
    "a twin answered before it is stored": Mutant(
        "protocol.ruled_puts",
        "        session.waits = True\n    elif ledger.stored_batch < ledger.batch - 1:\n",
        "    if False:\n",
    ),
    "a twin unknown after a restart": Mutant(
        "core.restore", "queues.ruled.enter(job, checksum)", "queues.ruled.enter(job, None)"
    ),
}


class _Loader(importlib.machinery.SourceFileLoader):
    mutant: Mutant

    def get_code(self, fullname):
        text = self.get_data(self.path).decode()
        assert text.count(self.mutant.text) == 1, f"{self.mutant.text!r} does not stand once in {fullname}"
        return compile(text.replace(self.mutant.text, self.mutant.instead), self.path, "exec")


class _Finder:
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name, path, target=None):
        if name != f"beanlite.{self._mutant.module}":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)  # and not a compiled module
        loader = _Loader(spec.loader.name, spec.loader.path)
        loader.mutant = self._mutant
        spec.loader = loader
        return spec


def plant(name: str) -> None:
    """Plant a bug in its module; to be called before the module is imported."""
    mutant = MUTANTS[name]
    assert not IS_COMPILED, "a bug can only be planted in the sources"
    assert f"beanlite.{mutant.module}" not in sys.modules
    sys.meta_path.insert(0, _Finder(mutant))
