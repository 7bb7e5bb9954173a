"""The units under a systemd that has really booted, in a copy of this machine in which the package is installed."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from beanlite.web.safety import password_line
from tests.support.booted import CanNotBoot, boot
from tests.support.wire import until

MISSING = [tool for tool in ("systemd-nspawn", "nsenter", "setpriv", "unshare") if shutil.which(tool) is None]
SERVICE = "beanlite.service"
SOCKET = "beanlite.socket"
BACKUP = "beanlite-backup.service"
ONE, ONE_BACKUP = "beanlite@one.service", "beanlite-backup@one.service"
SETTINGS = "/etc/beanlite/beanlite.toml"
USERS = "/etc/beanlite/users"
ASK = Path(__file__).with_name("ask.py")
DOCS = Path(__file__).parents[2] / "docs"
DROP_INS = {unit: f"/run/systemd/system/{unit}.d/test.conf" for unit in (SERVICE, SOCKET)}
PUT = """
import socket
with socket.socket(socket.AF_UNIX) as queue:
    queue.connect("/run/beanlite/queue.sock")
    queue.sendall(b"use a\\r\\nput 0 0 60 1\\r\\nx\\r\\n")
    replies = queue.makefile()
    print([replies.readline().strip() for _ in range(2)][1])
"""
DATABASE = "/var/lib/beanlite/beanlite.db"
PORT = 11300

pytestmark = [
    pytest.mark.nightly,  # it needs the package, which is built in half a minute
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can boot a machine"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """One for all tests: to boot takes longest."""
    try:
        with boot(tmp_path_factory.mktemp("machine")) as machine:
            yield machine
    except CanNotBoot as why:
        pytest.skip(f"no copy of this machine can be booted: {why}")


@pytest.fixture(scope="module")
def installed(machine, package):
    """What systemd knows of the service when the package has just been installed, and the settings it came with."""
    shutil.copy(package, machine.path("/root/beanlite.deb"))
    machine.run("dpkg", "--no-triggers", "--install", "/root/beanlite.deb")
    return machine.show(SERVICE), machine.path(SETTINGS).read_text()


@pytest.fixture
def system(machine, installed):
    """The machine with a queue that runs, is empty, and was never changed."""
    _, settings = installed
    machine.run("systemctl", "disable", SOCKET)
    machine.run("systemctl", "stop", SOCKET, SERVICE, ONE, check=False)
    machine.path(SETTINGS).write_text(settings)
    for file in DROP_INS.values():
        shutil.rmtree(machine.path(file).parent, ignore_errors=True)
    for file in machine.path("/var/lib/beanlite").iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "reset-failed")  # and the starts so far don't count towards StartLimitBurst=
    machine.run("systemctl", "start", SERVICE)
    return machine


def change(machine, **settings):
    """Write other values into the file of settings."""
    text = machine.path(SETTINGS).read_text()
    for key, value in settings.items():
        text, times = re.subn(rf"^{key} = .*", f"{key} = {json.dumps(value)}", text, flags=re.MULTILINE)
        assert times == 1, key
    machine.path(SETTINGS).write_text(text)


def drop_in(machine, *lines, unit=SERVICE):
    """Add lines to the unit of the service, or of the socket, as of its next start."""
    file = machine.path(DROP_INS[unit])
    file.parent.mkdir(parents=True)
    section = unit.rpartition(".")[2].title()
    file.write_text("\n".join([f"[{section}]", *lines, ""]))
    machine.run("systemctl", "daemon-reload")


def put(machine, *bodies):
    with machine.connect(PORT) as client:
        for body in bodies:
            client.put(body)


def bodies(machine):
    """Of the jobs that are ready, which they are no longer then."""
    found = []
    with machine.connect(PORT) as client:
        while client.ask("reserve-with-timeout 0") != "TIMED_OUT":
            found.append(client.body)
    return found


def fed_us(shown):
    """When the watchdog was fed last."""
    return int(shown["WatchdogTimestampMonotonic"])


def restarted(machine, before):
    """Wait until systemd has started it once more by itself, and return what it knows of it."""
    shown = machine.until(SERVICE, NRestarts=str(int(before["NRestarts"]) + 1), ActiveState="active")
    assert shown["MainPID"] != before["MainPID"]
    return shown


def test_the_package_starts_it(installed):
    shown, _ = installed
    assert (shown["ActiveState"], shown["UnitFileState"]) == ("active", "enabled")


def test_a_restart_keeps_jobs_and_the_status_tells_them(system):
    put(system, b"one", b"two", b"three")
    before = system.show(SERVICE)
    system.run("systemctl", "restart", SERVICE)
    shown = system.until(SERVICE, StatusText="Serving: 3 jobs")
    assert shown["ActiveState"] == "active"
    assert shown["MainPID"] != before["MainPID"]
    assert bodies(system) == [b"one", b"two", b"three"]


def test_it_is_not_ready_before_its_jobs_are_read(system):
    """A database that is refused: systemd never took that server for started, and does not try again."""
    before = system.show(SERVICE)
    system.run("systemctl", "stop", SERVICE)
    system.path(DATABASE).write_bytes(b"This is no database. " * 1000)
    assert system.run("systemctl", "start", SERVICE, check=False).returncode != 0
    shown = system.show(SERVICE)
    assert (shown["SubState"], shown["ExecMainStatus"], shown["NRestarts"]) == ("failed", "3", "0")
    assert shown["ActiveEnterTimestampMonotonic"] == before["ActiveEnterTimestampMonotonic"]


def test_a_wrong_setting_is_not_tried_again(system):
    change(system, port="nonsense")
    assert system.run("systemctl", "restart", SERVICE, check=False).returncode != 0
    shown = system.show(SERVICE)
    assert (shown["SubState"], shown["ExecMainStatus"], shown["NRestarts"]) == ("failed", "2", "0")


def test_a_reload_applies_what_can_be_applied(system):
    before = system.show(SERVICE)
    change(system, max_tubes=2, fsync="never")
    system.run("systemctl", "reload", SERVICE)
    wanted = "setting changed setting=max_tubes was=200000 now=2"
    needs = "setting needs a restart setting=fsync now=always then=never"
    until(lambda: "reloaded" in system.log(SERVICE))
    assert wanted in system.log(SERVICE)
    assert needs in system.log(SERVICE)
    assert system.show(SERVICE)["MainPID"] == before["MainPID"]
    with system.connect(PORT) as client:
        assert [client.ask(f"use {tube}") for tube in "abc"][-1] == "OUT_OF_MEMORY"


def test_a_killed_server_is_started_again(system):
    put(system, b"kept")
    before = system.show(SERVICE)
    system.run("systemctl", "kill", "--signal=KILL", SERVICE)
    restarted(system, before)
    assert bodies(system) == [b"kept"]


def test_a_killed_servers_wal_that_is_gone_is_noticed(system):
    """The start has to know that the machine has not been booted since, which the kernel tells it in /proc/sys."""
    drop_in(system, "Restart=no")
    system.run("systemctl", "restart", SERVICE)
    put(system, b"acknowledged")
    system.run("systemctl", "kill", "--signal=KILL", SERVICE)
    system.until(SERVICE, ActiveState="failed")
    system.path(f"{DATABASE}-wal").unlink()
    assert system.run("systemctl", "start", SERVICE, check=False).returncode != 0
    assert system.show(SERVICE)["ExecMainStatus"] == "3"
    assert "-wal is missing or cut short, with commits that were acknowledged" in system.log(SERVICE)


def test_starts_by_hand_are_not_too_many(system):
    for _ in range(10):
        system.run("systemctl", "restart", SERVICE)


def test_a_server_that_always_fails_is_given_up(system):
    drop_in(system, "ExecStart=", "ExecStart=/bin/false", "RestartSec=1ms")
    system.run("systemctl", "restart", SERVICE, check=False)
    system.until(SERVICE, ActiveState="failed")
    assert "Start request repeated too quickly." in system.log(SERVICE)


def test_rules_tell_the_users_of_the_machine_apart(system):
    drop_in(system, "UMask=0007")
    system.path("/etc/beanlite/access.toml").write_text(
        '[[allow]]\nwho = ["uid:www-data"]\nrole = ["producer"]\ntubes = ["a"]\n'
    )
    settings = system.path(SETTINGS).read_text()
    lines = ['socket = "/run/beanlite/queue.sock"', 'access = "/etc/beanlite/access.toml"']
    system.path(SETTINGS).write_text("\n".join([settings, *lines]))
    system.run("systemctl", "restart", SERVICE)
    system.path("/put.py").write_text(PUT)
    python = "/usr/lib/beanlite/bin/python"
    said = {
        user: system.run("setpriv", f"--reuid={user}", "--regid=beanlite", "--clear-groups", python, "/put.py").stdout
        for user in ("www-data", "nobody")
    }
    assert said == {"www-data": "INSERTED 1\n", "nobody": "UNAUTHORIZED\n"}


def test_the_watchdog_ends_a_server_that_does_nothing(system):
    drop_in(system, "WatchdogSec=1")
    system.run("systemctl", "restart", SERVICE)
    put(system, b"kept")
    before = system.show(SERVICE)
    until(lambda: fed_us(system.show(SERVICE)) > fed_us(before) + 1_000_000)  # it is fed for longer than it waits
    assert system.show(SERVICE)["MainPID"] == before["MainPID"]
    system.run("systemctl", "kill", "--signal=STOP", SERVICE)
    restarted(system, before)
    assert "Watchdog timeout (limit 1s)!" in system.log(SERVICE)
    assert bodies(system) == [b"kept"]


def test_a_connection_to_the_socket_starts_it(system):
    system.run("systemctl", "stop", SERVICE)
    system.run("systemctl", "start", SOCKET)
    assert system.show(SERVICE)["ActiveState"] == "inactive"
    put(system, b"early")
    assert system.show(SERVICE)["ActiveState"] == "active"
    assert bodies(system) == [b"early"]


def test_a_path_of_the_socket_unit_outlives_a_restart(system):
    """With the lines that the unit has as comments, which let the group of the server in."""
    unit = system.path(f"/lib/systemd/system/{SOCKET}").read_text()
    lines = re.findall(r"^# (\w+=.+)$", unit, re.MULTILINE)
    (path,) = re.findall(r"ListenStream=(.+)", "\n".join(lines))
    drop_in(system, *lines, unit=SOCKET)
    system.run("systemctl", "stop", SERVICE)
    system.run("systemctl", "start", SOCKET, SERVICE)
    system.run("systemctl", "restart", SERVICE)
    member = ["setpriv", "--reuid=www-data", "--regid=beanlite", "--clear-groups"]
    said = system.run(*member, "beanlite", "stats", "--connect", f"unix:{path}").stdout
    assert "current-jobs-ready" in said


def test_socket_unit_is_switched_on_as_the_page_says(system):
    (commands,) = re.findall(r"```sh\n([^`]* beanlite\.socket\n[^`]*)```", (DOCS / "installing.md").read_text())
    system.run("sh", "-ec", commands)
    assert system.show(SOCKET)["SubState"] == "running"  # and not its service alone


def test_socket_is_back_after_a_drill_as_the_page_says(system):
    stop, start = re.findall(r"`(systemctl \w+ beanlite\.socket beanlite)`", (DOCS / "recovery.md").read_text())
    system.run("systemctl", "stop", SERVICE)
    system.run("systemctl", "start", SOCKET, SERVICE)
    system.run(*stop.split())
    assert {system.show(unit)["ActiveState"] for unit in (SOCKET, SERVICE)} == {"inactive"}
    system.run(*start.split())
    assert system.show(SOCKET)["SubState"] == "running"


def test_an_installation_starts_the_socket_before_the_service(system):
    system.run("systemctl", "stop", SERVICE)
    system.run("systemctl", "enable", "--now", SOCKET)
    system.run("sh", "/var/lib/dpkg/info/beanlite.prerm", "remove")
    by_dpkg = ["env", "DPKG_MAINTSCRIPT_PACKAGE=beanlite"]
    system.run(*by_dpkg, "sh", "/var/lib/dpkg/info/beanlite.postinst", "configure")
    assert system.show(SOCKET)["SubState"] == "running"
    assert system.show(SERVICE)["ActiveState"] == "active"


def test_the_backup_unit_makes_a_backup(system):
    put(system, b"one", b"two")
    system.run("systemctl", "start", BACKUP)  # returns when it is made
    (made,) = system.path("/var/backups/beanlite").iterdir()
    said = system.run("beanlite", "verify", f"/var/backups/beanlite/{made.name}").stdout
    assert re.search(r"^jobs +ok +2 ready$", said, re.MULTILINE), said


def test_socket_and_backups_are_where_the_pages_have_them(system):
    """And another unit, which stops, leaves them alone."""
    for file in system.path("/var/backups/beanlite").glob("*.db"):  # after one of these none is due for an hour
        file.unlink()
    settings = system.path(SETTINGS).read_text()
    lines = ['socket = "/run/beanlite/queue.sock"', 'backup_every = "1h"', 'backup_dir = "/var/backups/beanlite"']
    system.path(SETTINGS).write_text("\n".join([settings, *lines]))
    system.path("/etc/beanlite/one.toml").write_text('socket = "/run/beanlite-one/queue.sock"\n')
    system.run("systemctl", "restart", SERVICE, ONE)
    until(lambda: "backup made file=/var/backups/beanlite/" in system.log(SERVICE))
    assert system.path("/run/beanlite").stat().st_mode & 0o777 == 0o750
    for stopped, at in ((ONE, "/run/beanlite"), (SERVICE, "/run/beanlite-one")):
        system.run("systemctl", "restart", SERVICE, ONE)
        system.run("systemctl", "stop", stopped)
        said = system.run("beanlite", "stats", "--connect", f"unix:{at}/queue.sock").stdout
        assert "current-jobs-ready" in said


def test_page_is_served_and_knows_its_users_in_the_sandbox(system):
    system.path("/root/ask.py").write_text(ASK.read_text())
    system.path(USERS).write_text(password_line("ann", "operator", "horse") + "\n")
    system.run("chgrp", "beanlite", USERS)
    system.path(USERS).chmod(0o640)
    settings = system.path(SETTINGS).read_text()
    system.path(SETTINGS).write_text(f'{settings}web = "0.0.0.0:11380"\nweb_password_file = "{USERS}"\n')
    system.run("systemctl", "restart", SERVICE)
    python = "/usr/lib/beanlite/bin/python"
    seen = [system.run(python, "/root/ask.py", "127.0.0.1:11380", login).stdout for login in ("", "ann:horse")]
    assert seen == ["page 401\n", "page 200 Overview · beanlite\n"]
    assert "web page process ended" not in system.log(SERVICE)


def test_instance_has_settings_database_and_backups_of_its_name(system):
    put(system, b"of the other server")
    system.path("/etc/beanlite/one.toml").write_text("port = 11311\n")
    system.run("systemctl", "enable", "--now", ONE)
    with system.connect(11311) as client:
        client.put(b"first")
        client.put(b"second")
    assert system.path("/var/lib/beanlite/one").stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in system.path("/var/lib/beanlite/one").glob("*.db")) == ["beanlite.db"]
    system.run("systemctl", "start", ONE_BACKUP)
    (made,) = system.path("/var/backups/beanlite/one").iterdir()
    said = system.run("beanlite", "verify", f"/var/backups/beanlite/one/{made.name}").stdout
    assert re.search(r"^jobs +ok +2 ready$", said, re.MULTILINE), said
    assert bodies(system) == [b"of the other server"]


def test_removal_of_package_stops_instances_and_keeps_them_enabled(system):
    """By the script of the package itself, which leaves its files where they are. A purge disables them."""
    system.path("/etc/beanlite/one.toml").write_text("port = 11311\n")
    system.run("systemctl", "enable", "--now", ONE)
    system.run("sh", "/var/lib/dpkg/info/beanlite.prerm", "remove")
    shown = system.show(ONE)
    assert (shown["ActiveState"], shown["UnitFileState"]) == ("inactive", "enabled")


@pytest.mark.parametrize("unit", [SERVICE, BACKUP, ONE, ONE_BACKUP])
def test_it_is_exposed_little(system, unit):
    """Below 2.0 of 10; the threshold is in tenths."""
    ran = system.run("systemd-analyze", "security", "--threshold=19", "--no-pager", unit, check=False)
    assert ran.returncode == 0, ran.stdout[-200:] + ran.stderr
