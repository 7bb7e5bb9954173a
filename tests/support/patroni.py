"""Patroni and etcd, from Debian's packages: each PostgreSQL is on a machine of its own, with its Patroni."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from tests.support.network import Machine
from tests.support.postgres import SETTINGS, TRUSTED, Cluster, _user, new_home, programs

PATRONI = Path("/usr/bin/patroni")
ETCD = Path("/usr/bin/etcd")
ETCD_PORT = 2379
REST_PORT = 8008
REST_S = 2.0
SWITCHOVER_S = 60.0
ENDS_WITHIN_S = 20.0
BEGINS_WITHIN_S = 120.0
DATABASE = "queue"
RETRY_S = 5
SHARED = {
    "ttl": 20,
    "loop_wait": 1,
    "retry_timeout": RETRY_S,
    "maximum_lag_on_failover": 1 << 20,
    "synchronous_mode": True,
    "synchronous_mode_strict": True,
    # For a standby that was away for a minute. Patroni ignores it in a member's own settings.
    "postgresql": {"parameters": {"wal_keep_size": "2GB"}},
}
PARAMETERS = SETTINGS | {
    "synchronous_commit": "on",
    "full_page_writes": "on",  # pg_rewind needs them
    # A leader that is cut off waits for its standbys as it shuts down, and Patroni 3.0 does not expect that to take
    # longer than retry_timeout: it begins a second shutdown, then starts PostgreSQL twice, and breaks its data.
    "wal_sender_timeout": f"{RETRY_S}s",
    "dynamic_shared_memory_type": "mmap",  # a kill would leave segments behind elsewhere
}


def missing() -> str:
    """Return what is not installed; empty if everything is."""
    if programs() is None:
        return "PostgreSQL is not installed"
    return next((f"{path.name} is not installed" for path in (PATRONI, ETCD) if not path.exists()), "")


def _begin(machine: Machine, log: Path, *command: str | Path) -> subprocess.Popen[bytes]:
    """Start a program on a machine, with none of our environment."""
    user = _user()
    with log.open("ab") as file, machine.entered():
        return subprocess.Popen(
            list(map(str, command)),
            stdout=file,
            stderr=file,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        )


def _signal(machine: Machine, number: int) -> list[int]:
    """Send a signal to all processes on a machine, and return their ids."""
    pids = machine.processes()
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    return pids


def _end(machine: Machine, process: subprocess.Popen[bytes] | None) -> None:
    """Kill all processes on a machine, and wait until they are gone: PostgreSQL heeds the id of one that is not.

    ``process`` is the one that we have started there.
    """
    killed: set[int] = set()
    while pids := _signal(machine, signal.SIGKILL):
        killed.update(pids)
    if process is not None:
        process.wait()
    until = time.monotonic() + ENDS_WITHIN_S
    while left := [pid for pid in killed if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > until:
            raise TimeoutError(f"processes have not ended: {left}")
        time.sleep(0.01)


class Member(Cluster):
    """A PostgreSQL, and the Patroni that makes, starts and promotes it."""

    def __init__(self, home: Path, name: str, machine: Machine, etcd: dict[str, object], log: Path) -> None:
        super().__init__(home, name, machine=machine)
        self.name = name
        self.log = log
        self._settings = home / f"{name}.json"
        self._settings.write_text(json.dumps(self._configuration() | etcd))

    def _configuration(self) -> dict[str, object]:
        rest = f"{self.machine.address}:{REST_PORT}"
        return {
            "scope": "beanlite",
            "name": self.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "watchdog": {"mode": "off"},
            "bootstrap": {
                "dcs": SHARED,
                "initdb": [
                    {"encoding": "UTF8"},
                    {"locale": "C"},
                    {"auth": "trust"},
                    {"wal-segsize": "1"},
                ],
            },
            "postgresql": {
                "listen": self.place,
                "connect_address": self.place,
                "data_dir": str(self.data),
                "bin_dir": str(programs()),
                "pgpass": f"{self.data}.pgpass",
                "authentication": {"superuser": {"username": "queue"}, "replication": {"username": "queue"}},
                "pg_hba": ["local all,replication all trust", TRUSTED],
                "parameters": PARAMETERS | {"unix_socket_directories": str(self.socket)},
                "use_pg_rewind": True,
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
                "basebackup": [{"checkpoint": "fast"}],
            },
        }

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL."""
        self.process = _begin(self.machine, self.log, PATRONI, self._settings)

    def kill(self) -> None:
        """Kill Patroni and PostgreSQL."""
        _end(self.machine, self.process)

    def halt(self) -> None:
        """Stop all processes where they are."""
        for _ in range(2):  # one may have been started by another meanwhile
            _signal(self.machine, signal.SIGSTOP)

    def resume(self) -> None:
        """Let all processes continue."""
        _signal(self.machine, signal.SIGCONT)

    def ask(self, path: str, body: str | None = None, within_s: float = REST_S) -> tuple[int, bytes]:
        """Return what Patroni answers: the status and the text. OSError, HTTPException: it does not."""
        with self.machine.entered():
            connection = http.client.HTTPConnection(self.machine.address, REST_PORT, timeout=within_s)
            try:
                connection.request("GET" if body is None else "POST", path, body)
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()

    def json(self, path: str) -> dict[str, Any]:
        """Return what Patroni answers; empty if it does not."""
        try:
            said = json.loads(self.ask(path)[1])
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        return said if isinstance(said, dict) else {}


class Health(NamedTuple):
    """A cluster in which everything is as it should be."""

    leader: Member
    standby: Member
    """The one that commits wait for."""
    timeline: int


class Patroni:
    """Several members, and the etcd that they agree in, each on a machine of its own."""

    def __init__(self, machines: Sequence[Machine], etcd: Machine, logs: Path) -> None:
        self.home = new_home()
        self._etcd = etcd
        self._process: subprocess.Popen[bytes] | None = None
        self._logs = logs
        names = ("one", "two", "three")
        # Not etcd3: with that, Patroni before 3.0.3 takes back a promotion when the halted leader continues. With three
        # members what was acknowledged meanwhile is lost; with two the members may never agree again.
        where: dict[str, object] = {"etcd": {"host": f"{etcd.address}:{ETCD_PORT}"}}
        self.members = [
            Member(self.home, name, machine, where, logs / f"{name}.log")
            for name, machine in zip(names, machines, strict=False)
        ]

    def start(self) -> None:
        """Start everything, wait until it is healthy, and make a database."""
        here = f"http://{self._etcd.address}:{ETCD_PORT}"
        folder = self.home / "etcd"
        urls = ("--listen-client-urls", here, "--advertise-client-urls", here)
        self._process = _begin(self._etcd, self._logs / "etcd.log", ETCD, "--enable-v2", "--data-dir", folder, *urls)
        for member in self.members:
            member.start()
        until = time.monotonic() + BEGINS_WITHIN_S
        while (health := self.health()) is None:
            if time.monotonic() > until:
                raise TimeoutError("\n".join(member.log.read_text() for member in self.members))
            time.sleep(0.1)
        health.leader.sql(f"CREATE DATABASE {DATABASE}")

    def url(self) -> str:
        """Return the address of the database, with all hosts."""
        return f"postgresql://queue@{','.join(member.place for member in self.members)}/{DATABASE}"

    def health(self) -> Health | None:
        """Return who is what if Patroni says, on each member, that all is well, and PostgreSQL says the same."""
        said = [member.json("/patroni") for member in self.members]
        leaders = [member for member, each in zip(self.members, said, strict=True) if each.get("role") == "master"]
        if len(leaders) != 1 or any(each.get("state") != "running" or "cluster_unlocked" in each for each in said):
            return None
        leader = leaders[0]
        roles = {each["name"]: each["role"] for each in leader.json("/cluster").get("members", ())}
        standbys = [member for member in self.members if roles.get(member.name) == "sync_standby"]
        if len(standbys) != 1 or roles.get(leader.name) != "leader" or len(roles) != len(self.members):
            return None
        if self._streaming(leader) != {
            member.name: "sync" if member is standbys[0] else "async" for member in self.members if member is not leader
        }:
            return None
        return Health(leader, standbys[0], int(said[self.members.index(leader)]["timeline"]))

    def _streaming(self, leader: Member) -> dict[str, str]:
        """Return the state of each standby that streams."""
        rows = "SELECT application_name, sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        try:
            return {row["application_name"]: row["sync_state"] for row in leader.sql(rows)}
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return {}

    def switch_over(self, health: Health) -> None:
        """Make the synchronous standby the leader."""
        wish = json.dumps({"leader": health.leader.name, "candidate": health.standby.name})
        status, text = health.leader.ask("/switchover", wish, SWITCHOVER_S)
        if status != http.client.OK:
            raise RuntimeError(f"{status}: {text.decode()}")

    def close(self) -> None:
        """End and remove everything."""
        for member in self.members:
            member.kill()
        _end(self._etcd, self._process)
        shutil.rmtree(self.home)
