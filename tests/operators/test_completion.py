"""What a shell completes, with the values that it asks the program for as somebody types."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wire import until


def completed(line):
    """Return what bash is told of a line up to its end, and what is printed beside it."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "_BEANLITE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(f"{line}.".split()) - 1),
    }
    ask = [sys.executable, "-m", "beanlite"]
    # Longer than a client waits for any reply.
    done = subprocess.run(ask, capture_output=True, check=True, text=True, env=environment, timeout=25)
    return done.stdout.split("\n")[:-1], done.stderr


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("tubes {server} m", ["mail"]),
        ("jobs {server} --tube ", ["default", "mail", "other"]),
        ("flush {server} o", ["other"]),
        ("pause {server} ma", ["mail"]),
        ("move 1 {server} --to ma", ["mail"]),
        ("policy show {server} ma", ["mail"]),
        ("jobs --state re", ["ready", "reserved"]),
        ("kick --state b", ["buried"]),
        ("tubes --sort b", ["buried", "bytes"]),
        ("jobs --sort re", ["reserves"]),
        ("job 1 --body h", ["hex"]),
        ("tail --what mo", ["move"]),
        ("policy set mail max_j", ["max_jobs="]),
        ("policy unset mail max_j", ["max_jobs"]),
        ("scheduled", [""]),
    ],
)
def test_shell_completes_values(line, values, queue):
    line = line.format(server="--connect {}:{}".format(*queue.address))
    until(lambda: completed(f"beanlite {line}") == (values, ""))  # a busy machine may be too slow at first


def test_completion_says_nothing_without_a_server(tmp_path):
    assert completed(f"beanlite tubes --connect unix:{tmp_path}/none ") == ([""], "")
    assert completed("beanlite tubes --connect nonsense ") == ([""], "")
    assert completed("beanlite tubes --db nowhere ") == ([""], "")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert completed(f"beanlite tubes --connect 127.0.0.1:{mute.getsockname()[1]} ") == ([""], "")
