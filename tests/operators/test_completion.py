"""What a shell completes, with the values that it asks the program for as somebody types."""

import os
import pty
import re
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from beanlite.cli.completion import join_words
from tests.support.needs import need
from tests.support.wire import Wire, until


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


def test_name_that_a_shell_would_take_apart_is_not_completed(own_queue):
    with Wire(own_queue.server.connect()) as client:
        for tube in ("mail$x", "mail;x", "mail(x)", "mail.x-1"):
            client.ask(f"use {tube}")
            client.put(b"x")
    line = "beanlite flush --connect {}:{} ma".format(*own_queue.address)
    until(lambda: completed(line) == (["mail", "mail.x-1"], ""))


def test_completion_says_nothing_without_a_server(tmp_path):
    assert completed(f"beanlite tubes --connect unix:{tmp_path}/none ") == ([""], "")
    assert completed("beanlite tubes --connect nonsense ") == ([""], "")
    assert completed("beanlite tubes --db nowhere ") == ([""], "")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert completed(f"beanlite tubes --connect 127.0.0.1:{mute.getsockname()[1]} ") == ([""], "")


PARTED = [
    ("beanlite tubes --connect 10.0.0.1 : 11300 ma", 6, "beanlite tubes --connect 10.0.0.1:11300 ma", 4),
    ("beanlite tubes --connect tls : //q : 11300 ma", 8, "beanlite tubes --connect tls://q:11300 ma", 4),
    ("beanlite jobs --connect = q : 1 --tube = ma", 9, "beanlite jobs --connect=q:1 --tube=ma", 3),
    ("beanlite jobs --connect q : 1 --tube", 7, "beanlite jobs --connect q:1 --tube", 5),
    ("beanlite jobs --connect q :", 5, "beanlite jobs --connect q:", 3),
    ("beanlite jobs --text 'a : b' --tube ma", 5, "beanlite jobs --text 'a : b' --tube ma", 5),
]


@pytest.mark.parametrize(("words", "current", "joined", "at"), PARTED)
def test_words_that_bash_parts_are_joined(monkeypatch, words, current, joined, at):
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(current))
    join_words()
    assert (os.environ["COMP_WORDS"], os.environ["COMP_CWORD"]) == (joined, str(at))


def pressed_tab(folder, line):
    """Return the words of a command line of bash in which Tab has been pressed behind ``line``."""
    control, terminal = pty.openpty()
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TERM": "dumb", "HISTFILE": ""}
    bash = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        bash, env=environment, start_new_session=True, stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        os.write(control, f"source {folder}/completion\n{line}\t\nexit\n".encode())
        said = b""
        with suppress(OSError):  # the end of a terminal
            while data := os.read(control, 4096):
                said += data
        os.close(control)
        process.wait(25)
    found = re.search(rb"WORDS (.*)\r\n", said)
    return found and found[1].decode()


def test_bash_completes_tubes_behind_an_address(queue, tmp_path):
    need(shutil.which("bash"), "bash is not installed")
    program = tmp_path / "beanlite"
    place = Path(__file__).parents[2]
    echo = '[ -n "$_BEANLITE_COMPLETE" ] || { echo "WORDS $*"; exit; }'
    program.write_text(f"#!/bin/sh\n{echo}\nexport PYTHONPATH={place}\nexec {sys.executable} -m beanlite\n")
    program.chmod(0o755)
    script = {**os.environ, "_BEANLITE_COMPLETE": "source_bash"}
    (tmp_path / "completion").write_bytes(subprocess.run([program], env=script, check=True, capture_output=True).stdout)
    address = "{}:{}".format(*queue.address)
    for connect in (f"--connect {address}", f"--connect={address}"):
        line = f"jobs {connect} --tube ma"

        def is_completed(line=line):
            return (pressed_tab(tmp_path, f"beanlite {line}") or "").strip() == f"{line}il"

        until(is_completed)
