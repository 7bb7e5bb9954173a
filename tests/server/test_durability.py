"""Killed at any instant and started again, the server has everything that it acknowledged.

KILLS=100 runs 100 rounds in each mode instead of only a few; KILLS_SEED repeats the choices of a run.
"""

import itertools
import os
import random
import sqlite3
import threading
import time
from contextlib import closing
from functools import partial

import pytest

from beanlite.journal.sqlite.served.writer import IDS_AHEAD
from tests.support.history import Owner, Shared
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, put_bytes

ROUNDS = {"always": 5, "50ms": 2, "never": 2}
OWNERS = 3
SHARERS = 4


class Rounds:
    """Servers that run one after another on one file, each killed amid the work of its clients."""

    def __init__(self, directory, fsync, seed):
        self.directory = directory
        self.flags = ("--fsync", fsync, "--log-level", "warning")
        self.chance = random.Random(seed)
        self.owners = [Owner(number, random.Random(seed + number), self.on_reply) for number in range(OWNERS)]
        self.shared = Shared(self.on_reply)
        self.replies = itertools.count(1)
        self.kill_at = 0
        self.errors = []
        self.server = start_beanlite(directory, *self.flags)

    def on_reply(self):
        if next(self.replies) == self.kill_at:
            time.sleep(self.delay_s)
            self.server.kill()

    def work_until_killed(self):
        self.replies = itertools.count(1)
        self.kill_at = self.chance.randrange(1, 1500)
        self.delay_s = self.chance.choice((0, 0.003 * self.chance.random()))  # else it is always just after a reply
        work = [owner.work for owner in self.owners]
        work += [partial(self.shared.work, chance=random.Random(self.chance.random())) for _ in range(SHARERS)]
        threads = [threading.Thread(target=self.run, args=(each,), daemon=True) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.server.kill()
        assert not self.errors, self.errors[0]
        assert not any(thread.is_alive() for thread in threads)

    def run(self, work):
        try:
            with Wire(self.server.connect(timeout_s=30)) as wire:
                work(wire)
        except ConnectionError:
            pass  # it has been killed
        except Exception as error:  # noqa: BLE001 - work_until_killed reports it
            self.errors.append(error)

    def restart_and_compare(self):
        assert "Traceback" not in self.server.log_text()
        self.server = start_beanlite(self.directory, *self.flags)
        with closing(sqlite3.connect(f"file:{self.directory}/queue.db?mode=ro", uri=True)) as database:
            ids = [row[0] for row in database.execute("SELECT id FROM jobs")]
            ((last_id,),) = database.execute("SELECT last_id FROM meta")
        with Wire(self.server.connect()) as wire:
            began = time.time()
            bodies, shown = look(wire, ids)
            seen = began, time.time()
            for owner in self.owners:
                own = {job_id: stats for job_id, stats in shown.items() if stats["tube"] == f'"{owner.tube}"'}
                pause_s = 0
                if wire.ask(f"stats-tube {owner.tube}") != "NOT_FOUND":
                    pause_s = int(wire.stats(f"stats-tube {owner.tube}")["pause"])
                owner.take_over(own, bodies, pause_s, seen)
            in_shared = {job_id for job_id, stats in shown.items() if stats["tube"] == f'"{self.shared.tube}"'}
            self.shared.take_over({job_id: bodies[job_id] for job_id in in_shared})
            counts = wire.stats()
        # A delay may have ended between the two queries.
        for states in ({"ready", "delayed"}, {"buried"}, {"reserved"}):
            counted = sum(int(counts[f"current-jobs-{state}"]) for state in states)
            assert counted == sum(stats["state"] in states for stats in shown.values())
        given = [job_id for owner in self.owners for job_id in owner.given] + list(self.shared.inserted)
        assert len(given) == len(set(given)), "an id was given out twice"
        assert last_id >= max(given, default=0)

    def check_order_of_burials(self):
        with Wire(self.server.connect()) as wire:
            for owner in self.owners:
                wire.ask(f"use {owner.tube}")
                buried = []
                while (reply := wire.ask("peek-buried")) != "NOT_FOUND":
                    buried.append(int(reply.split()[1]))
                    assert wire.ask(f"delete {buried[-1]}") == "DELETED"
                assert buried == owner.buried()


def look(wire, ids):
    """Return the bodies and the statistics of these jobs."""
    bodies, shown = {}, {}
    for job_id in ids:
        assert wire.ask(f"peek {job_id}").startswith(f"FOUND {job_id} ")
        bodies[job_id] = wire.body
        shown[job_id] = wire.stats(f"stats-job {job_id}")
    return bodies, shown


@pytest.mark.parametrize("fsync", ROUNDS)
def test_killed_amid_its_work(tmp_path, fsync):
    seed = int(os.environ.get("KILLS_SEED") or random.randrange(1 << 32))
    print(f"KILLS_SEED={seed}")  # noqa: T201 - pytest shows it when the test fails
    rounds = Rounds(tmp_path, fsync, seed)
    try:
        for _ in range(int(os.environ.get("KILLS") or ROUNDS[fsync])):
            rounds.work_until_killed()
            rounds.restart_and_compare()
        rounds.check_order_of_burials()
    finally:
        rounds.server.kill()


@pytest.mark.parametrize("pipelined", [True, False])
def test_the_id_of_a_deleted_job_is_not_given_again(tmp_path, pipelined):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert wire.put(b"first") == 1
        if pipelined:  # in one batch: the job is never in the file
            wire.send(put_bytes(b"second") + b"delete 2\r\n")
            assert [wire.reply(), wire.reply()] == ["INSERTED 2", "DELETED"]
        else:
            assert wire.put(b"second") == 2
            assert wire.ask("delete 2") == "DELETED"
        server.kill()
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert wire.ask("peek 2") == "NOT_FOUND"
        assert 2 < wire.put(b"third") <= 3 + IDS_AHEAD
