"""``beanlite shard``: which of several servers has a tube is changed while they serve."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.beanstalk.client import TIMEOUT_S
from beanlite.cli import completion
from beanlite.cli.epilogs import epilog
from beanlite.cli.groups import FleetOption, Json, grouped
from beanlite.cli.options import counting
from beanlite.console import units
from beanlite.console.filters import encode_tube
from beanlite.console.live import Live
from beanlite.console.moving import Moved, check_name, is_cut_off, move_jobs
from beanlite.console.routing import all_of, naming
from beanlite.console.several import Place, Places, connect, reach
from beanlite.errors import BeanliteError, ConfigError
from beanlite.fleet.edit import write_move
from beanlite.fleet.servers import Fleet

EPILOG: Final = (
    "Exit codes: 0 done; 1 a server can't be reached or refuses the command, or there is no such tube; 2 a wrong"
    " setting, flag or value, or a file of servers that can't be changed; 130 Ctrl-C."
)
EXAMPLES: Final = """
beanlite shard move mail --to two --servers servers.toml
"""

_STATES: Final = ("ready", "reserved", "delayed", "buried")

shard = typer.Typer(help="Move tubes between several servers.\n\ndocs/several-servers.md says what for.")


@shard.callback()
def _top() -> None:
    """Have the commands keep their names, though there is only one."""


@shard.command(epilog=epilog("shard move", EXAMPLES, EPILOG))
@grouped
def move(
    tube: Annotated[str, typer.Argument(metavar="TUBE", help="The tube.", autocompletion=completion.tubes)],
    to: Annotated[str, typer.Option("--to", metavar="SERVER", help="The name of the server to move it to.")],
    *,
    new: Annotated[bool, typer.Option("--new", help="Move it even if there is no such tube yet.")] = False,
    server: FleetOption,
    as_json: Json = False,
) -> None:
    """Move a tube to another server, while clients use it through a router.

    The file of servers gets another version, by which routers put into the new server and reserve from both. Then the
    jobs that are not reserved are copied whole, or not at all; each gets a note of where it was. If the command is cut
    off, the same command takes the move up again.
    """
    encode_tube(tube)
    check_name(tube)
    file, places, fleet = server.fleet()
    with _alone_with(file):
        if to not in fleet.by_name:
            raise ConfigError(f"--to: there is no server {to} in {file}, only {', '.join(fleet.by_name)}")
        source = _source(fleet, tube, to)
        by_name = {place.name: place for place in places.places}
        with _reached(by_name[source]) as here, _reached(by_name[to]) as there:
            if fleet.home(tube.encode()).name != to:
                _check_last_move(fleet, by_name, tube, to)
                _check_there_is(tube, (here, there), places, is_known=new or fleet.names(tube.encode()))
                fleet = write_move(file, tube, source, to)
            with counting("jobs copied") as progress:
                moved = move_jobs(here, there, source, tube, progress)
    _report(tube, source, to, fleet.version, moved, as_json=as_json)


def _reached(place: Place) -> Live:
    with naming(place.name):
        return reach(place, within_s=TIMEOUT_S)


@contextlib.contextmanager
def _alone_with(file: Path) -> Iterator[None]:
    """Hold the lock of moves. ConfigError: the folder can't be opened. BeanliteError: another command holds it."""
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{file.parent} can't be opened: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BeanliteError(f"another move is under way with {file}") from None
    finally:
        os.close(folder)


def _source(fleet: Fleet, tube: str, to: str) -> str:
    """Return the server from which a tube moves: to be taken up again, that of the file. ConfigError: there is none."""
    name = tube.encode()
    move = fleet.moved.get(name)
    home = fleet.home(name).name
    if move is not None and move.target.name == to:
        return move.source.name
    if home == to:
        raise ConfigError(f"{tube} belongs to {to} already")
    return home


def _check_last_move(fleet: Fleet, by_name: Mapping[str, Place], tube: str, to: str) -> None:
    """Check that the last move of a tube has left nothing behind. BeanliteError: it has."""
    move = fleet.moved.get(tube.encode())
    if move is None:
        return
    names = move.source.name, move.target.name
    with reach(by_name[names[0]]) as old, reach(by_name[names[1]]) as new:
        left = old.list_tubes({"names": [tube]})["tubes"] if to != names[0] else []
        if is_cut_off(old, new, tube) or any(each[state] for each in left for state in _STATES):
            raise BeanliteError(
                f"{names[0]} still has jobs of {tube}: first have beanlite shard move {tube} --to {names[1]} move them"
            )


def _check_there_is(tube: str, pair: tuple[Live, Live], places: Places, *, is_known: bool) -> None:
    """Check that a tube that is to move is no misspelt one. BeanliteError: neither server has it, or one is halted."""
    have = [bool(live.list_tubes({"names": [tube]})["tubes"]) for live in pair]
    if is_known or any(have) or is_cut_off(*pair, tube):
        return
    with connect(places) as servers:
        rows = servers.list_tubes({"names": [tube]})["tubes"]
        why = f"only {all_of([row['server'] for row in rows])} has a tube {tube}" if rows else servers.no_tube(tube)
    raise BeanliteError(f"nothing is moved without --new: {why}")


def _report(tube: str, source: str, to: str, version: int, moved: Moved, *, as_json: bool) -> None:
    if as_json:
        facts = {"tube": tube, "from": source, "to": to, "version": version}
        print(json.dumps({**facts, "copied": moved.copied, "reserved": moved.reserved}))
        return
    print(f"{tube} is on {to} now, by version {version} of the file: {units.jobs(moved.copied)} copied")
    if moved.reserved:
        print(f"{units.jobs(moved.reserved)} reserved on {source}: they end there, or this command moves them later")
