"""The units for systemd: systemd itself accepts them, and finds them well shielded."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGING = Path(__file__).parents[2] / "packaging"
PAGE = PACKAGING.parent / "docs/coming-from-beanstalkd.md"
INSTALLING = PACKAGING.parent / "docs/installing.md"
RECOVERY = PACKAGING.parent / "docs/recovery.md"
DEBIANS = Path("/lib/systemd/system/beanstalkd.service")
SERVICES = ["beanlite.service", "beanlite-backup.service", "beanlite@.service", "beanlite-backup@.service"]
UNITS = [*SERVICES, "beanlite.socket", "beanlite-backup.timer", "beanlite-backup@.timer"]
# Folders and files of the one server, and of one of several.
OWN = (
    ("/etc/beanlite/beanlite.toml", "/etc/beanlite/%i.toml"),
    ("/var/lib/beanlite", "/var/lib/beanlite/%i"),
    ("StateDirectory=beanlite", "StateDirectory=beanlite/%i"),
    ("RuntimeDirectory=beanlite", "RuntimeDirectory=beanlite-%i"),  # it goes with its unit, and what is in it, too
    (
        "ExecStart=/usr/bin/beanlite backup /var/backups/beanlite",
        "ExecStart=/usr/bin/beanlite backup /var/backups/beanlite/%i",
    ),
)

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="Debian's systemd is not installed")


@pytest.fixture
def units(tmp_path):
    """Copies in which the program exists."""
    for name in UNITS:
        text = (PACKAGING / name).read_text()
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
        text = re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(units, name):
    ran = subprocess.run(["systemd-analyze", "verify", str(units / name)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_unit_is_exposed_little(name):
    """Below 2.0 of 10; the threshold is in tenths."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=19", str(PACKAGING / name)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-200:]


@pytest.mark.parametrize("name", ["beanlite.service", "beanlite-backup.service"])
def test_template_differs_from_its_unit_only_in_paths(name):
    def lines(name):
        text = (PACKAGING / name).read_text()
        return [line for line in text.splitlines() if re.match(r"(?!Description=|ExecStartPre=)\S+=|\[", line)]

    expected = lines(name)
    for path, own in OWN:
        expected = [re.sub(rf"{path}(?![\w%])", own, line) for line in expected]
    assert lines(name.replace(".", "@.")) == expected


@pytest.mark.parametrize("name", SERVICES)
def test_no_unit_is_skipped_without_a_word(name):
    """A condition that is not met is no failure: the timer of a backup would be green though none is made."""
    assert "\nCondition" not in (PACKAGING / name).read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_boot_and_users_of_the_machine_are_not_hidden(name):
    """A start learns from /proc/sys whether the machine was booted since; a server knows the users of its socket."""
    text = (PACKAGING / name).read_text()
    assert "\nProcSubset=" not in text
    assert "backup" in name or "\nPrivateUsers=" not in text


@pytest.mark.parametrize("name", ["docs/coming-from-beanstalkd.md", "docs/network.md"])
def test_socket_of_a_page_is_in_a_folder_that_the_unit_makes(name):
    unit = (PACKAGING / "beanlite.service").read_text()
    (folder,) = re.findall("^RuntimeDirectory=(.*)$", unit, re.MULTILINE)
    text = (PACKAGING.parent / name).read_text()
    assert set(re.findall(r'socket = "(.*?)"', text)) == {f"/run/{folder}/queue.sock"}


def test_server_may_write_backups_where_the_page_has_them():
    (folder,) = re.findall('^backup_dir = "(.*)"$', RECOVERY.read_text(), re.MULTILINE)
    for name in ("beanlite.service", "beanlite@.service"):
        assert f"\nReadWritePaths=-{folder}\n" in (PACKAGING / name).read_text()


@pytest.mark.parametrize("name", ["beanlite.service", "beanlite@.service"])
def test_server_starts_once_the_machine_has_its_addresses(name):
    text = (PACKAGING / name).read_text()
    assert "\nWants=network-online.target\nAfter=network-online.target\n" in text


@pytest.mark.parametrize("page", [INSTALLING, PAGE])
def test_pages_tell_how_many_starts_the_units_allow(page):
    unit = (PACKAGING / "beanlite.service").read_text()
    (burst,) = re.findall(r"^StartLimitBurst=(\d+)$", unit, re.MULTILINE)
    (minutes,) = re.findall(r"^StartLimitIntervalSec=(\d+)min$", unit, re.MULTILINE)
    text = page.read_text().replace("\n", " ")
    assert re.search(rf"\b{burst} (times|attempts)\b.{{1,200}}\b{minutes} minutes", text)


def test_a_start_that_can_not_succeed_is_not_tried_again():
    assert "RestartPreventExitStatus=2 3\n" in (PACKAGING / "beanlite.service").read_text()


def test_debians_unit_starts_it_with_the_drop_in_of_the_page(tmp_path):
    if not DEBIANS.exists():
        pytest.skip("Debian's beanstalkd is not installed")
    (drop_in,) = re.findall(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    folder = tmp_path / "beanstalkd.service.d"
    folder.mkdir()
    (folder / "beanlite.conf").write_text(drop_in.replace("/usr/bin/beanlite", "/bin/true"))
    unit = re.sub(r"^Documentation=.*\n", "", DEBIANS.read_text(), flags=re.MULTILINE)
    (tmp_path / DEBIANS.name).write_text(unit)
    command = ["systemd-analyze", "verify", str(tmp_path / DEBIANS.name)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("", {}),
        ("-b .", {"db": "beanlite.db"}),
        ("-b /srv/q.db -f 50 -z 1000000 -V", {"db": "/srv/q.db", "fsync": "50ms", "max_job_size": 1000000}),
    ],
)
def test_command_line_of_the_page_takes_debians_defaults(extra, expected, monkeypatch, tmp_path):
    """As systemd expands it: ``${X}`` is one word, ``$X`` is any number of words."""
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^ExecStart=/usr/bin/beanlite (-l.*)", PAGE.read_text(), re.MULTILINE)
    values = {"BEANSTALKD_LISTEN_ADDR": "0.0.0.0", "BEANSTALKD_LISTEN_PORT": "11301", "BEANSTALKD_EXTRA": extra}
    shell = ["sh", "-c", f'exec "$0" -m beanlite config --json {command}', sys.executable]
    ran = subprocess.run(shell, env={**os.environ, **values}, capture_output=True, check=True)
    said = json.loads(ran.stdout)
    assert {key: said[key]["value"] for key in ("host", "port", *expected)} == {
        "host": "0.0.0.0",
        "port": 11301,
        **expected,
    }
