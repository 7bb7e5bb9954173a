"""``python -m tests.night --seed 1``: a queue after a bad night, to try the commands and the page on."""

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.night import past
from tests.night.live import STARTS_WITHIN_S, Company
from tests.night.questions import QUESTIONS
from tests.night.script import Night
from tests.support.servers import RunningServer, free_port


def main() -> int:
    """Read the flags, and do it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.night",
        description="A server after a bad night: jobs, workers that hang or die, and what operators did, all by a seed."
        " It says how to look at it, and lives until Ctrl-C.",
    )
    parser.add_argument("--seed", type=int, default=1, help="what the night is made of")
    parser.add_argument("--port", type=int, help="of the server; the page and the metrics have the next two")
    parser.add_argument("--questions", action="store_true", help="print the questions to try, and end")
    parser.add_argument("--answers", action="store_true", help="print the questions with their answers, and end")
    flags = parser.parse_args()
    if flags.questions or flags.answers:
        night = Night(flags.seed)
        for number, question in enumerate(QUESTIONS, 1):
            print(f"{number}. {question.asks}")
            if flags.answers:
                print(f"   {question.answer(night)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="beanlite-night-") as scratch:
        play(Night(flags.seed), Path(scratch), flags.port)
    return 0


def play(night: Night, folder: Path, port: int | None) -> None:
    """Play the night until Ctrl-C."""
    for each in (signal.SIGINT, signal.SIGTERM):  # a shell has what it starts in the background ignore SIGINT
        signal.signal(each, signal.default_int_handler)
    database = past.write(night, folder)
    places = [port + each for each in range(3)] if port else [free_port() for _ in range(3)]
    with serving(database, places) as server, Company(night, server):
        print(guide(database, places), flush=True)
        # Their connections end with it.
        with contextlib.suppress(KeyboardInterrupt):
            server.process.wait()
        server.stop()


def guide(database: Path, places: list[int]) -> str:
    """Return how to look at it."""
    server, page, health = (f"127.0.0.1:{port}" for port in places)
    return f"""
the server   beanlite why --connect {server}
the file     beanlite history --db {database}
or for all   export BEANLITE_PORT={places[0]} BEANLITE_DB={database}
the page     http://{page}/
the metrics  http://{health}/metrics

What hangs is told after a minute; the answers hold for half an hour. Ctrl-C ends it.
""".strip()


@contextlib.contextmanager
def serving(database: Path, places: list[int]) -> Iterator[RunningServer]:
    """Start a server with its page and its metrics."""
    port, page, health = places
    log = database.parent / "server.log"
    command = [sys.executable, "-m", "beanlite", "serve", "--db", str(database), "-p", str(port)]
    command += ["--web", f"127.0.0.1:{page}", "--health", f"127.0.0.1:{health}", "--history", "7d", "--history-bodies"]
    with log.open("wb") as sink:
        # Ctrl-C is for the command alone, which stops it.
        process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
    server = RunningServer(process, port, database.parent, log)
    try:
        yield await_start(server)
    finally:
        server.kill()


def await_start(server: RunningServer) -> RunningServer:
    """Wait until a server serves."""
    end = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            server.connect().close()
        except ConnectionError:
            if server.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"the server did not start: {server.log_text()}")
            time.sleep(0.05)
        else:
            return server


if __name__ == "__main__":
    sys.exit(main())
