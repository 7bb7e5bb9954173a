"""The units for systemd: systemd itself accepts them, and finds them well shielded."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGING = Path(__file__).parents[2] / "packaging"
SERVICES = ["beanlite.service", "beanlite-backup.service"]
UNITS = [*SERVICES, "beanlite.socket", "beanlite-backup.timer"]

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="Debian's systemd is not installed")


@pytest.fixture
def units(tmp_path):
    """Copies in which the program exists, of a type that older versions know."""
    for name in UNITS:
        text = (PACKAGING / name).read_text()
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
        text = re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE)
        (tmp_path / name).write_text(text.replace("Type=notify-reload", "Type=notify"))
    return tmp_path


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(units, name):
    ran = subprocess.run(["systemd-analyze", "verify", str(units / name)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_it_is_exposed_little(name):
    """Below 2.0 of 10; the threshold is in tenths."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=19", str(PACKAGING / name)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-200:]


def test_a_start_that_can_not_succeed_is_not_tried_again():
    assert "RestartPreventExitStatus=2 3\n" in (PACKAGING / "beanlite.service").read_text()
