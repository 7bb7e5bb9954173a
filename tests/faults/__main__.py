"""All kinds of faults, each for its share of the time: overnight, before a release, or for a few minutes in CI.

::

    python -m tests.faults --minutes 480

It tries the beanlite that its interpreter imports. To try a wheel, run it in a folder that has only the tests, the
README and pyproject.toml, with the interpreter for which the wheel is installed.
Each part prints its seed; a part that fails also prints the command that repeats it. The exit code is 1 if any failed.
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import beanlite
from beanlite import __version__, is_compiled

PART_S = 300  # no part is planned to take longer, so that there is output from time to time


class Kind(NamedTuple):
    """A kind of fault, and the command that tries some faults of this kind."""

    name: str
    unit: str
    """What the command counts: at the end it prints, for example, "17 kills"."""
    flags: str
    """The arguments for Python, with {seed}, and {size} for how many to try."""
    environment: str = ""
    least: int = 1
    """The smallest size; most of the time then goes into the start."""


PYTEST = "-m pytest -q -p no:cacheprovider tests/faults/"
KINDS = (  # those whose parts are short come first, so that a minute has some of each
    Kind("lives", "kills", "-m tests.faults.lives {size} --seed {seed}", least=10),
    Kind("kills in a row", "kills", f"{PYTEST}test_kill.py -k again", "FAULTS={size} FAULTS_SEED={seed}", least=10),
    Kind("system calls", "calls", "-m tests.faults.calls {size} --seed {seed}", least=20),
    Kind("damages", "damages", "-m tests.faults.rot --seeds {size} --from {seed}", least=50),
    Kind("simulated", "seeds", "-m tests.simulator --seeds {seed}..{last}", least=50),
    Kind("ends of a command", "kills", f"{PYTEST}test_commands.py", "FAULTS={size} FAULTS_SEED={seed}"),
    Kind("power failures", "images", f"{PYTEST}test_power.py", "FAULTS={size} FAULTS_SEED={seed}"),
)
ONLY_SOURCES = {"simulated"}
"""Kinds that replace parts of the server, which can't be done to compiled ones."""


class Shares:
    """Divides the time: the kind with the most of its share left is next, with as much as fits into what remains."""

    def __init__(self, kinds, share_s):
        self._left_s = dict.fromkeys(kinds, share_s)
        self._per_s = dict.fromkeys(kinds, 0.0)
        self._idle = set(kinds)

    def begin(self, within_s):
        """Return the next kind, and how much of it to try."""
        kind = max(self._left_s, key=lambda kind: (kind in self._idle, self._left_s[kind]))
        self._idle.remove(kind)
        fits = self._per_s[kind] * min(self._left_s[kind], within_s, PART_S)
        return kind, max(kind.least, int(fits))

    def end(self, kind, size, took_s):
        self._idle.add(kind)
        self._left_s[kind] -= took_s
        self._per_s[kind] = size / took_s


class Run:
    """Runs parts one after another, in as many lanes as there are cores."""

    def __init__(self, kinds, minutes, seed, clock_s=time.monotonic):
        self.tried = Counter()
        self.done = self.wrong = 0
        self._lanes = min(len(os.sched_getaffinity(0)), len(kinds))
        self._shares = Shares(kinds, 60 * minutes * self._lanes / len(kinds))
        self._chance = random.Random(seed)
        self._clock_s = clock_s
        self._end_s = clock_s() + 60 * minutes

    async def play(self):
        async with asyncio.TaskGroup() as lanes:
            for _ in range(self._lanes):
                lanes.create_task(self._lane())

    async def _lane(self):
        while (left_s := self._end_s - self._clock_s()) > 0:
            kind, size = self._shares.begin(left_s)
            seed = self._chance.randrange(1 << 32)
            began_s = self._clock_s()
            code, said, again = await carry_out(kind, size, seed)
            took_s = self._clock_s() - began_s
            self._shares.end(kind, size, took_s)
            self._note(kind, f"{kind.name}, seed {seed}: {took_s:.0f} s", code, said, again)

    def _note(self, kind, part, code, said, again):
        number = counted(kind, said)
        self.tried[kind.unit] += number
        self.done += 1
        if code or not number:  # a part that tried nothing, as without a compiler, proves nothing
            self.wrong += 1
            print(f"{part}, WRONG\n{said}\nagain: {again}", flush=True)
        else:
            print(f"{part}, {number} {kind.unit}", flush=True)


async def carry_out(kind, size, seed):
    """Try faults of this kind; return the exit code, the output, and the command."""
    values = {"size": size, "seed": seed, "last": seed + size - 1}
    command, environment = kind.flags.format(**values), kind.environment.format(**values)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command.split(),
        env=os.environ | dict(pair.split("=") for pair in environment.split()),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=Path(__file__).parents[2],
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode(errors="replace"), f"{environment} python {command}".lstrip()


def counted(kind, said):
    """Return how much was tried, according to the last count in the output."""
    counts = re.findall(rf"(\d+) {kind.unit}\b", said)
    return int(counts[-1]) if counts else 0


def main():
    """Read the flags and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True, help="no part is begun after so long")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="by which those of the parts come")
    flags = parser.parse_args()
    build = "compiled" if is_compiled() else "plain"
    print(f"seed {flags.seed}, beanlite {__version__}, {build}, in {Path(beanlite.__file__).parent}", flush=True)
    kinds = [kind for kind in KINDS if build == "plain" or kind.name not in ONLY_SOURCES]
    run = Run(kinds, flags.minutes, flags.seed)
    with contextlib.suppress(KeyboardInterrupt):  # an interrupted run still prints what was tried
        asyncio.run(run.play())
    tried = ", ".join(f"{number} {unit}" for unit, number in sorted(run.tried.items())) or "nothing"
    print(f"{tried}: {run.wrong} of {run.done} parts went wrong, seed {flags.seed}")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
