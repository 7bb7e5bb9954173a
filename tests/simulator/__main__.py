"""``python -m tests.simulator --seed 17``: see --help."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", help="A..B")
    parser.add_argument("--minutes", type=float)
    flags = parser.parse_args()
    if "faults" not in os.environ.get("LD_PRELOAD", ""):
        from tests.faults.forker import build

        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "faults.so"
            build(library)
            environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONHASHSEED": "0"}
            command = [sys.executable, "-m", "tests.simulator", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    from tests.simulator import run

    run.prepare()
    real = run.worlds.real_s
    began = real()
    first, last = (flags.seed, flags.seed) if flags.seed is not None else map(int, flags.seeds.split(".."))
    bad = {}
    for seed in range(first, last + 1):
        try:
            played = run.play(seed)
        except Exception as error:
            key = f"{type(error).__name__}: {error}"
            bad.setdefault(key[:60], []).append(seed)
            if len(bad[key[:60]]) == 1:
                print(f"seed {seed}: {key}", flush=True)
                if flags.seed is not None or not isinstance(error, run.BrokenPromiseError): traceback.print_exc()
    took = real() - began
    print(f"{last - first + 1} seeds in {took:.1f} s")
    for key, seeds in bad.items(): print(len(seeds), key, seeds[:5])
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
