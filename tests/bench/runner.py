"""Rounds of load: each target in turn, so that disturbances of the machine affect all of them."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from beanlite.beanstalk.client import TIMEOUT_S, Unreachable
from beanlite.client.errors import ClientError
from tests.bench import machine
from tests.bench.control import Control
from tests.bench.histogram import Histogram
from tests.bench.target import BenchFailed, Target
from tests.bench.worker import Spec

_FAILURES: Final = (Unreachable, ClientError)
_TICK_S: Final = 0.25
_LEAD_S: Final = 0.03  # for all processes to read the start time


@dataclass(frozen=True, slots=True)
class Options:
    """The kind of load, and how long it lasts."""

    workload: str = "cycle"
    connections: int = 50
    beside: int = 0
    depth: int = 1
    body: int = 100
    tubes: int = 1
    seconds: float = 3.0
    warmup_s: float = 0.5
    rounds: int = 3
    rate: float = 0.0
    jobs: int = 100_000
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """The results of one target in one round."""

    seconds: float
    commands: int
    jobs: int
    commands_per_s: float
    jobs_per_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    generator_busy: float
    """The share of the time that the busiest generator process used its core."""
    server_busy: float | None
    """Likewise for the server, over all its threads, so it can be more than 1. None if its process is not known."""
    queued: float
    """The largest share of the time that one of these processes was ready to run but waited for its core."""
    left: int
    """Jobs of the bench that could not be deleted."""


def run(
    options: Options, targets: list[Target], cores: list[int] | None, progress: Callable[[float], None]
) -> list[list[Round]]:
    """Carry out all rounds; return a list of rounds for each target. BenchFailed: a server failed.

    The generator runs on these cores. `progress` is called with the seconds of load that have passed since its last
    call.
    """
    results: list[list[Round]] = [[] for _ in targets]
    for _ in range(options.rounds):
        for target, rounds in zip(targets, results, strict=True):
            try:
                rounds.append(_round(options, target, cores, progress))
            except _FAILURES as error:
                raise BenchFailed(f"{target.name}: {error}") from error
    return results


def _round(options: Options, target: Target, cores: list[int] | None, progress: Callable[[float], None]) -> Round:
    tubes = [f"bench-{os.getpid()}-{number}" for number in range(options.tubes)]
    try:
        with Control(target.address) as control:
            if options.workload == "drain":
                control.fill(tubes, options.body, options.jobs)
            with _workers(options, target, tubes, cores) as workers:
                measured = _measure(options, target, workers, progress)
            return Round(**measured, left=control.clear(tubes, options.body))
    except BaseException:
        # On a new connection: the first one may have been interrupted in the middle of a reply, or hold jobs.
        with contextlib.suppress(*_FAILURES), Control(target.address) as another:
            another.clear(tubes, options.body)
        raise


Worker = subprocess.Popen[str]


@contextlib.contextmanager
def _workers(options: Options, target: Target, tubes: list[str], cores: list[int] | None) -> Iterator[list[Worker]]:
    """Start the generator processes; yield them when all have connected."""
    workers = []
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # in any folder they find what was found here
    try:
        for process in range(options.processes):
            spec = Spec(
                address=target.address,
                workload=options.workload,
                depth=options.depth,
                body=options.body,
                tubes=tubes,
                connections=list(range(process, options.connections, options.processes)),
                connections_in_all=options.connections,
                beside=len(range(process, options.beside, options.processes)),
                rate=options.rate,
                warmup_s=0.0 if options.workload == "drain" else options.warmup_s,
                seconds=options.seconds,
            )
            with machine.children_on(cores):
                workers.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", "tests.bench.worker", json.dumps(asdict(spec))],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                        env=environ,
                    )
                )
        for worker in workers:
            line = _line(target, worker)
            if line != "ready":
                raise BenchFailed(f"{target.name}: {line}")
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _measure(
    options: Options, target: Target, workers: list[Worker], progress: Callable[[float], None]
) -> dict[str, Any]:
    """Start the load, watch the server meanwhile, and gather the workers' results."""
    start_s = time.monotonic() + _LEAD_S
    for worker in workers:
        print(round(start_s * 1e9), file=worker.stdin, flush=True)
    warm_s = start_s + (0.0 if options.workload == "drain" else options.warmup_s)
    end_s = warm_s + options.seconds
    said: dict[int, dict[str, Any]] = {}
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            assert worker.stdout
            selector.register(worker.stdout, selectors.EVENT_READ, worker)
        _gather(target, selector, said, warm_s, progress)
        began_s, before = time.monotonic(), (machine.cpu_s(target.pid), machine.queued_s(target.pid))
        _gather(target, selector, said, end_s, progress)
        watched_s = max(time.monotonic() - began_s, 1e-3)
        after = machine.cpu_s(target.pid), machine.queued_s(target.pid)
        _gather(target, selector, said, end_s + 2 * TIMEOUT_S, progress)
    if len(said) < len(workers):
        raise BenchFailed(f"{target.name}: the load came to no end")
    results = list(said.values())
    seconds = max(result["seconds"] for result in results)
    histogram = Histogram()
    for result in results:
        histogram.merge(Histogram.load(result["histogram"]))
    server_busy, server_queued = (
        None if then is None or now is None else (now - then) / watched_s
        for then, now in zip(before, after, strict=True)
    )
    commands = sum(result["commands"] for result in results)
    jobs = sum(result["jobs"] for result in results)
    return {
        "seconds": seconds,
        "commands": commands,
        "jobs": jobs,
        "commands_per_s": commands / seconds,
        "jobs_per_s": jobs / seconds,
        "p50_us": histogram.percentile_ns(50) / 1e3,
        "p99_us": histogram.percentile_ns(99) / 1e3,
        "p999_us": histogram.percentile_ns(99.9) / 1e3,
        "max_us": histogram.max_ns / 1e3,
        "generator_busy": max(result["busy_s"] / result["seconds"] for result in results),
        "server_busy": server_busy,
        "queued": max(server_queued or 0.0, *(result["queued_s"] / result["seconds"] for result in results)),
    }


def _gather(
    target: Target,
    selector: selectors.BaseSelector,
    said: dict[int, dict[str, Any]],
    until_s: float,
    progress: Callable[[float], None],
) -> None:
    """Gather the workers' results until a given time, or until all have reported. BenchFailed: one has failed."""
    now_s = time.monotonic()
    while selector.get_map() and now_s < until_s:
        for key, _ in selector.select(min(_TICK_S, until_s - now_s)):
            line = _line(target, key.data)
            if not line.startswith("{"):
                raise BenchFailed(f"{target.name}: {line}")
            said[key.data.pid] = json.loads(line)
            selector.unregister(key.fileobj)
        before_s, now_s = now_s, time.monotonic()
        progress(now_s - before_s)


def _line(target: Target, worker: Worker) -> str:
    assert worker.stdout
    line = worker.stdout.readline()
    if not line:
        raise BenchFailed(f"{target.name}: a generator process ended with {worker.wait()}")
    return line.rstrip("\n")
