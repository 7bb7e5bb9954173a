"""``beanlite pause``."""

import json
from typing import Annotated, Final

import typer

from beanlite.cli.groups import Json, ServerOption, age_option, grouped, seconds_of
from beanlite.cli.printing import print_done
from beanlite.console import units
from beanlite.console.live import Live

EPILOG: Final = (
    "Exit codes: 0 done; 1 the server can't be reached or refuses the command, or there is no such tube; 2 a wrong"
    " setting or flag; 130 Ctrl-C."
)
EXAMPLES: Final = {
    "pause": (
        "beanlite pause mail 10min",
        "beanlite pause mail 0                        end the pause",
    )
}


@grouped
def pause(
    tube: Annotated[str, typer.Argument(metavar="TUBE", help="The tube.")],
    time: Annotated[float, age_option(text="How long, such as 90s, 5min or 3h; 0 ends a pause.")],
    *,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Stop clients from reserving from a tube for some time."""
    pause_s = seconds_of("TIME", time)
    with Live(server.address) as live:
        live.pause(tube, pause_s)
    if as_json:
        print_done(json.dumps({"tube": tube, "pause_s": pause_s}))
    else:
        print_done(f"{tube} is paused for {units.age(pause_s)}" if pause_s else f"{tube} is not paused")
