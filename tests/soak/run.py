"""One soak from its begin to its verdict."""

import contextlib
import importlib.util
import json
import multiprocessing
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from beanlite.errors import missing
from tests.soak import judge, load
from tests.soak.faults import Faults
from tests.soak.load import Plan, Report
from tests.soak.plot import Fault, plot
from tests.soak.probe import Probe
from tests.soak.server import Failed, Server

APART = multiprocessing.get_context("spawn")
TELL_EVERY_S = 5.0
COMPARES_WITHIN_S = 900.0
WAVES_MIN = 8
WAVE_MAX_S = 60.0
JOBS_PER_S = 150  # what the backlog of a wave of one second is, if nothing else was asked for
EVERY_MAX_S = 12.0


@dataclass(frozen=True)
class Wish:
    """What was asked for."""

    seconds: float
    seed: int
    out: Path
    directory: Path | None
    connections: int
    backlog: int | None
    flags: list[str]


@dataclass
class Verdict:
    """What is wrong, and what was seen."""

    complaints: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.complaints

    def __str__(self) -> str:
        wrong = [f"WRONG: {complaint}" for complaint in self.complaints]
        return "\n".join([*self.lines, *wrong, "PASSED" if self.passed else "FAILED"])


class Soak:
    """A server, its load, its faults, and what is written down of them."""

    def __init__(self, wish: Wish, directory: Path) -> None:
        self.wish = wish
        self.samples: list[judge.Sample] = []
        self.faults: list[Fault] = []
        self.report: Report | None = None
        self.complaints: list[str] = []
        self._began_s = time.monotonic()
        self._record = (wish.out / "samples.jsonl").open("w", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()
        self._server = Server(directory, wish.out / "server.log", wish.flags)

    def run(self) -> Verdict:
        """All of it. Ctrl-C ends the load early."""
        try:
            self._server.start()
            with self._load() as pipe, self._company() as (probe, faults):
                with contextlib.suppress(KeyboardInterrupt):
                    self._watch(pipe, probe, faults)
                self._finish(pipe, probe, faults)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.complaints.append("the load has ended by itself")
        except (Failed, OSError, sqlite3.Error) as error:
            self.complaints.append(str(error))
        finally:
            self._server.end()
            self._record.close()
        return self._verdict()

    @contextlib.contextmanager
    def _load(self) -> Iterator[Pipe]:
        """The process of the load, and the pipe to it."""
        wish, server = self.wish, self._server
        self._began_s = time.monotonic()
        wave_s = min(WAVE_MAX_S, wish.seconds / WAVES_MIN)
        backlog = wish.backlog or max(1, int(JOBS_PER_S * wave_s))
        size = int(server.stats()["max-job-size"])
        plan = Plan(server.port, server.db, size, wish.seed, wish.connections, backlog, wave_s, self._began_s)
        pipe, theirs = APART.Pipe()
        process = APART.Process(target=load.main, args=(theirs, plan), daemon=True)
        process.start()
        theirs.close()
        try:
            yield pipe
            process.join(10)
        finally:
            pipe.close()
            process.kill()
            process.join()
            process.close()

    @contextlib.contextmanager
    def _company(self) -> Iterator[tuple[Probe, Faults]]:
        """The threads beside the load."""
        wish = self.wish
        probe = Probe(self._server)
        faults = Faults(self._server, wish.seed, min(EVERY_MAX_S, wish.seconds / 20), wish.out, self._note)
        probe.start()
        faults.start()
        try:
            yield probe, faults
        finally:
            for thread in (faults, probe):
                thread.ending.set()
                thread.join()

    def _note(self, name: str, begin_s: float, end_s: float) -> None:
        fault = name, begin_s - self._began_s, end_s - self._began_s
        with self._lock:
            self.faults.append(fault)
            self._record.write(json.dumps({"fault": name, "begin": fault[1], "end": fault[2]}) + "\n")

    def _watch(self, pipe: Pipe, probe: Probe, faults: Faults) -> None:
        """Take a sample a second, until the time is over or the server has ended by itself."""
        told_s = 0.0
        while (t := time.monotonic() - self._began_s) < self.wish.seconds:
            faults.with_restarts = t < self.wish.seconds / 4
            self._sample(t, probe)
            self._receive(pipe)
            if t - told_s > TELL_EVERY_S and self.report:
                told_s = t
                self._tell(t, faults)
            if faults.complaints and not faults.is_alive():
                raise Failed(faults.complaints[-1])
            time.sleep(max(0, 1 - (time.monotonic() - self._began_s - t)))

    def _sample(self, t: float, probe: Probe) -> None:
        sample: judge.Sample = {"t": round(t, 3), **probe.latencies()}
        with contextlib.suppress(OSError, AssertionError, ValueError, sqlite3.Error):  # it is just being started again
            sample |= {"pid": self._server.pid, **self._server.figures()}
        if (jobs := self._server.jobs()) is not None:
            sample["jobs"] = jobs
        self.samples.append(sample)
        with self._lock:
            self._record.write(json.dumps(sample) + "\n")

    def _receive(self, pipe: Pipe) -> None:
        while pipe.poll():
            self.report = pipe.recv()

    def _tell(self, t: float, faults: Faults) -> None:
        last, report = self.samples[-1], self.report
        assert report
        rss, db, wal = (last.get(key, 0) / judge.MIB for key in ("rss", "db", "wal"))
        text = (
            f"{t:6.0f} s  {report.puts:,} puts, {report.deletes:,} deletes, {report.live:,} jobs, {rss:.0f} MiB,"
            f" {last.get('fds', 0):.0f} descriptors, file {db:.0f} + {wal:.0f} MiB, {len(self.faults)} faults"
        )
        wrong = len(report.complaints) + len(faults.complaints)
        print(text + (f", {wrong} WRONG" if wrong else ""), flush=True)

    def _finish(self, pipe: Pipe, probe: Probe, faults: Faults) -> None:
        """Kill it once more under load; then compare everything, drain it, and look at what is left."""
        print("a last kill, and the comparison", flush=True)
        faults.ending.set()
        faults.join(COMPARES_WITHIN_S)
        self._server.check()
        if self._server.db is not None:
            faults.do(faults.kill)
        probe.ending.set()
        probe.join(60)
        pipe.send(None)
        end_s = time.monotonic() + COMPARES_WITHIN_S
        while self.report is None or self.report.given is None:
            if time.monotonic() > end_s:
                raise Failed(f"the comparison did not end within {COMPARES_WITHIN_S:.0f} s")
            self._server.check()
            if pipe.poll(1):
                self.report = pipe.recv()
        self.complaints += [*faults.complaints, *probe.complaints]
        if self.report.given.has_any_of(probe.given):
            self.complaints.append("an id was given to two clients")
        left = self._server.jobs()
        if left:
            self.complaints.append(f"{left} jobs are left in the server")
        self._server.stop()
        if self._server.db is not None:
            self.complaints += wrong_in(self._server.db)

    def _verdict(self) -> Verdict:
        verdict, report = Verdict(list(self.complaints)), self.report
        if report is None:
            verdict.complaints.append("the load has not begun")
            return verdict
        verdict.complaints += report.complaints
        cut_off = sum(not self._server.was_down(when_s) for when_s in report.cut_off)
        if cut_off:
            verdict.complaints.append(f"{cut_off} connections were ended by the server without a reason")
        counts: dict[str, int] = {}
        for name, _, _ in self.faults:
            counts[name] = counts.get(name, 0) + 1
        done = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        verdict.lines += [
            f"{report.puts:,} puts and {report.deletes:,} deletes acknowledged",
            f"{report.checks:,} jobs looked for, {report.perhaps:,} puts never answered nor seen",
            f"faults: {done or 'none'}",
        ]
        for kind in judge.ALLOWED:
            trend = judge.trend(self.samples, kind)
            verdict.lines.append(str(trend))
            if not trend.flat:
                verdict.complaints.append(f"{trend.name} grows")
        verdict.lines.append(judge.latency(self.samples, [fault[1:] for fault in self.faults]))
        return verdict


def wrong_in(db: Path) -> list[str]:
    """What is wrong with the file of a server that was drained and stopped."""
    wrong = [f"{file.name} is left" for file in db.parent.glob(f"{db.name}-*")]
    with contextlib.closing(sqlite3.connect(f"{db.as_uri()}?mode=ro", uri=True)) as file:
        found = [row[0] for row in file.execute("PRAGMA integrity_check")]
        wrong += [] if found == ["ok"] else [f"the file is damaged: {found[:5]}"]
        for table in ("jobs", "bodies"):
            if rows := file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]:  # noqa: S608 - our own names
                wrong.append(f"{rows} rows are left in {table}")
    return wrong


def soak(wish: Wish) -> Verdict:
    """Do it, and write samples, log, verdict and, where matplotlib is installed, the plot."""
    wish.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wish.directory, prefix="soak-") as name:
        work = Soak(wish, Path(name).resolve())
        verdict = work.run()
    (wish.out / "verdict.txt").write_text(f"{verdict}\n", encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        title = f"{'passed' if verdict.passed else 'FAILED'}, seed {wish.seed}"
        plot(work.samples, work.faults, title, wish.out / "soak.svg")
    else:
        print(f"no plot: {missing('matplotlib')}", file=sys.stderr)
    return verdict
