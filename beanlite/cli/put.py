"""``beanlite put``."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.beanstalk.client import TIMEOUT_S
from beanlite.cli import completion
from beanlite.cli.groups import Json, ServerOption, age_option, grouped, seconds_of
from beanlite.cli.options import tell_those_there
from beanlite.cli.paths import as_path
from beanlite.cli.printing import print_done
from beanlite.cli.source import STDIN, has_more, reader
from beanlite.client.calls import PRI, TTR_S
from beanlite.console.filters import JobId, encode_tube
from beanlite.console.live import Live, login_name
from beanlite.console.putting import NewJob, put as put_all, read_jobs
from beanlite.console.routing import home, naming
from beanlite.console.several import Several
from beanlite.core.job import U32_MAX
from beanlite.errors import ConfigError
from beanlite.journal.lines import read_lines

EPILOG: Final = (
    "The ids are printed; if they can't be, the jobs are put all the same, and a line on stderr says so. Jobs are put"
    " in batches of up to 500, each batch as a whole or not at all; what has come through a pipe is put before more is"
    " waited for. Exit codes: 0 done; 1 the server can't be reached"
    " or refuses a job, or the jobs can't be read; 2 a wrong setting or flag, or a line that is not a job; 130 Ctrl-C"
    " (the ids of the jobs that were put are printed). After 1 and 2 the message says how many were put before."
)
EXAMPLES: Final = """
beanlite put --tube mail 'welcome ann' 'welcome bob'
beanlite put --tube mail --pri 10 --delay 5min < body
cut -f1 list | beanlite put --tube mail --lines
beanlite put --jobs jobs.jsonl
    each line as {"body": "welcome ann", "tube": "mail", "pri": 10, "delay_s": 300, "ttr_s": 60}
"""


@grouped
def put(
    bodies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BODY", help="The body of a job, or several. Default: all of stdin, as one job.", show_default=False
        ),
    ] = None,
    *,
    tube: Annotated[
        str | None,
        typer.Option(
            "--tube",
            "-t",
            metavar="TUBE",
            help="The tube; required with several BODYs. Default: default.",
            autocompletion=completion.tubes,
        ),
    ] = None,
    pri: Annotated[int, typer.Option(min=0, max=U32_MAX, metavar="N", help="The pri; 0 comes first.")] = PRI,
    delay: Annotated[
        float, age_option("--delay", text="Time until the job is ready, such as 90s, 5min or 3h. Default: 0s.")
    ] = 0,
    ttr: Annotated[float, age_option("--ttr", text="How long a client may hold the job. Default: 60s.")] = TTR_S,
    lines: Annotated[bool, typer.Option("--lines", help="Put each line of stdin as a job.")] = False,
    jobs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=as_path, help="Put each line of this file, a JSON object, as a job; - is stdin."
        ),
    ] = None,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Put jobs."""
    if bool(bodies) + lines + (jobs is not None) > 1:
        raise ConfigError("BODY, --lines and --jobs exclude each other")
    _check_bodies(bodies or [], tube)
    tube = "default" if tube is None else tube
    encode_tube(tube)
    delay_s, ttr_s = seconds_of("--delay", delay), seconds_of("--ttr", ttr)
    with ExitStack() as stack:
        source: BufferedReader | None = None
        new_jobs: Iterable[NewJob]
        if jobs is None:
            servers = server.open(TIMEOUT_S)
            stack.enter_context(servers)
            data: Iterable[bytes]
            if bodies:
                data = [body.encode(errors="surrogateescape") for body in bodies]
            else:
                max_bytes = _most(*home(servers, tube))
                what = f"jobs for the tube {tube}, one a line," if lines else f"the body of a job for the tube {tube}"
                source = reader(STDIN, what)
                data = _lines_of(source, max_bytes) if lines else [source.read(max_bytes + 1)]
            new_jobs = (NewJob(body, tube, pri, delay_s, ttr_s) for body in data)
        else:
            defaults = {"tube": tube, "pri": pri, "delay_s": delay_s, "ttr_s": ttr_s}
            source = stack.enter_context(reader(jobs, "jobs, a JSON object a line,"))
            new_jobs = _read(source, jobs, defaults)
            servers = server.open(TIMEOUT_S)
            stack.enter_context(servers)
        there: list[JobId] = []
        stack.callback(tell_those_there, there)
        for ids in put_all(servers, new_jobs, login_name(), partial(has_more, source)):
            text = "\n".join(json.dumps(job_id.record()) if as_json else str(job_id) for job_id in ids)
            print_done(text, "jobs are put, but not all of their ids can be printed")
            there += [job_id for job_id in ids if job_id.was_there]
        if isinstance(servers, Several):
            servers.away.clear()  # none of those was needed


def _check_bodies(bodies: list[str], tube: str | None) -> None:
    """Raise ConfigError if one was probably not meant as a body."""
    if "-" in bodies:
        raise ConfigError("- is no body; without a BODY, stdin is the body of the job")
    if len(bodies) > 1 and tube is None:  # the first may have been meant as the tube
        raise ConfigError(f"each BODY is a job, and none a tube: say --tube {bodies[0]}, or --tube default")


def _most(server: str, live: Live) -> int:
    """Return how many bytes the largest body has that the server takes."""
    with naming(server):
        most: int = live.stats()["max-job-size"]
    return most


def _lines_of(source: BufferedReader, max_bytes: int) -> Iterator[bytes]:
    """Yield the lines of stdin; no more of one than it takes for the server to refuse it."""
    while line := source.readline(max_bytes + 1 + len(b"\r\n")):
        yield line[:-1].removesuffix(b"\r") if line.endswith(b"\n") else line


def _read(source: BufferedReader, file: Path, defaults: dict[str, object]) -> Iterable[NewJob]:
    """Yield the jobs of a file of JSON lines. ConfigError: a line is malformed. BeanliteError: it can't be read."""
    if file == STDIN:
        return read_jobs(read_lines(source), "stdin", defaults)
    if source.seekable():
        for _ in read_jobs(
            read_lines(source), str(file), defaults
        ):  # so that an error in its last line leaves nothing half done
            pass
        source.seek(0)
    return read_jobs(read_lines(source), str(file), defaults)
