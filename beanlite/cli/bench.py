"""``beanlite bench``."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beanlite import __version__, is_compiled
from beanlite.cli.terminable import terminable
from beanlite.errors import ConfigError

if TYPE_CHECKING:
    from beanlite.bench.runner import Options
    from beanlite.bench.target import Target

EPILOG = (
    "Exit codes: 0 done; 1 a server can't be reached, or answered what it should not; 2 a wrong option. Jobs are put"
    " in tubes of their own, bench-PID-N, and deleted again."
)


def bench(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="noop (list-tube-used); put; cycle (put, reserve, delete); drain (reserve and delete what was put"
            " before); pc (every other connection puts, the rest reserve and delete); mixed (a cycle with a delay, a"
            " bury and two kicks in it).",
        ),
    ] = "cycle",
    *,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND",
            help="Start this server, such as 'beanstalkd -b . -f0', in an empty folder of its own. Several times: a"
            " line of the table for each.",
        ),
    ] = None,
    connect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]HOST:PORT",
            help="Drive a server that runs already; also unix:PATH. Several times: likewise.",
        ),
    ] = None,
    connections: Annotated[int, typer.Option("--connections", "-c", min=1, help="Clients.")] = 50,
    beside: Annotated[
        int, typer.Option(min=0, help="More clients, which send list-tube-used without pause and are not counted.")
    ] = 0,
    depth: Annotated[
        int, typer.Option("--depth", "-d", min=1, help="Commands that a client sends at once, before it waits.")
    ] = 1,
    body: Annotated[int, typer.Option("--body", "-s", min=0, help="Bytes of a job.")] = 100,
    tubes: Annotated[int, typer.Option(min=1, help="Tubes; clients take them in turn.")] = 1,
    seconds: Annotated[float, typer.Option("--seconds", "-t", min=0.01, help="Length of a round.")] = 3.0,
    warmup: Annotated[float, typer.Option(min=0.0, help="Seconds of load before that, not counted.")] = 0.5,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Rounds; targets take turns.")] = 3,
    rate: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Commands a second, of all clients together; latency then counts from when each was due. 0: no limit.",
        ),
    ] = 0.0,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs to drain.")] = 100_000,
    processes: Annotated[int, typer.Option(min=1, help="Generator processes.")] = 1,
    pin: Annotated[
        bool, typer.Option("--pin", help="Servers that are started get the first core, the generator the others.")
    ] = False,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where servers that are started keep their files.")
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as a JSON object in one line.")] = False,
) -> None:
    """Measure servers of the protocol, side by side.

    The ratio is to the first target: those of --against come first, then those of --connect. If neither names a
    beanlite, one with default settings is started and comes last; so "beanlite bench" alone measures that one.
    """
    from beanlite.bench import machine, report, runner  # noqa: PLC0415 - `serve` starts faster without them

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
    mine = machine.cores() or []
    if pin and len(mine) < 2:
        raise ConfigError("--pin needs two cores")
    cores = mine[1:] if pin else mine
    with terminable(), _targets(against or [], connect or [], directory, mine[:1] if pin else None) as targets:
        with _progress(options, targets) as progress:
            rounds_done = runner.run(options, targets, cores, progress)
        result = {
            "beanlite": __version__,
            "compiled": is_compiled(),
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {**machine.describe(), "file_system": machine.file_system(directory)},
            "generator_cores": cores,
            "pinned": pin,
            "load": asdict(options),
            "targets": report.summary(options, targets, rounds_done),
        }
    print(json.dumps(result) if as_json else report.table(result))
    _warn(result, started=bool(against or not connect))


def _check(options: "Options", directory: Path) -> None:
    """ConfigError: these options don't go together."""
    from beanlite.bench import workloads  # noqa: PLC0415

    if options.workload not in workloads.NAMES:
        raise ConfigError(f"there is no workload {options.workload!r}, only {', '.join(workloads.NAMES)}")
    if options.workload == "pc" and options.connections < 2:
        raise ConfigError("pc needs two connections: one puts, the other reserves")
    if options.workload in {"pc", "drain"} and options.rate:
        raise ConfigError(f"--rate has no meaning in {options.workload}")
    if options.connections < options.processes:
        raise ConfigError("there are more --processes than --connections")
    if not directory.is_dir():
        raise ConfigError(f"{directory} is no directory")


@contextlib.contextmanager
def _targets(
    against: list[str], places: list[str], directory: Path, server_cores: list[int] | None
) -> Iterator[list["Target"]]:
    """All targets, those to be started running."""
    from beanlite.bench import target  # noqa: PLC0415

    commands = [*against]
    if not places and not any(map(target.is_beanlite, against)):
        commands.append("beanlite")
    with contextlib.ExitStack() as stack:
        yield [
            *[stack.enter_context(target.started(command, directory, server_cores)) for command in commands],
            *[target.reached(place) for place in places],
        ]


@contextlib.contextmanager
def _progress(options: "Options", targets: list["Target"]) -> Iterator[Any]:
    """A bar on stderr if that is a terminal; it is told of the seconds that have passed."""
    with contextlib.ExitStack() as stack:
        where = sys.stderr if sys.stderr.isatty() else stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        seconds = (options.seconds + options.warmup_s) * options.rounds * len(targets)
        bar = stack.enter_context(
            typer.progressbar(length=round(1000 * seconds), label=options.workload, file=where, width=0)
        )
        yield lambda passed_s: bar.update(round(1000 * passed_s))


def _warn(result: dict[str, Any], *, started: bool) -> None:
    """Say on stderr what makes the figures doubtful, and what is left behind."""
    file_system = result["machine"]["file_system"]
    if started and file_system in {"tmpfs", "ramfs"}:
        print(f"beanlite: files were on {file_system}, where a sync costs nothing: see --dir", file=sys.stderr)
    for each in result["targets"]:
        if each["left"]:
            print(f"beanlite: {each['name']}: {each['left']} jobs could not be deleted", file=sys.stderr)
