"""What is said where the package of an extra is not installed."""

import os
import pty
import subprocess
import sys

import pytest


@pytest.fixture
def without(tmp_path):
    """An environment in which the Python that it is given to finds none of the extras' packages."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['asyncpg'] = sys.modules['textual'] = None\n")
    return {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}


def test_top_says_what_to_install(without):
    ours, terminal = pty.openpty()
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "beanlite", "top", "--connect", "127.0.0.1:1"],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=without,
        )
    finally:
        os.close(ours)
        os.close(terminal)
    told = f"beanlite: top: textual is missing: {sys.executable} -m pip install textual\n"
    assert (ran.returncode, ran.stderr) == (2, told)


def test_a_server_with_postgresql_says_what_to_install(without, tmp_path):
    command = [sys.executable, "-m", "beanlite", "serve", "-p", "0", "--database", "postgresql://nowhere/queue"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=without, cwd=tmp_path)
    assert ran.returncode == 2
    told = f"beanlite: database: asyncpg is missing: {sys.executable} -m pip install asyncpg"
    assert ran.stderr.splitlines()[-1] == told
