"""The way in: nothing happens before it is called."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from beanlite.cli import COMMANDS, main
from tests.support.journal_files import make
from tests.support.servers import free_port

LOOK = """
import gc, signal, sys
sys.argv = ["beanlite", "-p", "{port}"]
signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever other tests have left
import beanlite.__main__ as entry
from beanlite.net import listener
print(listener._early, gc.isenabled(), signal.pthread_sigmask(signal.SIG_BLOCK, ()), sys.stderr is sys.__stderr__)
"""
COLLECTS = """
import gc, json, sys
from beanlite import __main__ as entry, cli

cli.main = lambda args: gc.isenabled()
with_collector = []
for line in json.loads(sys.argv[1]):
    sys.argv[1:] = line
    with_collector.append(entry.main())
print(json.dumps(with_collector))
"""


def test_an_import_does_nothing():
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(port=free_port())], capture_output=True, check=True, text=True
    )
    assert done.stdout == "{} True set() True\n"


def test_every_command_but_a_server_collects_garbage():
    """A page, a router or a worker runs for months, and a server must not be stalled."""
    lines = [[], ["-p", str(free_port())], ["serve"], *([name] for name in COMMANDS if name != "serve")]
    asked = [sys.executable, "-c", COLLECTS, json.dumps(lines)]
    done = subprocess.run(asked, capture_output=True, check=True, text=True, env={**os.environ, "BEANLITE_PORT": "0"})
    assert json.loads(done.stdout) == [False] * 3 + [True] * (len(lines) - 3)


def test_a_shell_that_completes_a_line_starts_no_server(tmp_path):
    """It runs the program without arguments, which otherwise means serve."""
    ask = [sys.executable, "-X", "importtime", "-m", "beanlite"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "_BEANLITE_COMPLETE": "complete_bash",
        "COMP_WORDS": "beanlite backup --d",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(ask, capture_output=True, check=False, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.split() == ["--db"]
    assert "beanlite.server" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_variable_of_completion_that_is_empty_changes_nothing(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "_BEANLITE_COMPLETE": ""}
    ask = [sys.executable, "-m", "beanlite", "-p", "0", "--no-such-flag"]
    done = subprocess.run(ask, capture_output=True, check=False, text=True, cwd=tmp_path, env=environment)
    assert "No such option: --no-such-flag" in done.stderr
    assert done.stderr.endswith("; beanlite serve --help tells how\n")


def test_completion_that_can_not_be_installed_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert main(["--install-completion", "bash"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("beanlite: completion can't be installed: ")
    assert f"{tmp_path}/file" in err


def test_serve_is_imported_alone():
    """What the other commands need would make a start slower."""
    program = "import sys; from beanlite import cli; cli.main(['serve', '--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    imported = set(done.stdout.split())
    assert {module for module in imported if module.startswith("beanlite.cli.")} == {
        "beanlite.cli.serve",
        "beanlite.cli.epilogs",
        "beanlite.cli.paths",
        "beanlite.cli.printing",
    }
    assert imported & {"rich", "textual", "aiosqlite", "beanlite.console"} == set()


def test_server_imports_what_schedules_need_only_for_one():
    program = """
import sys, beanlite.server.start
from beanlite.core.recurrence import next_after
next_after("every 5m", "UTC", 0)
print("cronsim" in sys.modules)
next_after("0 3 * * *", "UTC", 0)
print("cronsim" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("module", ["beanlite.host.signals", "beanlite.cli"])
def test_ctrl_c_while_it_is_imported_is_no_traceback(module):
    program = f"""
import signal, sys
class Press:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Press())
from beanlite.__main__ import main
sys.argv = ["beanlite", "tubes"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("import - --db new.db <&-", 0, "new.db: 0 jobs and 0 pauses imported\n"),
        ("export --db queue.db >&-", 0, ""),
        ("delete 1 <&- >&-", 2, "beanlite: delete asks first, and there is no terminal to ask at: say --yes\n"),
    ],
)
def test_closed_stdin_and_stdout(line, code, said, tmp_path):
    make(tmp_path / "queue.db", batches=1)
    ask = f'exec "{sys.executable}" -m beanlite {line}'
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["sh", "-c", ask], capture_output=True, check=False, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout + done.stderr) == (code, said)
