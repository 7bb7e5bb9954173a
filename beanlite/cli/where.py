"""``beanlite where``."""

import sys
from typing import Annotated, Final

import typer

from beanlite.beanstalk.client import address_text
from beanlite.cli import completion
from beanlite.cli.groups import FleetOption, Json, grouped
from beanlite.console import tables, units
from beanlite.console.filters import STATES, Record, encode_tube
from beanlite.console.several import Places, connect
from beanlite.errors import BeanliteError, ConfigError

EPILOG: Final = (
    "Exit codes: 0 done, be the servers up or not; 2 a wrong setting or flag, or something in the file of servers is"
    " wrong; 130 Ctrl-C."
)
EXAMPLES: Final = """
beanlite where mail --servers servers.toml
BEANLITE_SERVERS=/etc/beanlite/servers.toml beanlite where mail --json
"""


@grouped
def where(
    tube: Annotated[str, typer.Argument(metavar="TUBE", help="The tube.", autocompletion=completion.tubes)],
    *,
    server: FleetOption,
    as_json: Json = False,
) -> None:
    """Say which of several servers has a tube.

    The file of servers says it, so the servers need not be up. Those that are also say how many jobs they have of it.
    """
    name = encode_tube(tube)
    _, places, fleet = server.fleet()
    addresses = {place.name: [address_text(each) for each in place.addresses] for place in places.places}
    homes = [member.name for member in fleet.homes(name)]
    jobs, away = _jobs(places, tube)
    for each, why in away.items():
        print(f"beanlite: {each} is left out: {why}", file=sys.stderr)
    facts: Record = {
        "tube": tube,
        "server": homes[-1],
        "connect": addresses[homes[-1]],
        "moved_from": homes[0] if len(homes) > 1 else None,
        "version": fleet.version,
        "jobs": jobs,
    }
    if as_json:
        tables.print_json([facts])
        return
    moved = f"; it was moved from {homes[0]}, whose jobs are reserved as well" if len(homes) > 1 else ""
    print(f"tube {tube} belongs to {homes[-1]} at {' or '.join(facts['connect'])}{moved}")
    print(f"the file of servers has version {fleet.version}")
    for each, count in jobs.items():
        elsewhere = "" if each in homes or not count else ", where it does not belong"
        print(f"{each} has {units.jobs(count)} of it{elsewhere}")


def _jobs(places: Places, tube: str) -> tuple[dict[str, int], dict[str, str]]:
    """Return how many jobs of a tube each server has, and why others do not say so."""
    try:
        with connect(places) as servers:
            rows = servers.each(lambda live: live.list_tubes({"names": [tube]})["tubes"])
    except ConfigError:  # of a flag
        raise
    except BeanliteError as error:
        return {}, {"each server": str(error)}
    only = places.places[0].name  # a single one is asked as one that has no name
    counts = {name or only: sum(row[state] for row in own for state in STATES) for name, own in rows.items()}
    return counts, dict(servers.away)
