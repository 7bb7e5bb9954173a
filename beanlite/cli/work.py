"""``beanlite work``."""

import asyncio
import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from beanlite.beanstalk.client import Server, target_of
from beanlite.cli import completion
from beanlite.cli.groups import ServerOption, age_option, grouped
from beanlite.cli.printing import LineStdout
from beanlite.console.filters import encode_tube
from beanlite.errors import ConfigError
from beanlite.host import log
from beanlite.host.places import host_and_port, is_port

if TYPE_CHECKING:
    from concurrent.futures import Future

    from beanlite.client import Queue

EPILOG: Final = (
    "Each job is a line of JSON on stdout: its id, tube, outcome (done, released, buried, own, lost or given back),"
    " seconds, tries and error. The log and what the function prints are on stderr. Exit codes: 0 stopped, and all"
    " jobs that were begun are finished; 1 jobs were given back unfinished, the server refuses something, or all calls"
    " of the function hang; 2 a wrong setting or flag, or there is no such function; 5 can't listen on the address of"
    " --health."
)
EXAMPLES: Final = """
beanlite work app:send --tube mail
beanlite work app.mail:send -t mail -t newsletter --concurrency 8 --timeout 10min
beanlite work app:send --tube mail --connect db1:11300,db2:11300
"""
# What a client may call itself.
_NOT_IN_NAMES: Final = re.compile("[^!#-~]")
_NAME_MAX: Final = 100


@grouped
def work(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION", help="The function; its one argument is the job.", show_default=False
        ),
    ],
    *,
    tube: Annotated[
        list[str] | None,
        typer.Option(
            "--tube",
            "-t",
            metavar="TUBE",
            help="The tube to reserve from; repeatable. Default: default.",
            autocompletion=completion.tubes,
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Do so many jobs at a time.")] = 1,
    timeout: Annotated[
        float, age_option("--timeout", text="How long a job may take; it is touched so long. Default: 1h.")
    ] = 3600,
    tries: Annotated[
        int, typer.Option(min=1, metavar="N", help="Bury a job that has failed after so many reservations.")
    ] = 5,
    grace: Annotated[
        float, age_option("--grace", text="How long the jobs in hand may take after SIGTERM. Default: 30s.")
    ] = 30,
    health: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics there.", show_default=False),
    ] = None,
    server: ServerOption,
) -> int:
    """Do jobs: call a Python function for each.

    The function is imported from the working directory, or from where it is installed. When it returns the job is
    deleted. When it raises, the job is released with a delay that grows, and at last buried; the traceback is its note.
    An async function is called in the loop, any other one in a thread.

    SIGTERM or SIGINT stops the worker when the jobs in hand are finished; a second one, at once. Servers that take over
    from each other: --connect HOST:PORT,HOST:PORT.
    """
    from beanlite.worker.function import load
    from beanlite.worker.metrics import WorkerMetrics
    from beanlite.worker.outcomes import JobOutcome
    from beanlite.worker.worker import Limits, Worker

    tubes = tube or ["default"]
    _check(tubes, timeout)
    listen_at = None if health is None else _listen_at(health)
    connecting = _connecting(server.addresses, function, tubes)
    log.setup("info", "text")
    limits = Limits(concurrency, timeout, tries, grace)
    with LineStdout() as stdout:  # before the import, which may print
        called = load(function)
        metrics = WorkerMetrics()

        def record(ended: JobOutcome) -> "Future[None]":
            metrics.count(ended)
            return stdout.print_line(json.dumps(ended._asdict()), "what becomes of jobs can't be printed")

        async def run() -> int:
            worker = Worker(called, connecting, limits, record)
            if listen_at is not None:
                await metrics.serve(worker, *listen_at)
            return await worker.run()

        return _run(run())


def _run(working: Coroutine[Any, Any, int]) -> int:
    """Run to the end, and return the exit code."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        life = loop.create_task(working)
        while not life.done():
            # What a task of the function's own raises ends the loop; whoever awaits the task gets it, too.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_until_complete(life)
        return life.result()


def _check(tubes: list[str], timeout_s: float) -> None:
    for tube in tubes:
        encode_tube(tube)
    if timeout_s == 0:
        raise ConfigError("--timeout has to be longer than 0s")


def _listen_at(health: str) -> tuple[str, int]:
    host, _, port = health.rpartition(":")
    if not host or not is_port(port):
        raise ConfigError(f"--health takes HOST:PORT, not {health!r}")
    return host_and_port(health)


def _connecting(servers: tuple[Server, ...], function: str, tubes: list[str]) -> "Callable[[], Queue]":
    """Return what makes the client. ConfigError: the token is none, or a file for TLS can't be used."""
    from beanlite.client import Queue

    name = _NOT_IN_NAMES.sub("?", f"{socket.gethostname()}/{function}/{os.getpid()}")[-_NAME_MAX:]
    return partial(Queue, tuple(target_of(server, name) for server in servers), "default", tubes)
