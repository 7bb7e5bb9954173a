"""A copy of this machine, booted in a container of systemd-nspawn: an overlay, whose upper layer is in memory.

::

    with boot(directory) as machine:
        machine.run("systemctl", "start", "beanlite")

It has a network of its own with no other machine in it, and only the services that come with systemd itself: the others
that are enabled here would only take time. Where such a container can't be booted, ``CanNotBoot`` has the reason.
"""

import contextlib
import ctypes
import errno
import functools
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.support.wire import WITHIN_S, Wire, until

BOOTS_WITHIN_S = 60.0
RUNS_WITHIN_S = 30.0
CLONE_NEWNET = 0x40000000
# The environment of root's login, with nothing from the user who runs the tests.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}

# Processes and mounts are in namespaces that end with this shell; otherwise processes started by nspawn would outlive
# an nspawn that is killed. If there is no systemd here, the shell makes the cgroup ($2) that systemd would provide, and
# keeps nspawn's notes in /run inside the namespace.
# A machine without an id would treat this as its first boot, and enable all services anew. policy-rc.d, which container
# images have, forbids packages to start anything.
SETS_UP = """
set -e
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay none -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
rm -rf /mnt/root/etc/systemd/system/*.wants /mnt/root/etc/rc?.d /mnt/root/usr/sbin/policy-rc.d
rm -f /mnt/root/etc/machine-id
echo "$1" >/mnt/root/etc/machine-id
: >/mnt/root/etc/fstab
if [ -n "$2" ]; then
    mkdir "$2"
    echo $$ >"$2/cgroup.procs"
    mount -t tmpfs none /run
fi
shift 2
"$@"
exit $?
"""

NSPAWN = (
    *("systemd-nspawn", "--boot", "--directory=/mnt/root", "--settings=no"),
    *("--private-network", "--resolv-conf=off", "--timezone=off", "--link-journal=no"),
    *("--register=no", "--notify-ready=yes"),
)


class CanNotBoot(Exception):
    """A copy of this machine can't be booted here; the text says why."""


class Machine:
    """A machine that has booted. ``leader`` is the process id, outside the container, of its first process."""

    def __init__(self, leader: int) -> None:
        self.leader = leader

    def path(self, path: str) -> Path:
        """Return the path, outside the container, of a file of the machine."""
        return Path(f"/proc/{self.leader}/root{path}")

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine, as root. AssertionError: it failed."""
        ran = subprocess.run(
            ["nsenter", f"--target={self.leader}", "--all", "--", *command],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUNS_WITHIN_S,
        )
        assert not check or ran.returncode == 0, f"{command} ended with {ran.returncode}: {ran.stdout}{ran.stderr}"
        return ran

    def show(self, unit: str) -> dict[str, str]:
        """Return systemd's properties of a unit."""
        lines = self.run("systemctl", "show", unit).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def until(self, unit: str, **wanted: str) -> dict[str, str]:
        """Wait until properties of a unit are as wanted, and return all of them."""
        shown: dict[str, str] = {}

        def is_so() -> bool:
            shown.clear()
            shown.update(self.show(unit))
            return wanted.items() <= shown.items()

        until(is_so)
        return shown

    def log(self, unit: str) -> str:
        """Return what a unit has logged, and what systemd has logged about it."""
        return self.run("journalctl", "--unit", unit, "--output=cat", "--no-pager").stdout

    def connect(self, port: int) -> Wire:
        """Connect to 127.0.0.1 inside the machine: a socket belongs to the network of the thread that made it."""
        made: list[socket.socket | OSError] = []

        def enter() -> None:
            try:
                with Path(f"/proc/{self.leader}/ns/net").open("rb") as network:
                    if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) < 0:
                        raise OSError(ctypes.get_errno(), "setns")  # noqa: TRY301 - os.setns comes with Python 3.12
                made.append(socket.create_connection(("127.0.0.1", port), WITHIN_S))
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return Wire(made[0])


@contextlib.contextmanager
def boot(directory: Path) -> Iterator[Machine]:
    """Boot a machine, and end it on leaving; its console is written to a file in the directory. Raises CanNotBoot."""
    name = f"beanlite-test-{uuid.uuid4().hex[:8]}"
    cgroup = None if Path("/run/systemd/system").exists() else name
    console = directory / "console"
    command = _command(name, cgroup)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, console.open("wb") as sink:
        notify.bind(f"\0{name}")
        # The container gets a unified cgroup hierarchy, as newer machines have, whatever this one has.
        environment = {**ENVIRONMENT, "NOTIFY_SOCKET": f"@{name}", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        nspawn = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        leader = None
        try:
            leader = _booted(nspawn, notify, console)
            notify.close()  # the machine goes on to notify, and would halt once a few messages are not read
            yield Machine(leader)
        finally:
            _end(nspawn, leader, cgroup)


def _command(name: str, cgroup: str | None) -> list[str]:
    """Return the command that boots a machine. If the tests are killed, the machine is killed as well."""
    place = ""
    more = [f"--machine={name}"]
    if cgroup is not None:
        unified = _cgroups("cgroup2")
        if not unified:
            raise CanNotBoot("no cgroup2 is mounted")
        place = str(unified[0] / cgroup)
        more.append("--keep-unit")  # there is no systemd to ask for a unit
    apart = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*apart, "sh", "-c", SETS_UP, "sh", uuid.uuid4().hex, place, *NSPAWN, *more]


def _cgroups(*kinds: str) -> list[Path]:
    """Return where cgroup hierarchies of these kinds are mounted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(place) for _, place, kind, *_ in mounts if kind in kinds]


def _booted(nspawn: subprocess.Popen[bytes], notify: socket.socket, console: Path) -> int:
    """Wait until the machine reports that it is ready, and return its leader."""
    end = time.monotonic() + BOOTS_WITHIN_S
    pidfd = os.pidfd_open(nspawn.pid)
    try:
        while True:
            able, _, _ = select.select([notify.fileno(), pidfd], [], [], max(0.0, end - time.monotonic()))
            if notify.fileno() not in able:
                break
            if "READY=1" in notify.recv(4096).decode().split("\n"):
                return _leader(nspawn.pid)
    finally:
        os.close(pidfd)
    why = "it is not ready" if nspawn.poll() is None else f"exit code {nspawn.returncode}"
    said = " ".join(console.read_text(errors="replace").split())
    raise CanNotBoot(f"{why}: {said[-500:]}")


def _leader(pid: int) -> int:
    """Return the machine's first process: number 1 in the namespace nested in our own, and a descendant of ``pid``."""
    generation = [pid]
    while generation:
        children = [f"/proc/{parent}/task/{parent}/children" for parent in generation]
        generation = [int(child) for file in children for child in Path(file).read_text().split()]
        for child in generation:
            ids = re.search(r"^NSpid:(.*)", Path(f"/proc/{child}/status").read_text(), re.MULTILINE)
            if ids is not None and len(numbers := ids[1].split()) == 3 and numbers[-1] == "1":
                return child
    raise CanNotBoot("its first process is not to be found")


def _end(nspawn: subprocess.Popen[bytes], leader: int | None, cgroup: str | None) -> None:
    """End a machine without a trace: all its processes end with the first one, and nspawn then tidies up and exits."""
    if leader is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            nspawn.wait(WITHIN_S)
    nspawn.kill()
    nspawn.wait()
    if cgroup is not None:
        for place in _cgroups("cgroup", "cgroup2"):  # a cgroup of that name was made in older hierarchies as well
            for folder, _, _ in os.walk(place / cgroup, topdown=False):
                until(functools.partial(_removed, folder))


def _removed(folder: str) -> bool:
    """Remove a cgroup, and return whether that succeeded: it does once all processes in it have ended."""
    try:
        Path(folder).rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
