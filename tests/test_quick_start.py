"""The commands of the quick start print what the page shows, and the producer and the worker of the README work."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.servers import start_beanlite
from tests.support.sqlite_tool import need_it
from tests.support.wire import Wire, until

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/quick-start.md"
TEXT = PAGE.read_text(encoding="utf-8")
CONSOLES = "".join(re.findall(r"^```console\n(.+?)^```\n", TEXT, re.MULTILINE | re.DOTALL))
PROGRAMS = re.findall(r"^```python\n# (\w+\.py)\n(.+?)^```\n", TEXT, re.MULTILINE | re.DOTALL)
SHOWN = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", CONSOLES, re.MULTILINE)
# How long something has taken, and how large a file is, differ from time to time.
VARIES = re.compile(r"[\d.]+ (s|min|bytes)\b|\s+")


def printed(command, server, folder):
    """What a command of the page prints in this folder, asking this server."""
    words = shlex.split(command)
    if words[0] == "python":
        words[0] = sys.executable
    if words[0] == "beanlite":
        words = [sys.executable, "-m", *words]
        if "backup" not in words:  # that reads the file
            words += ["--connect", f"{server.host}:{server.port}"]
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True, timeout=30)
    assert not done.stderr
    return done.stdout


def test_the_page_shows_what_is_printed(tmp_path):
    need_it()  # which the page shows as well
    assert len(SHOWN) > 8
    with start_beanlite(tmp_path, "--db", str(tmp_path / "beanlite.db"), "--history", "7d") as server:
        for name, program in PROGRAMS:
            (tmp_path / name).write_text(program.replace("11300", str(server.port)))
        for command, shows in SHOWN:
            assert VARIES.sub(" ", printed(command, server, tmp_path)) == VARIES.sub(" ", shows), command


def test_the_producer_and_the_worker_of_the_readme_do_a_job(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    producer, worker = re.findall(r"^```python\n(.+?)^```\n", readme, re.MULTILINE | re.DOTALL)
    with start_beanlite(tmp_path) as server:
        run = [sys.executable, "-u", "-c"]
        subprocess.run([*run, producer.replace("11300", str(server.port))], check=True, timeout=30)
        shown = tmp_path / "shown"
        with shown.open("w") as file, Wire(server.connect()) as wire:
            running = subprocess.Popen([*run, worker.replace("11300", str(server.port))], stdout=file)
            try:
                until(lambda: wire.stats("stats")["cmd-delete"] == "1", within_s=30)
            finally:
                running.kill()
                running.wait()
    assert shown.read_text() == "welcome ann\n"
