"""``python -m tests.soak --minutes 30 --seed 1 --out DIR -- --fsync 50ms``."""

import argparse
import random
import sys
from pathlib import Path

from tests.soak.run import Wish, soak


def main() -> int:
    """Read the flags, and do it. The exit code is 0 if nothing was wrong, 1 if anything was, 130 without a verdict."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Mixed load with random faults on a server of its own. The verdict says whether anything was lost,"
        " came twice or grew. Ctrl-C ends it early, with a verdict on what was seen so far; a second one gives up.",
    )
    parser.add_argument("--minutes", type=float, default=30, help="how long; the comparison at the end comes on top")
    parser.add_argument("--seed", type=int, help="repeats the kind of a load and the order of the faults")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="where samples, log, verdict and plot go")
    parser.add_argument("--dir", type=Path, help="where the database is; a small tmpfs shows what a full disk does")
    parser.add_argument("--connections", type=int, default=300, help="clients")
    parser.add_argument(
        "--backlog", type=int, help="jobs at the top of a wave; fewer by default if the waves are short"
    )
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags for the server")
    flags = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if flags.seed is None else flags.seed
    print(f"seed {seed}", flush=True)
    wish = Wish(60 * flags.minutes, seed, flags.out, flags.dir, flags.connections, flags.backlog, flags.flags)
    try:
        verdict = soak(wish)
    except KeyboardInterrupt:
        print("given up, without a verdict")
        return 130
    print(verdict)
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
