"""All kinds of faults in turn, for as long as there is time: by night, or before a release.

::

    python -m tests.faults --minutes 480

Each part has a seed, and says it; of one that fails the command is told that repeats it. The exit code is 1 if any did.
"""

import argparse
import itertools
import os
import random
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import NamedTuple

SIMULATOR = "tests.simulator"
SIMULATED_MINUTES = 2


class Part(NamedTuple):
    """Some of the faults, by a command that is given the seed."""

    name: str
    flags: str
    """Of Python, with {seed} in it."""
    environment: str = ""

    def run(self, seed):
        """What is to be told of it, and whether it went wrong."""
        command, environment = self.flags.format(seed=seed), self.environment.format(seed=seed)
        values = dict(pair.split("=") for pair in environment.split())
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, *command.split()],
            env=os.environ | values,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        said = f"{self.name}, seed {seed}: {time.monotonic() - began_s:.0f} s"
        if done.returncode:
            said += f", WRONG\n{done.stdout}\nagain: {environment} python {command}".replace("again:  ", "again: ")
        return said, bool(done.returncode)


PYTEST = "-m pytest -q -p no:cacheprovider tests/faults/"
PARTS = [
    Part("power failures", f"{PYTEST}test_power.py", "FAULTS=2 FAULTS_SEED={seed}"),
    Part("kills in a row", f"{PYTEST}test_kill.py -k again", "FAULTS=50 FAULTS_SEED={seed}"),
    Part("power failures amid a restore", f"{PYTEST}test_replaced.py", "FAULTS=3 FAULTS_SEED={seed}"),
    Part("system calls", "-m tests.faults.calls 100 --seed {seed}"),
]
if find_spec(SIMULATOR) is not None:
    PARTS.append(Part("simulated", f"-m {SIMULATOR} --minutes {SIMULATED_MINUTES}"))  # it says its seed itself


def main():
    """Read the flags, and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True, help="no part is begun after so long")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the first round; then one more")
    flags = parser.parse_args()
    end_s = time.monotonic() + 60 * flags.minutes
    wrong = done = 0
    for number in itertools.count():
        if time.monotonic() >= end_s:
            break
        said, failed = PARTS[number % len(PARTS)].run(flags.seed + number // len(PARTS))
        print(said, flush=True)
        wrong += failed
        done += 1
    print(f"{wrong} of {done} parts went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
