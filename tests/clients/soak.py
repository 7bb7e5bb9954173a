"""Producers and workers of all clients, through kills of their server, and takeovers by another one.

::

    python -m tests.clients.soak [--minutes 20] [--kills 100]

In the first half a server with a file is killed and started again; in the second half two servers share a PostgreSQL
with a synchronous standby, and the active one is killed. The workers are those of docs/workers*.md, those of beanlite's
own client and ``beanlite work``, the producers that of the page and its own, and one more program cancels reserves.
Afterwards:

- each job is done whose put was acknowledged, and no job is that was not put;
- a job was done twice only where a server was killed in between, and never after the reply to its delete;
- each program went on by itself after each kill;
- the client whose reserves were cancelled works, and holds no job.
"""

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from tests.clients.test_sessions import HERE
from tests.clients.test_workers import WORKERS, Scene, is_there
from tests.support.cutting import Cutting
from tests.support.failover import Node
from tests.support.postgres import Pair
from tests.support.wire import Wire, until

ROOT = HERE.parents[1]
OWN = ("asyncio", "blocking")
CONCURRENCY = 4  # of beanlite work
EACH = 3  # jobs that each worker does between two kills, at least
GOES_ON_WITHIN_S = 60.0
# A worker that was not told in time of the end of its server may begin a job so late that it is not its own any more.
LATE_S = 5.0
DRAINED_WITHIN_S = 300.0
LAST_BYTES = 1 << 14


class File(Scene):
    """A server with a file, which is started again after each kill."""

    name = "kills, SQLite"

    @property
    def url(self):
        return f"beanlite://127.0.0.1:{self.port}"

    def strike(self):
        self.kill()
        self.start()


class Takeovers(Scene):
    """Two servers; clients that can't be told of both have a proxy to the active one."""

    name = "takeovers, PostgreSQL"

    def start(self):
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._proxy = Cutting(0)
        self._inside(self._proxy.__aenter__())
        self.port = self._proxy.port
        self._pair = Pair()
        self._nodes = [Node(self.folder, number, self._pair.url()) for number in range(2)]
        self._find_active(self._nodes)

    def _inside(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _find_active(self, nodes):
        """Wait until one of the servers answers."""
        until(lambda: any(map(self._is_active, nodes)))

    def _is_active(self, node):
        assert node.process.poll() is None, node.log()
        with suppress(OSError), Wire(socket.create_connection(("127.0.0.1", node.port), 1)) as wire:
            wire.ask("list-tube-used")
            self._active = node
            self._proxy.to_port = node.port
            return True
        return False

    @property
    def url(self):
        return "beanlite://" + ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)

    def strike(self):
        killed = self._active
        killed.process.kill()
        killed.process.wait()
        self._find_active([node for node in self._nodes if node is not killed])
        killed.start()

    def kill(self):
        for node in self._nodes:
            node.process.kill()
            node.process.wait()
        self._pair.end()
        self._inside(self._proxy.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def server_log(self):
        return "".join(node.log() for node in self._nodes)


class Run:
    """All programs with the servers of one kind."""

    def __init__(self, scene, seconds, kills, cancels):
        self._scene = scene
        self._seconds = seconds
        self._kills = kills
        self._cancels = cancels
        self._page = [name for name in WORKERS if is_there(name)]
        self._workers = [*self._page, *OWN, "work"]
        self._outages = []
        """When each kill was, and when there was a server again."""
        self._waits = defaultdict(list)
        """How long each program then took to go on."""
        self.complaints = []

    def run(self):
        """Do all of it, and return the lines of a report."""
        scene = self._scene
        self._processes = {name: scene.begin(name) for name in self._page}
        for name in OWN:
            self._processes[name] = self._own(name, f"work_{name}", name)
            self._processes[f"produce {name}"] = self._own(f"produce {name}", f"produce_{name}", *self._workers)
        self._processes["work"] = self._work()
        cancels = self._own("cancels", "cancel_asyncio", str(self._seconds), str(self._cancels))
        with Page(scene):
            self._strike()
            self._end("produce asyncio", "produce blocking")
        if cancels.wait(DRAINED_WITHIN_S):
            self.complaints.append("the client whose reserves were cancelled has failed: see cancels/stderr")
        self._drain()
        self._end(*self._workers)
        return [self._judge(name) for name in self._workers] + self._others()

    def _own(self, name, role, *arguments):
        return self._begin(name, HERE / "with_workers/with_beanlite.py", role, self._scene.url, *arguments)

    def _work(self):
        flags = ["--tube", "work.mail", "--tube", "work.reports", "--concurrency", str(CONCURRENCY)]
        places = self._scene.url.removeprefix("beanlite://")
        return self._begin("work", "-m", "beanlite", "work", "with_beanlite:do", *flags, "--connect", places)

    def _begin(self, name, *arguments):
        folder = self._scene.folder / name
        folder.mkdir()
        shutil.copy(HERE / "with_workers/with_beanlite.py", folder)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (folder / "stdout").open("ab") as out, (folder / "stderr").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=folder, env=environment, stdout=out, stderr=errors
            )
        self._scene.programs.append(process)
        return process

    def _strike(self):
        """Kill the server again and again, each time when all programs have gone on."""
        pace_s = self._seconds / self._kills
        began_s = time.monotonic()
        self._all_go_on(began_s, began_s)
        for number in range(self._kills):
            time.sleep(max(0.0, began_s + number * pace_s - time.monotonic()))
            killed_s = time.monotonic()
            self._scene.strike()
            up_s = time.monotonic()
            self._outages.append((killed_s, up_s))
            self._all_go_on(killed_s, up_s)
            if number % 10 == 9:
                print(f"{self._scene.name}: {number + 1}", flush=True)

    def _all_go_on(self, killed_s, up_s):
        waiting = dict.fromkeys(self._workers, "end") | {f"produce {name}": "put" for name in OWN}
        while waiting and time.monotonic() < up_s + GOES_ON_WITHIN_S:
            time.sleep(0.1)
            for name, word in list(waiting.items()):
                later = [at_s for _, at_s in self._lines(name, word, LAST_BYTES) if at_s > up_s]
                if len(later) >= EACH:
                    del waiting[name]
                    if self._outages:
                        self._waits[name].append(later[0] - killed_s)
        for name in waiting:
            self.complaints.append(
                f"{name} has not gone on within {GOES_ON_WITHIN_S:.0f} s of kill {len(self._outages)}"
            )

    def _lines(self, name, wanted, last=0):
        """Return key and time of the lines of a program's log, or of the ``last`` bytes of it."""
        try:
            with (self._scene.folder / name / "log").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - last) if last else 0)
                lines = file.read().decode().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        words = [line.split() for line in lines[bool(last) :] if line.endswith("\n")]
        return [(key, float(at_s)) for word, key, at_s in words if word == wanted]

    def _end(self, *names):
        for name in names:
            self._processes[name].terminate()
        for name in names:
            if code := self._processes[name].wait(30):
                self.complaints.append(f"{name} has ended with exit code {code}")

    def _drain(self):
        states = ("ready", "reserved", "delayed", "buried")
        deadline_s = time.monotonic() + DRAINED_WITHIN_S
        with self._scene.connect() as wire:
            while left := sum(int(wire.stats()[f"current-jobs-{state}"]) for state in states):
                if time.monotonic() > deadline_s:
                    self.complaints.append(f"{left} jobs are left")
                    return
                time.sleep(0.1)

    def _put(self, name, word):
        """Return the keys of a worker's jobs whose put was acknowledged, or was not answered."""
        keys = {
            key.removeprefix(f"{name}/")
            for each in OWN
            for key, _ in self._lines(f"produce {each}", word)
            if key.startswith(f"{name}/")
        }
        if name == "python" and word == "put":
            keys |= set((self._scene.folder / "python/acknowledged").read_text().split())
        return keys

    def _judge(self, name):
        put, perhaps = self._put(name, "put"), self._put(name, "unknown")
        begun, ended = self._lines(name, "begin"), {key for key, _ in self._lines(name, "end")}
        lost = put - ended
        strange = {key for key in ended - put - perhaps if not key.startswith("other-")}
        twice = self._twice(begun)
        late = self._again_after_delete(name, begun)
        wrong = {"lost": len(lost), "never put": len(strange), "twice without a kill": len(twice), "after delete": late}
        self.complaints += [f"{name}: {number} {what}" for what, number in wrong.items() if number]
        self._read_errors(name)
        return (
            f"{name}: {len(put)} acknowledged, {len(perhaps)} perhaps, {len(ended)} done, "
            f"{len(begun) - len({key for key, _ in begun})} again; {self._went_on(name)}"
        )

    def _read_errors(self, name):
        """Complain if a job was taken from a worker but by a kill, or if beanlite's own client has failed."""
        errors = (self._scene.folder / name / "stderr").read_text(errors="replace")
        at_a_time = CONCURRENCY if name == "work" else 1
        is_ours = name not in self._page
        if errors.count("not ours any more") > at_a_time * len(self._outages) or (is_ours and "Traceback" in errors):
            self.complaints.append(f"{name}: {errors[-2000:]}")

    def _went_on(self, name):
        waits = self._waits[name]
        return f"went on {statistics.median(waits):.2f} s after a kill, {max(waits):.2f} at most" if waits else ""

    def _twice(self, begun):
        """Return the keys of jobs that were begun twice without a kill in between.

        The producer of the page may put a job twice, so of its jobs nobody knows.
        """
        before, wrong = {}, set()
        for key, at_s in begun:
            first_s = before.get(key)
            before[key] = at_s
            if first_s is None or key.startswith("other-"):
                continue
            if not any(killed_s <= at_s and first_s <= up_s + LATE_S for killed_s, up_s in self._outages):
                wrong.add(key)
        return wrong

    def _again_after_delete(self, name, begun):
        deleted = dict(self._lines(name, "deleted"))
        return sum(at_s > deleted.get(key, at_s) for key, at_s in begun)

    def _others(self):
        gone_s = [up_s - killed_s for killed_s, up_s in self._outages]
        lines = [f"produce {name}: {self._went_on(f'produce {name}')}" for name in OWN]
        lines.append(f"cancelled reserves: {len(self._lines('cancels', 'cancelled')) * 20}")
        return [*lines, f"no server for {statistics.median(gone_s):.2f} s, {max(gone_s):.2f} at most"]


class Page(threading.Thread):
    """The producer of the page, which puts jobs for its worker in Python."""

    def __init__(self, scene):
        super().__init__(daemon=True)
        self._enough = threading.Event()
        with (scene.prepare("python") / "acknowledged").open("wb") as told:
            self._program = scene.popen("python", sys.executable, "produce.py", stdin=subprocess.PIPE, stdout=told)

    def run(self):
        number = 0
        while not self._enough.wait(0.25):
            self._program.stdin.write(b"other-%d\n" % number)
            self._program.stdin.flush()
            number += 1

    def __enter__(self):
        self.start()

    def __exit__(self, *_error):
        self._enough.set()
        self.join()
        self._program.stdin.close()
        assert self._program.wait(60) == 0


def main():
    """Run both halves, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--kills", type=int, default=100, help="half of them are takeovers")
    parser.add_argument("--cancels", type=int, default=10_000, help="reserves that are cancelled")
    asked = parser.parse_args()
    complaints = []
    for kind in (File, Takeovers):
        folder = Path(tempfile.mkdtemp(prefix="beanlite-soak-"))
        with kind(folder) as scene:
            run = Run(scene, asked.minutes * 30, max(1, asked.kills // 2), asked.cancels // 2)
            print(f"{kind.name}: {asked.kills // 2}", *run.run(), sep="\n  ", flush=True)
        complaints += [f"{kind.name}: {text}, see {folder}" for text in run.complaints]
        if not run.complaints:
            shutil.rmtree(folder)
    print(*complaints, "FAILED" if complaints else "PASSED", sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
