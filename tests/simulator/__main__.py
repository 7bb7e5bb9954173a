"""``python -m tests.simulator --seed 17``; see --help."""

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from tests.faults.forker import build
from tests.simulator.mutants import MUTANTS, plant

SEEDS = range(1, 1001)
MOST = 10  # a series ends after this many seeds have gone wrong


def main() -> int:
    """Read the flags and run. The exit code is 0 if nothing went wrong, else 1."""
    flags = read_flags()
    if "simulator.so" not in os.environ.get("LD_PRELOAD", ""):
        return begin_again(sys.argv[1:])
    if flags.mutants:
        return try_all(SEEDS if flags.seeds is None else flags.seeds)
    if flags.mutant is not None:
        plant(flags.mutant)
    from tests.simulator import disk, world

    world.install()
    disk.install()
    from tests.simulator import fit, run  # after install(): what these import gets its clock from the world

    fit.prepare()
    return play_all(run, flags)


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulator",
        description="A whole server in simulated time, on a disk that fails, clients by chance: a seed repeats it.",
    )
    parser.add_argument("--seed", type=int, help="one seed, and the traceback of what goes wrong")
    parser.add_argument("--seeds", type=from_to, help="a series of them, as 1..1000, which is the default")
    parser.add_argument("--minutes", type=float, help="for so long, from a seed by chance on")
    parser.add_argument("--trace", action="store_true", help="print what each client says and hears")
    parser.add_argument("--mutant", choices=MUTANTS, metavar="NAME", help="with this bug planted in the server")
    parser.add_argument("--mutants", action="store_true", help="with each of them: which seed finds it?")
    return parser.parse_args()


def from_to(text: str) -> range:
    first, last = map(int, text.split(".."))
    return range(first, last + 1)


def begin_again(args: list[str]) -> int:
    """Run the same command with faults.c preloaded, which sees every file operation, and with a fixed hash seed."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "simulator.so"
        build(library)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BEANLITE_")}
        others = os.environ.get("LD_PRELOAD", "")  # a faster allocator, for example
        environment |= {"LD_PRELOAD": f"{others} {library}".strip(), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "tests.simulator", *args]
        return subprocess.run(command, env=environment, check=False).returncode


def play_all(run, flags: argparse.Namespace) -> int:
    began_s = run.worlds.real_s()
    seeds = SEEDS if flags.seeds is None else flags.seeds
    if flags.seed is not None:
        seeds = [flags.seed]
    elif flags.minutes is not None:
        seeds = itertools.count(random.SystemRandom().randrange(1 << 40))
    played, wrong, digest = 0, [], 0
    for seed in seeds:
        if flags.minutes is not None and run.worlds.real_s() - began_s > 60 * flags.minutes:
            break
        played += 1
        try:
            digest ^= run.play(seed, trace=flags.trace).world.digest
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            wrong.append(seed)
            mutant = "" if flags.mutant is None else f' --mutant "{flags.mutant}"'
            why = " ".join(str(error).split()) or type(error).__name__
            print(f"{why}\n    python -m tests.simulator --seed {seed}{mutant}", flush=True)
            if flags.seed is not None:
                traceback.print_exc()
            if flags.mutant is not None or len(wrong) == MOST:
                break
    took_s = run.worlds.real_s() - began_s
    print(f"{played} seeds in {took_s:.0f} s, {len(wrong)} of them went wrong ({digest:08x})")
    return 1 if wrong else 0


def try_all(seeds: range) -> int:
    """Run each mutant in a process of its own; return 1 if one is not found."""
    lost = 0
    for name in MUTANTS:
        command = [sys.executable, "-m", "tests.simulator", "--mutant", name, "--seeds", f"{seeds[0]}..{seeds[-1]}"]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        assert not ended.stderr, ended.stderr
        if ended.returncode:
            why, how, _ = ended.stdout.split("\n", 2)
            print(f"{name}: {how.split('--seed ')[1].split()[0]}, {why[:150]}", flush=True)
        else:
            lost += 1
            print(f"{name}: NOT FOUND by {len(seeds)} seeds", flush=True)
    print(f"{len(MUTANTS) - lost} of {len(MUTANTS)} were found")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
