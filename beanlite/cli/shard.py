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
from beanlite.cli.printing import print_done
from beanlite.console import units
from beanlite.console.filters import encode_tube
from beanlite.console.listing import records_of
from beanlite.console.live import Live
from beanlite.console.moving import (
    MoveResult,
    check_name,
    check_policies,
    check_takes,
    claim,
    has_jobs,
    is_cut_off,
    leaving,
    move_jobs,
    pause_likewise,
)
from beanlite.console.routing import all_of, naming
from beanlite.console.several import Place, Places, connect, reach
from beanlite.core.phrases import shell_word
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
    with _alone_with(server.fleet()[0]):
        file, places, fleet = server.fleet()  # which the last move may have changed
        if to not in fleet.by_name:
            raise ConfigError(f"--to: there is no server {to} in {file}, only {', '.join(fleet.by_name)}")
        is_begun, source = _source(fleet, places, tube, to)
        by_name = {place.name: place for place in places.places}
        # What a connection uses tells others of the move, and a tube can only be paused if it is used: by another one.
        with _reached(by_name[source]) as here, _reached(by_name[to]) as there, _reached(by_name[to]) as pausing:
            if not is_begun:
                _check_last_move(fleet, by_name, tube, to)
                _check_there_is(tube, (here, there), places, is_known=new or fleet.names(tube.encode()))
                check_takes(here, there, tube)
            check_policies(here, there, tube)
            claim(here, there, tube)
            if not is_begun:
                pause_likewise(here, pausing, tube)
                fleet = write_move(file, tube, source, to)
            all_schedules = records_of(here.list_schedules, {}, "schedules")
            schedules = [each["name"] for each in all_schedules if each["tube"] == tube]
            with counting("jobs copied") as progress:
                moved = move_jobs(here, there, source, tube, progress)
    _report(tube, source, to, fleet, moved, schedules, as_json=as_json)


def _reached(place: Place) -> Live:
    with naming(place.name):
        return reach(place, within_s=TIMEOUT_S)


@contextlib.contextmanager
def _alone_with(file: Path) -> Iterator[None]:
    """Hold the lock of moves. ConfigError: the folder can't be opened. BeanliteError: another command holds it."""
    parent = Path(os.path.realpath(file)).parent  # where a link leads: others may reach the file by another one
    try:
        folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{parent} can't be opened: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BeanliteError(f"another move is under way with {file}") from None
    finally:
        os.close(folder)


def _source(fleet: Fleet, places: Places, tube: str, to: str) -> tuple[bool, str]:
    """Return whether the file has the move already, and the server from which a tube moves. BeanliteError: not known.

    A tube that was given to the server by hand, or by the hash of one more server, moves from where its jobs are.
    """
    name = tube.encode()
    move = fleet.moved.get(name)
    home = fleet.home(name).name
    if move is not None and move.target.name == to:
        return True, move.source.name
    if home != to:
        return False, home
    with connect(places) as servers:
        have = servers.each(lambda live: has_jobs(live, tube) or has_jobs(live, leaving(tube)))
        sources = [server for server, has in have.items() if has and server not in {"", to}]
        away = [server for server in servers.away if server != to]
    if len(sources) == 1:
        return False, sources[0]
    if sources:
        raise BeanliteError(
            f"{all_of(sources)} have jobs of {tube}: first name one of them in [moved] of the file, as in"
            f' "{tube}" = {{ from = "{sources[0]}", to = "{to}" }}'
        )
    if away:
        raise BeanliteError(
            f"{tube} belongs to {to} already, and whether {' or '.join(away)} has jobs of it is not known"
        )
    raise ConfigError(f"{tube} belongs to {to} already, and no other server has jobs of it")


def _check_last_move(fleet: Fleet, by_name: Mapping[str, Place], tube: str, to: str) -> None:
    """Check that the last move of a tube has left nothing behind. BeanliteError: it has."""
    move = fleet.moved.get(tube.encode())
    if move is None:
        return
    names = move.source.name, move.target.name
    with _reached(by_name[names[0]]) as old, _reached(by_name[names[1]]) as new:
        if is_cut_off(old, new, tube) or (to != names[0] and has_jobs(old, tube)):
            command = f"beanlite shard move {shell_word(tube)} --to {names[1]}"
            raise BeanliteError(f"{names[0]} still has jobs of {tube}: first have {command} move them")


def _check_there_is(tube: str, pair: tuple[Live, Live], places: Places, *, is_known: bool) -> None:
    """Check that a tube that is to move is no misspelt one. BeanliteError: neither server has it, or one is halted."""
    have = [bool(live.list_tubes({"names": [tube]})["tubes"]) for live in pair]
    if is_known or any(have) or is_cut_off(*pair, tube):
        return
    with connect(places) as servers:
        rows = servers.list_tubes({"names": [tube]})["tubes"]
        why = f"only {all_of([row['server'] for row in rows])} has a tube {tube}" if rows else servers.no_tube(tube)
    raise BeanliteError(f"nothing is moved without --new: {why}")


def _report(
    tube: str, source: str, to: str, fleet: Fleet, moved: MoveResult, schedules: list[str], *, as_json: bool
) -> None:
    if as_json:
        facts = {"tube": tube, "from": source, "to": to, "version": fleet.version}
        facts |= {"copied": moved.copied, "reserved": moved.reserved, "left": moved.left, "schedules": schedules}
        print_done(json.dumps(facts))
        return
    lines = [f"{tube} is on {to} now, by version {fleet.version} of the file: {units.jobs(moved.copied)} copied"]
    if moved.reserved:
        reserved = units.jobs(moved.reserved)
        lines.append(f"{reserved} reserved on {source}: they end there, or this command moves them later")
    if moved.left:
        left = units.jobs(moved.left)
        lines.append(f"{left} on {source} since, as by an older copy of the file: this command moves them later")
    if fleet.given(tube.encode()).name != to:
        lines.append(f"before its line in [moved] goes, name {tube} in tubes of {to}, and of no other server")
    if schedules:
        names = ", ".join(schedules)
        lines.append(f"schedules that put into {tube} stay on {source}: {names}; unset them, and set them again")
    print_done("\n".join(lines))
