"""Real PostgreSQL servers, from Debian's package: alone, or a primary with a synchronous standby.

PostgreSQL refuses to run as root; if the tests run as root, it runs as the user that its package has made.
"""

import asyncio
import atexit
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import asyncpg

from tests.support.network import HERE, Machine
from tests.support.servers import free_port

STARTS_WITHIN_S = 30.0
# Behaviour that is the same with both kinds of database is tested in full on a file, and to 1/PART on PostgreSQL.
PART = 1 if os.environ.get("ALL_ON_POSTGRESQL") else 8
NUMBERS = itertools.count(1)
MEMORY = Path("/dev/shm")  # noqa: S108 - the folders in it have names of their own
MEMORY_BYTES = 2 << 30  # some 60 MB a cluster, and two or three for each process of the tests
# A test's data need not survive the machine; the other settings make starts and promotions quick.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_retrieve_retry_interval": "100ms",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "log_checkpoints": "off",
    "hot_standby": "on",
}
TRUSTED = "host all,replication all 10.213.0.0/16 trust"  # the tests' networks


def programs() -> Path | None:
    """Return the folder of the newest PostgreSQL's programs; None if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def _program(name: str) -> Path:
    folder = programs()
    assert folder is not None
    return folder / name


def _user() -> str | None:
    return "postgres" if os.geteuid() == 0 else None


def _run(*command: str | Path, **others):
    user = _user()
    return subprocess.run(
        list(map(str, command)), check=True, capture_output=True, user=user, group=user, cwd="/", **others
    )


class Cluster:
    """A PostgreSQL server with a directory of its own below ``home``."""

    def __init__(
        self, home: Path, name: str, environment: dict[str, str] | None = None, machine: Machine = HERE
    ) -> None:
        """``environment`` is added to ours for its processes."""
        self._environment = os.environ | (environment or {})
        self.machine = machine
        self.data = home / name
        self.socket = home
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        """Host and port."""
        return f"{self.machine.address}:{self.port}"

    def url(self, database: str = "postgres") -> str:
        """Return the address of one of its databases."""
        return f"postgresql://queue@{self.place}/{database}"

    def make(self, *flags: str) -> None:
        """Make an empty cluster, which trusts every user in the tests' networks except ``stranger``."""
        how = ("-U", "queue", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        _run(_program("initdb"), "-D", self.data, *how, *flags)
        hosts = self.data / "pg_hba.conf"
        hosts.write_text(f"host all stranger 127.0.0.1/32 scram-sha-256\n{TRUSTED}\n{hosts.read_text()}")

    def follow(self, primary: "Cluster") -> None:
        """Make this a standby of the other cluster."""
        shutil.rmtree(self.data, ignore_errors=True)
        where = f"{primary.url()}?application_name={self.data.name}"
        with self.machine.entered():
            _run(_program("pg_basebackup"), "-D", self.data, "-d", where, "-R", "-c", "fast")

    def stand_by(self, primary: "Cluster") -> None:
        """Make this, a copy of the other one from before its start, its standby."""
        (self.data / "standby.signal").touch()
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{primary.url()}?application_name={self.data.name}'\n")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = SETTINGS | {"port": str(self.port), "unix_socket_directories": str(self.socket)}
        settings["listen_addresses"] = self.machine.address
        user = _user()
        with (self.data.parent / f"{self.data.name}.log").open("ab") as log, self.machine.entered():
            self.process = subprocess.Popen(
                [_program("postgres"), "-D", self.data, *(f"--{key}={value}" for key, value in settings.items())],
                stdout=log,
                stderr=log,
                user=user,
                group=user,
                cwd="/",
                env=self._environment,
            )
        until = time.monotonic() + STARTS_WITHIN_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self.data.parent / f"{self.data.name}.log").read_text())
            time.sleep(0.02)

    def answers(self) -> bool:
        """Return whether it accepts connections."""
        ready = [str(_program("pg_isready")), "-q", "-h", self.machine.address, "-p", str(self.port)]
        with self.machine.entered():
            return subprocess.run(ready, check=False).returncode == 0

    def kill(self) -> None:
        """Kill all of its processes."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        assert self.process is not None
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], check=False, capture_output=True, text=True
        ).stdout.split()
        self.process.send_signal(number)
        for child in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def stop(self) -> None:
        """Stop it quickly, without leaving anything to recover."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()
            self.process = None

    def promote(self) -> None:
        """Make a standby the primary."""
        _run(_program("pg_ctl"), "promote", "-w", "-D", self.data)

    def new_database(self) -> str:
        """Make an empty database, and return its address."""
        name = f"queue{next(NUMBERS)}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def sql(self, statement: str, database: str = "postgres") -> list[asyncpg.Record]:
        """Execute a statement, and return its rows."""
        with self.machine.entered():
            return asyncio.run(self.asql(statement, database))

    async def asql(self, statement: str, database: str = "postgres") -> list[asyncpg.Record]:
        """The same for use in a loop, on this machine. The statement does not wait for a standby."""
        connection = await asyncpg.connect(self.url(database), server_settings={"synchronous_commit": "local"})
        try:
            return await connection.fetch(statement)
        finally:
            await connection.close()


@cache
def _stopped() -> Path:
    """The data of a server that has been stopped, with an empty database: copies take less time than new ones."""
    atexit.register(shutil.rmtree, home := new_home())
    cluster = Cluster(home, "stopped")
    cluster.make("--wal-segsize=1")  # files of 16 MiB would be the most of a copy
    cluster.start()
    cluster.sql("CREATE DATABASE queue")
    cluster.stop()
    with (cluster.data / "postgresql.conf").open("a") as settings:
        settings.write("synchronous_standby_names = 'ANY 1 (one, two)'\n")
    return cluster.data


class Pair:
    """A primary and its synchronous standby, which can swap roles; commits wait for whichever is the standby."""

    def __init__(self, machines: tuple[Machine, Machine] = (HERE, HERE)) -> None:
        home = new_home()
        self.home = home
        self.primary, self.standby = (
            Cluster(home, "one", machine=machines[0]),
            Cluster(home, "two", machine=machines[1]),
        )
        for cluster in (self.primary, self.standby):
            _run("cp", "-a", _stopped(), cluster.data)
        self.primary.start()
        self.standby.stand_by(self.primary)
        self.standby.start()

    def url(self) -> str:
        """Return the address of the database, with both hosts."""
        places = sorted([self.primary.place, self.standby.place])
        return f"postgresql://queue@{','.join(places)}/queue"

    def make_standby(self) -> None:
        """Make the cluster that is not primary follow the other one."""
        self.standby.kill()
        self.standby.follow(self.primary)
        self.standby.start()

    def fail_over(self) -> None:
        """Kill the primary, and promote its standby, which has no standby itself for now."""
        self.primary.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def restart_primary(self) -> None:
        """Kill the primary, and start it again."""
        self.primary.kill()
        self.primary.start()

    def end(self) -> None:
        """Remove everything."""
        self.primary.kill()
        self.standby.kill()
        shutil.rmtree(self.home)


def receiver_of(standby: Cluster) -> int:
    """Return the id of a standby's WAL receiver process."""
    assert standby.process is not None
    command = ["pgrep", "-P", str(standby.process.pid), "-f", "walreceiver"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def new_home() -> Path:
    """Make a folder for clusters that their user can write to.

    It is in memory if there is room and nothing is synced: a cluster has a thousand files, and for each new file ext4
    looks through all that have been deleted in the last seconds.
    """
    fast = SETTINGS["fsync"] == "off" and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
    home = Path(tempfile.mkdtemp(prefix="beanlite-pg-", dir=MEMORY if fast else None))
    user = _user()
    if user is not None:
        entry = pwd.getpwnam(user)
        os.chown(home, entry.pw_uid, entry.pw_gid)
    return home
