"""Run all measurements for docs/performance-lab.md, then write the results there.

``python -m tests.performance.measure [OPTION...]`` takes a quarter of an hour, on a machine that should be otherwise
idle. The options are passed to each ``python -m tests.bench``: --pin gives the server a core of its own, and --rounds 1
--seconds 0.2 is a rehearsal.
"""

import argparse
import json
import subprocess
import sys

from tests.performance import draw

CONNECTIONS = (1, 2, 5, 10, 20, 50, 100, 200)
EACH_SYNCED = "beanstalkd -b . -f0"
SYNCED_AT_TIMES = "beanstalkd -b ."
IN_MEMORY = "beanstalkd"
OURS = ("beanlite", "beanlite --fsync 50ms", "beanlite --no-journal")
PIPELINED = "--connections 16 --depth 100"


def against(*commands: str) -> list[str]:
    """Return the options that start these servers."""
    return [word for command in commands for word in ("--against", command)]


def main() -> None:
    """Run all measurements, and replace the earlier results at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, extra = parser.parse_known_args()
    lines: list[str] = []

    def bench(options: str, servers: list[str]) -> draw.Report:
        command = [sys.executable, "-m", "tests.bench", *options.split(), *servers, "--json", *extra]
        print("python", *command[1:])
        lines.append(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        report: draw.Report = json.loads(lines[-1])
        return report

    peaks = {}
    for connections in CONNECTIONS:
        report = bench(f"cycle --connections {connections}", against(EACH_SYNCED, SYNCED_AT_TIMES, IN_MEMORY, *OURS))
        peaks[connections] = {target["name"]: target["commands_per_s"] for target in report["targets"]}
    bench(f"cycle {PIPELINED}", against(EACH_SYNCED, SYNCED_AT_TIMES, IN_MEMORY, *OURS))
    bench("cycle --connections 50 --beside 50", against(EACH_SYNCED, "beanlite"))
    bench("cycle --connections 16 --body 65535", against(EACH_SYNCED, "beanlite"))
    bench(f"cycle --connections 50 --rate {peaks[50]['beanlite'] / 2:.0f}", against("beanlite"))
    draw.RESULTS.write_text("".join(lines), encoding="utf-8")
    draw.main()


if __name__ == "__main__":
    main()
