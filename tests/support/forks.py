"""Processes of ``beanlite`` that are forks of a helper, which has imported all of it beforehand.

::

    process = fork(["serve", "--port", "0"], folder, environment, output)

Most of the time that a server takes to start goes into imports, and the tests start a thousand servers. A fork runs
the same code as ``python -m beanlite``, from ``main`` to the exit code. Tests of the start itself, of Python's own
settings and of flags for Python need a process of their own.

There is one helper for each process that asks for forks. It ends when that process does.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Fork:
    """A process that the helper has forked, with the part of the interface of ``subprocess.Popen`` that tests use."""

    def __init__(self, args, pid, exited):
        self.args = args
        self.pid = pid
        self.returncode = None
        self._exited = exited

    def poll(self):
        return self._read(0)

    def wait(self, timeout=None):
        if self._read(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def _read(self, within_s):
        """Read the exit code, which the helper writes as soon as it has reaped the process."""
        if self.returncode is None and select.select([self._exited], [], [], within_s)[0]:
            with self._exited:
                said = self._exited.recv(100)
            if not said:
                raise RuntimeError("the helper that forks has ended")
            self.returncode = int(said)
        return self.returncode


class Helper:
    """The helper process, and the socket over which it is asked for forks."""

    def __init__(self):
        self._lock = threading.Lock()
        self._asks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )
        atexit.register(self.end)

    def fork(self, args, folder, environment, output):
        """Fork; `output` is the file for both stdout and stderr, while stdin is empty."""
        exited, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        request = {"args": list(args), "folder": str(folder), "environment": dict(environment)}
        with theirs, self._lock:
            socket.send_fds(self._asks, [json.dumps(request).encode()], [output.fileno(), theirs.fileno()])
            pid = int(self._asks.recv(100))
        return Fork(["beanlite", *args], pid, exited)

    def end(self):
        self._asks.close()
        self._process.wait()


_helpers: dict[int, Helper] = {}
_making = threading.Lock()


def fork(args, folder, environment, output):
    """Fork a process of beanlite with these arguments, in this folder and environment; see `Helper.fork`."""
    with _making:
        if (helper := _helpers.get(os.getpid())) is None:
            _helpers.clear()  # those of a parent, if this process was itself forked
            helper = _helpers[os.getpid()] = Helper()
    return helper.fork(args, folder, environment, output)


# -- in the helper


def become(request, output):
    """Run beanlite in the fork, from its first instruction to the exit code."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 1 << 16)
    # Those of the helper know whether its own files can be read from the middle, which a pipe can't.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = ["beanlite", *request["args"]]
    from beanlite.__main__ import main

    code = 1
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        # As sys.exit does, but without freeing the memory of the helper, which would take as long as everything else.
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter itself does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def import_everything():
    """Import what a server imports in the course of its life."""
    import caio.linux_aio
    import uvloop

    import beanlite.journal.postgres.journal
    import beanlite.journal.sqlite.served.journal
    import beanlite.metrics.families
    import beanlite.server.start

    del beanlite, caio, uvloop


def import_web():
    """The same for the web page, which servers do without."""
    import beanlite.cli.web
    import beanlite.web.serving

    del beanlite


def prepare():
    """Do once what each server would do anew, with the same result: it would take half of the time of a start."""
    from typer.main import get_command

    from beanlite import cli
    from beanlite.journal.sqlite.file.database import open_database

    build_app = cli.build_app
    serve: Any = get_command(build_app(["serve"]))
    serve.commands["serve"].make_context("serve", [])  # which finds out what each flag takes

    def prepared(names, *, completes):
        return build_app(names, completes=completes) if completes or list(names) != ["serve"] else serve

    cli.build_app = prepared  # type: ignore[assignment]  # it is called likewise
    with tempfile.TemporaryDirectory() as folder:
        open_database(Path(folder) / "queue.db").close()  # which knows from then on what a file is to have


def main(number):
    """Fork on request until the socket is closed."""
    import_everything()
    prepare()
    gc.collect()
    gc.freeze()  # or the collector would copy all of the memory in each fork
    asks = socket.socket(fileno=number)
    exits, parents = {}, select.poll()
    parents.register(asks, select.POLLIN)
    while True:
        for ready, _ in parents.poll():
            if ready != number:
                pid, theirs = exits.pop(ready)
                parents.unregister(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with socket.socket(fileno=theirs) as exited:
                    exited.send(str(code).encode())
                continue
            said, files, _, _ = socket.recv_fds(asks, 1 << 20, 2)
            if not said:
                return
            output, theirs = files
            request = json.loads(said)
            if request["args"][0] == "web":
                import_web()
            if not (pid := os.fork()):
                become(request, output)
            os.close(output)
            watched = os.pidfd_open(pid)
            exits[watched] = pid, theirs
            parents.register(watched, select.POLLIN)
            asks.send(str(pid).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
