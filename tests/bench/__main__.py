"""The command line."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from beanlite.errors import BeanliteError, ConfigError
from tests.bench import machine, report, runner, target, workloads

NAME = "python -m tests.bench"
EPILOG = (
    "Exit codes: 0 done; 1 a server can't be reached, or gave a wrong answer; 2 a wrong option, or a command or folder"
    " that can't be used; 130 interrupted. Jobs are put in separate tubes, bench-PID-N, and deleted afterwards."
)

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(epilog=EPILOG)
def bench(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="noop (list-tube-used); put; cycle (put, reserve, delete); drain (reserve and delete jobs that were"
            " put before); pc (every other connection puts, the others reserve and delete); mixed (a cycle that also"
            " has a delay, a bury and two kicks).",
        ),
    ] = "cycle",
    *,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND",
            help="Start this server, such as 'beanstalkd -b . -f0', in its own empty folder. Repeatable: each server"
            " gets a line in the table.",
        ),
    ] = None,
    connect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]HOST:PORT",
            help="Measure a running server, also at tls://HOST:PORT or unix:PATH. Repeatable.",
        ),
    ] = None,
    tls_ca: Annotated[str | None, typer.Option(metavar="FILE", help="Trust servers of this authority.")] = None,
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="Show them this certificate.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its key, unless in the same file.")] = None,
    connections: Annotated[int, typer.Option("--connections", "-c", min=1, help="Number of clients.")] = 50,
    beside: Annotated[
        int, typer.Option(min=0, help="Extra clients that send list-tube-used without pause and are not counted.")
    ] = 0,
    depth: Annotated[
        int, typer.Option("--depth", "-d", min=1, help="Commands that a client sends before it waits for replies.")
    ] = 1,
    body: Annotated[int, typer.Option("--body", "-s", min=0, help="Size of a job body in bytes.")] = 100,
    tubes: Annotated[int, typer.Option(min=1, help="Number of tubes, shared out among the clients.")] = 1,
    seconds: Annotated[float, typer.Option("--seconds", "-t", min=0.01, help="Length of a round in seconds.")] = 3.0,
    warmup: Annotated[float, typer.Option(min=0.0, help="Seconds of load before a round, not counted.")] = 0.5,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Number of rounds; targets take turns.")] = 3,
    rate: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Commands per second, of all clients together; latency then counts from when each was due. 0: no"
            " limit.",
        ),
    ] = 0.0,
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs to drain.")] = 100_000,
    processes: Annotated[int, typer.Option(min=1, help="Number of load generator processes.")] = 1,
    pin: Annotated[
        bool, typer.Option("--pin", help="Run started servers on the first core, the generator on the others.")
    ] = False,
    directory: Annotated[
        str, typer.Option("--dir", metavar="DIR", help="Where started servers keep their files.")
    ] = ".",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as a JSON object on one line.")] = False,
) -> None:
    """Measure servers that speak the protocol, side by side.

    Ratios are to the first target: those of --against come first, then those of --connect. Without
    --connect, and if --against names no beanlite, one with default settings is started and comes last. "beanlite" is
    the one that is installed for this Python, even in a checkout.
    """
    options = runner.Options(
        workload=workload,
        connections=connections,
        beside=beside,
        depth=depth,
        body=body,
        tubes=tubes,
        seconds=seconds,
        warmup_s=warmup,
        rounds=rounds,
        rate=rate,
        jobs=jobs,
        processes=processes,
    )
    _check(options, directory)
    folder = Path(directory)
    mine = machine.cores() or []
    if pin and len(mine) < 2:
        raise ConfigError("--pin needs two cores")
    cores = mine[1:] if pin else mine
    files = [tls_ca, tls_cert, tls_key]
    with _targets(against or [], connect or [], files, folder, mine[:1] if pin else None) as targets:
        with _progress(options, targets) as progress:
            rounds_done = runner.run(options, targets, cores, progress)
        version, is_compiled = target.installed()
        result = {
            "beanlite": version,
            "compiled": is_compiled,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {**machine.describe(), "file_system": machine.file_system(folder)},
            "generator_cores": cores,
            "pinned": pin,
            "load": asdict(options),
            "targets": report.summary(options, targets, rounds_done),
        }
    print(json.dumps(result) if as_json else report.table(result))
    _warn(result, started=bool(against or not connect))


def _check(options: runner.Options, directory: str) -> None:
    """Check the options. ConfigError: they don't go together."""
    if options.workload not in workloads.NAMES:
        raise ConfigError(f"there is no workload {options.workload!r}, only {', '.join(workloads.NAMES)}")
    if options.workload == "pc" and options.connections < 2:
        raise ConfigError("pc needs two connections: one puts, the other reserves")
    if options.workload in {"pc", "drain"} and options.rate:
        raise ConfigError(f"--rate has no meaning in {options.workload}")
    if options.connections < options.processes:
        raise ConfigError("there are more --processes than --connections")
    if not directory:  # as from a script whose variable is not set
        raise ConfigError("--dir is empty")
    if not Path(directory).is_dir():
        raise ConfigError(f"{directory} is not a directory")


@contextlib.contextmanager
def _targets(
    against: list[str], places: list[str], files: list[str | None], directory: Path, server_cores: list[int] | None
) -> Iterator[list[target.Target]]:
    """Yield all targets, having started those that are to be started."""
    commands = [*against]
    if not places and not any(map(target.is_beanlite, against)):
        commands.append("beanlite")
    with contextlib.ExitStack() as stack:
        yield [
            *[stack.enter_context(target.started(command, directory, server_cores)) for command in commands],
            *[target.reached(place, files) for place in places],
        ]


@contextlib.contextmanager
def _progress(options: runner.Options, targets: list[target.Target]) -> Iterator[Any]:
    """Show a progress bar on stderr if that is a terminal; yield what to call with the seconds that have passed."""
    with contextlib.ExitStack() as stack:
        where = sys.stderr if sys.stderr.isatty() else stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        seconds = (options.seconds + options.warmup_s) * options.rounds * len(targets)
        bar = stack.enter_context(
            typer.progressbar(length=round(1000 * seconds), label=options.workload, file=where, width=0)
        )
        yield lambda passed_s: bar.update(round(1000 * passed_s))


def _warn(result: dict[str, Any], *, started: bool) -> None:
    """Warn on stderr of what makes the figures doubtful, and of what is left behind."""
    file_system = result["machine"]["file_system"]
    if started and file_system in {"tmpfs", "ramfs"}:
        print(f"bench: files were on {file_system}, where a sync costs nothing: see --dir", file=sys.stderr)
    for each in result["targets"]:
        if each["left"]:
            print(f"bench: {each['name']}: {each['left']} jobs could not be deleted", file=sys.stderr)


def main(args: list[str]) -> int:
    """Carry out a command line; return the exit code."""
    try:
        return int(app(args, prog_name=NAME, standalone_mode=False) or 0)
    except typer.TyperException as error:
        message, exit_code = " ".join(error.format_message().split()).rstrip("."), ConfigError.exit_code
        message += "" if message.endswith("?") else f"; {NAME} --help tells how"
    except BeanliteError as error:
        message, exit_code = str(error), error.exit_code
    except KeyboardInterrupt:
        return 130
    print(f"bench: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it cleans up, as after Ctrl-C
    sys.exit(main(sys.argv[1:]))
