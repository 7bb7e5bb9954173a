"""What docs/python-client.md has programs do, with a real server and under ``mypy --strict``."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import start_beanlite

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python-client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.+?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_does_its_job(tmp_path, number):
    with start_beanlite(tmp_path, "--no-journal") as server:
        example = EXAMPLES[number].replace("11300", str(server.port))
        run = [sys.executable, "-X", "dev", "-W", "error", "-c", example]
        done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert (done.stdout, done.stderr) == ("welcome ann\n", "")


def test_examples_are_typed(tmp_path):
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.py").write_text(example)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run([*command, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
