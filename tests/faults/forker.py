"""Servers that are killed at one of their file operations, or in which one fails: each is a fork of a helper process.

::

    with Forker(library) as forker:
        ended = forker.run(data, steps, fault=Fault(KILL_BEFORE, CHANGES, 17))

The helper has faults.c loaded and beanlite imported, so that a server costs a fork and not a start of Python. The fork
runs ``beanlite serve`` as a user does, on a socket that is handed over. The helper is its only client, and stops the
server (SIGTERM) after the client's steps. Other commands of beanlite are forked likewise.
"""

import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).parents[2]
DATABASE = "queue.db"
WITHIN_S = 20
COMMANDS = ["serve", "backup", "restore", "compact", "import"]
WITH_BODY = (b"RESERVED ", b"FOUND ", b"OK ")
HANDED_OVER = 3  # the file descriptor of a socket opened by systemd
# As in faults.c.
KINDS = "create write truncate allocate unlink rename link mkdir xattr sync synced read open close".split()
RECORD, KILL_BEFORE, KILL_AMID, FAIL_ONCE, FAIL_ON, SHORT_ON = range(6)


def mask(*kinds):
    return sum(1 << KINDS.index(kind) for kind in kinds)


CHANGES = mask(*KINDS[: KINDS.index("synced")])


class Fault(NamedTuple):
    """What happens at the n-th call, counted from 1, of some kinds of file operation."""

    action: int = RECORD
    kinds: int = 0
    number: int = 0
    errno: int = 0


class Step(NamedTuple):
    """What the client sends at once; {name} in it stands for the id of the job of that name."""

    send: str
    replies: int = 1
    names: str | None = None
    """The name of the job that it puts."""
    command: tuple[str, ...] = ()
    """A command that is carried out first, beside the server."""
    asks: bool = False
    """Whether the replies are of interest; otherwise the client gives up if something is not found."""


@dataclass
class Ended:
    """How a server ended, and what its client had seen by then."""

    code: int
    """The exit code, or a negative signal number."""
    stderr: str
    ids: dict[str, int] = field(default_factory=dict)
    acked: int = 0
    """The number of steps that were answered."""
    said: list[str] = field(default_factory=list)
    """The replies to steps that ask: the body, if there is one, otherwise the line."""


def build(library: Path) -> None:
    """Compile faults.c."""
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)


class Forker:
    """The helper process."""

    def __init__(self, library: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BEANLITE_")}
        self._helper = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forker", str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment | {"LD_PRELOAD": str(library)},
        )
        self.kills = 0
        """How many servers a fault has killed."""

    def run(
        self,
        data,
        steps=(),
        ids=None,
        *,
        fault=Fault(),  # noqa: B008
        trace=None,
        migrations=None,
        kill=False,
        strace=(),
        constants=(),
        fsync="always",
    ):
        """Serve the file in the folder `data` while the client does its steps; then SIGTERM, or SIGKILL with `kill`.

        `trace` is a file for the record of the operations. It also gets lines that begin with "note": "started 0" at
        the first reply, "acked N" as each step is answered, and "stop N" at the end. `strace` are flags of strace,
        which then traces the server from its beginning. `constants` are pairs of a module's constant and the value
        that it gets.
        """
        request = {
            "data": str(data),
            "steps": [step._asdict() for step in steps],
            "ids": ids or {},
            "fault": fault,
            "trace": trace and str(trace),
            "migrations": migrations and str(migrations),
            "kill": kill,
            "strace": list(strace),
            "constants": list(constants),
            "fsync": fsync,
        }
        return self._ask(request, fault)

    def command(self, args, data, *, fault=Fault(), trace=None):  # noqa: B008
        """Carry out a command of beanlite; the fault and the record are those of operations in the folder `data`."""
        request = {"args": list(args), "data": str(data), "fault": fault, "trace": trace and str(trace)}
        return self._ask(request, fault)

    def _ask(self, request, fault):
        self._helper.stdin.write(json.dumps(request).encode() + b"\n")
        self._helper.stdin.flush()
        answer = self._helper.stdout.readline()
        if not answer:
            raise RuntimeError("the helper has ended")
        ended = Ended(**json.loads(answer))
        self.kills += fault.action in {KILL_BEFORE, KILL_AMID} and ended.code == -signal.SIGKILL
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._helper.stdin.close()
        self._helper.wait(WITHIN_S)
        self._helper.stdout.close()


# -- in the helper


def serve(request, library, trace, listener, stderr):
    """Run the server in the fork, from its first instruction to the exit code."""
    signal.alarm(WITHIN_S)
    if request["strace"]:
        os.kill(os.getpid(), signal.SIGSTOP)  # until it is traced
    os.dup2(stderr, 2)
    os.dup2(listener.fileno(), HANDED_OVER)
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    if request["migrations"]:
        from beanlite.journal.sqlite.file import database
        from beanlite.journal.sqlite.served import recovery

        opened = partial(database.open_database, migrations_folder=Path(request["migrations"]))
        recovery.open_database = opened  # type: ignore[attr-defined]
    for name, value in request["constants"]:
        module, _, constant = name.rpartition(".")
        setattr(sys.modules[module], constant, value)
    action, kinds, number, errno = request["fault"]
    library.faults_arm(request["data"].encode(), trace, kinds, number, action, errno)
    file = f"{request['data']}/{DATABASE}"
    return beanlite_main(["serve", "--db", file, "--fsync", request["fsync"], "--log-level", "error"])


def carry_out(request, library, trace, stderr):
    """Run another command in the fork; what it prints is of no interest."""
    signal.alarm(WITHIN_S)
    os.dup2(stderr, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    action, kinds, number, errno = request["fault"]
    library.faults_arm(request["data"].encode(), trace, kinds, number, action, errno)
    return beanlite_main(request["args"])


def beanlite_main(args):
    from beanlite.cli import main

    return main(args)


def end(code):
    """Exit as sys.exit does, but without freeing the helper's memory, which would take as long as everything else."""
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter itself does
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)


def work(request, client, trace, ended):
    """Do the steps, and note in `ended` what comes of them; return whether the server is still there."""
    ids = ended.ids
    received = client.makefile("rb")
    with contextlib.suppress(ConnectionError, TimeoutError):
        client.sendall(b"list-tube-used\r\n")
        if not received.readline():
            return False
        note(trace, "started 0")
        for step in request["steps"]:
            if step["command"]:
                beside([arg.format(data=request["data"]) for arg in step["command"]])
            client.sendall(step["send"].format(**ids).encode())
            for _ in range(step["replies"]):
                reply = received.readline()
                if not reply.endswith(b"\r\n"):
                    return False
                body = received.read(int(reply.split()[-1]) + 2) if reply.startswith(WITH_BODY) else b""
                if step["asks"]:
                    ended.said.append((body or reply).decode().removesuffix("\r\n"))
                elif reply in {b"OUT_OF_MEMORY\r\n", b"NOT_FOUND\r\n"}:  # the first: the disk seems to be full
                    return True
                elif step["names"]:
                    ids[step["names"]] = int(reply.removeprefix(b"INSERTED "))
            ended.acked += 1
            note(trace, f"acked {ended.acked}")
        return True
    return False


def beside(args):
    """Carry out a command in a fork of its own, in which no operation fails; it may find the server gone."""
    process = os.fork()
    if not process:
        signal.alarm(WITHIN_S)
        for number, flags in ((1, os.O_WRONLY), (2, os.O_WRONLY)):
            os.dup2(os.open(os.devnull, flags), number)
        end(beanlite_main(args))
    os.waitpid(process, 0)


def follow(process, flags):
    """Attach strace to a process that has stopped itself, and continue the process."""
    os.waitpid(process, os.WUNTRACED)
    tracer = subprocess.Popen(["strace", "-f", "-qqq", "-p", str(process), *flags], stdin=subprocess.DEVNULL)
    status = Path(f"/proc/{process}/status")
    while "TracerPid:\t0\n" in status.read_text():
        if tracer.poll() is not None:
            raise RuntimeError("strace can't be had here")
        time.sleep(0.001)
    os.kill(process, signal.SIGCONT)
    return tracer


def is_served(address):
    """Return whether a server that has closed a connection still accepts others."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WITHIN_S)
        client.connect(address)
        client.sendall(b"list-tube-used\r\n")
        return client.recv(100).endswith(b"\r\n")
    return False


def note(trace, text):
    os.write(trace, f"note {text} 0\n\n".encode())


def answer(request, library):
    """Carry out a request; this does not return in the fork."""
    trace = os.open(request["trace"] or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    recorded = trace if request["trace"] else -1
    stderr = os.memfd_create("stderr")
    ended = Ended(0, "", request.get("ids", {}))
    if "args" in request:
        process = os.fork()
        if not process:
            end(carry_out(request, library, recorded, stderr))
        _, status = os.waitpid(process, 0)
    else:
        status = be_client(request, library, trace, recorded, stderr, ended)
    ended.code = os.waitstatus_to_exitcode(status)
    os.lseek(stderr, 0, os.SEEK_SET)
    with open(stderr, "rb") as said:  # noqa: PTH123 - a descriptor
        ended.stderr = said.read().decode()
    os.close(trace)
    return ended


def be_client(request, library, trace, recorded, stderr, ended):
    """Fork a server, and be its client; return the status with which it has exited."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # the kernel makes a name
        listener.listen()
        process = os.fork()
        if not process:
            end(serve(request, library, recorded, listener, stderr))
        tracer = follow(process, request["strace"]) if request["strace"] else None
        client = socket.socket(socket.AF_UNIX)
        client.connect(listener.getsockname())  # breaks if the server exits: no other process has the listener
        address = listener.getsockname()
    with client:
        client.settimeout(WITHIN_S)
        if work(request, client, trace, ended) or is_served(address):  # else it is about to exit with an error
            note(trace, f"stop {ended.acked}")
            os.kill(process, signal.SIGKILL if request["kill"] else signal.SIGTERM)
    _, status = os.waitpid(process, 0)
    if tracer is not None:
        tracer.wait(WITHIN_S)
    return status


def main(library):
    import ctypes

    import caio.linux_aio
    import typer
    import uvloop

    # All that a server imports as it starts: Python takes a file that it can't look at for one that is not there.
    import beanlite.cli
    import beanlite.cli.place
    import beanlite.journal.sqlite.file.dated
    import beanlite.journal.sqlite.served.journal
    import beanlite.journal.sqlite.tools.backup
    import beanlite.journal.sqlite.tools.compact
    import beanlite.journal.sqlite.tools.restore
    import beanlite.server.start

    del caio, uvloop
    # Otherwise this would be done at each call.
    apps = {name: typer.main.get_command(beanlite.cli.build_app([name])) for name in COMMANDS}
    beanlite.cli.build_app = lambda names, **_: apps[names[0]]  # type: ignore[assignment]
    with contextlib.redirect_stdout(None):
        beanlite.cli.main(["serve", "--version"])  # likewise for the modules that this imports
    gc.disable()  # as beanlite does
    os.dup2(os.open(os.devnull, os.O_RDONLY), HANDED_OVER)  # or the number might be taken by another file
    shim = ctypes.CDLL(library)
    shim.faults_arm.argtypes = [
        ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_long, ctypes.c_int, ctypes.c_int,
    ]  # fmt: skip
    gc.freeze()  # so that a fork does not collect these objects when it ends
    for line in sys.stdin.buffer:
        ended = answer(json.loads(line), shim)
        sys.stdout.write(json.dumps(asdict(ended)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
