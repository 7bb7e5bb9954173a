"""The smoke test that each wheel of a release passes, and what wheels there are."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from beanlite import is_compiled

ROOT = Path(__file__).parents[2]
FORGETS = """#!/bin/sh
if [ "$1" = serve ]; then
    exec {python} -m beanlite "$@" --db "$(mktemp -d -p {folder})"
fi
exec {python} -m beanlite "$@"
"""


def smoke(*command):
    script = ROOT / "packaging/wheels/smoke.py"
    return subprocess.run([sys.executable, script, *command], capture_output=True, text=True, check=False)


def test_it_passes_what_works():
    ran = smoke(sys.executable, "-m", "beanlite")
    assert ran.returncode == 0, ran.stderr
    assert "1000 jobs put, killed, counted" in ran.stdout


def test_it_finds_jobs_that_are_lost(tmp_path):
    program = tmp_path / "beanlite"
    program.write_text(FORGETS.format(python=sys.executable, folder=tmp_path))
    program.chmod(0o755)
    ran = smoke(program)
    assert (ran.returncode, ran.stderr) == (1, "smoke test failed: jobs that are left: {'default': 0}\n")


@pytest.mark.skipif(is_compiled(), reason="this beanlite is compiled")
def test_it_finds_what_should_be_compiled():
    ran = smoke("--compiled", sys.executable, "-m", "beanlite")
    assert ran.returncode == 1
    assert ran.stderr.startswith("smoke test failed: not compiled: ")


def test_there_is_a_wheel_for_each_python_that_is_named():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = [each.rpartition(" :: ")[2] for each in project["project"]["classifiers"] if ":: 3." in each]
    assert project["tool"]["cibuildwheel"]["build"] == [f"cp{version.replace('.', '')}-*" for version in named]
