"""Random sessions in which delays, timeouts and pauses of a second or two do end, with both servers.

Their steps are 0.37 s apart: what a step begins ends whole seconds later, and so never at the time of another one.
"""

import os
import random
import re
import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.needs import need
from tests.support.servers import RunningServer, beanstalkd_program, start_beanlite, start_beanstalkd
from tests.support.wire import Wire

SEED = int(os.environ.get("RANDOM_SEED", str(random.randrange(1 << 32))))
SESSIONS = 16
STEP_S = 0.37
STEPS = 8
END_S = 2.33
TTR_S = 1000
WORKERS = 2
TRIES = 8  # a machine that stands still for a tenth of a second makes a difference, too
# Its age and what is left of a time are a matter of microseconds at the end.
LEFT_OUT = re.compile(r"^(id|age|time-left|pause-time-left|file): .*\n", re.MULTILINE)

Step = tuple[str, str]


def random_session(chance: random.Random) -> list[Step]:
    """Who says what. No ttr ends: the reference loses such timers when several clients have some."""
    steps: list[Step] = []
    for slot in range(STEPS):
        put = f"put {chance.randrange(3)} {chance.choice((0, 1, 1, 2))} {TTR_S} 1\r\nx"
        if slot == 0:
            steps.append(("producer", put))
            continue
        steps.append(
            chance.choice(
                [
                    ("producer", put),
                    (f"worker {chance.randrange(WORKERS)}", f"reserve-with-timeout {chance.choice((1, 2))}"),
                    ("producer", chance.choice(["kick 1", "pause-tube {tube} 1", "peek-delayed", "peek-ready"])),
                    (f"worker {chance.randrange(WORKERS)}", chance.choice(WORK)),
                ]
            )
        )
    return steps


WORK = ["touch {job}", "release {job} 0 0", "release {job} 0 1", "release {job} 5 2", "bury {job} 1", "delete {job}"]


def play(server: RunningServer, tube: str, steps: list[Step]) -> list[str]:
    """Who was told what and when; in the end, what is left."""
    wires: dict[str, Wire] = {}
    for name in ["producer", *(f"worker {number}" for number in range(WORKERS))]:
        wires[name] = Wire(server.connect())
        for line in (f"use {tube}", f"watch {tube}", "ignore default"):
            wires[name].ask(line)
    jobs: list[str] = []
    reserved: dict[str, str] = {}
    told: list[str] = []
    waits: list[str] = []
    began = time.monotonic()
    for number, (who, command) in enumerate(steps):
        time.sleep(max(0.0, began + number * STEP_S - time.monotonic()))
        told += _hear(wires, number, jobs, reserved, waits)
        if command.startswith("reserve"):
            if waits:
                continue  # the reference does not serve several in their order
            waits.append(who)
        line = command.format(tube=tube, job=reserved.get(who, "99999999"))
        wires[who].send(line.encode() + b"\r\n")
    time.sleep(END_S)
    told += _hear(wires, len(steps), jobs, reserved, waits)
    last = wires["producer"]
    for line in [f"stats-tube {tube}", *(f"stats-job {job}" for job in jobs)]:
        told.append(f"{line.split()[0]}: {last.ask(line).split()[0]}")
        if told[-1].endswith("OK"):
            told[-1] += LEFT_OUT.sub("", last.body.decode().replace('"', ""))
    for wire in wires.values():
        wire.close()
    return told


def _hear(
    wires: dict[str, Wire], number: int, jobs: list[str], reserved: dict[str, str], waits: list[str]
) -> list[str]:
    """What has come by now, jobs called by their number."""
    told = []
    for name, wire in wires.items():
        while wire._received or select.select([wire.socket], [], [], 0)[0]:
            words = wire.reply().split()
            if words[0] == "INSERTED":
                jobs.append(words[1])
            elif words[0] == "RESERVED":
                reserved[name] = words[1]
            if words[0] in {"RESERVED", "TIMED_OUT"}:
                waits.clear()
            told.append(
                f"{number}: {name}: {' '.join(str(jobs.index(word)) if word in jobs else word for word in words)}"
            )
    return told


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RunningServer, RunningServer]]:
    need(beanstalkd_program(), "beanstalkd is not installed")
    with start_beanlite(tmp_path / "beanlite") as ours, start_beanstalkd(tmp_path / "beanstalkd") as theirs:
        yield ours, theirs


def test_random_times(
    servers: tuple[RunningServer, RunningServer], record_property: Callable[[str, object], None]
) -> None:
    print(f"RANDOM_SEED={SEED}")  # noqa: T201 - shown if it fails
    chance = random.Random(SEED)
    left = {f"t{number}": random_session(chance) for number in range(SESSIONS)}
    differences: list[str] = []
    with ThreadPoolExecutor(2 * SESSIONS) as pool:
        for turn in range(TRIES):
            runs = {
                tube: [pool.submit(play, server, f"{tube}-{turn}", steps) for server in servers]
                for tube, steps in left.items()
            }
            differences.clear()
            for tube, (ours, theirs) in runs.items():
                if ours.result() == theirs.result():
                    del left[tube]
                else:
                    lists = "\n".join([f"{left[tube]}", "beanlite:", *ours.result(), "beanstalkd:", *theirs.result()])
                    differences.append(lists)
            if not left:
                break
    assert not differences, "\n\n".join(differences)
    record_property("random times", SESSIONS)
