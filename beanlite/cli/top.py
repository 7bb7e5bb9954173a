"""``beanlite top``."""

import sys
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from beanlite.cli.groups import ServerOption, grouped
from beanlite.console.several import connect
from beanlite.errors import ConfigError, missing

EPILOG: Final = (
    "Exit codes: 0 done; 1 a server can't be reached, or refuses the command; 2 a wrong setting or flag, no"
    " terminal, or textual is not installed."
)
EXAMPLES: Final = """
beanlite top
beanlite top --connect queue.example.org:11300
beanlite top --once | head -20
"""


@grouped
def top(
    *,
    server: ServerOption,
    once: Annotated[bool, typer.Option("--once", help="Print the first screen as text, and end; for scripts.")] = False,
) -> int:
    """Watch a server, or several, full screen.

    Shows its rates, latency and memory, what is wrong, its tubes, and their jobs. The keys are listed at the bottom,
    and ? says more of them: / filters the tubes, k kicks and p pauses after a question, Enter opens a tube and then a
    job, Escape goes back, and q quits.
    """
    if once:
        from beanlite.console.top.summary import print_once

        return int(bool(print_once(server.places)))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("top needs a terminal; for scripts there are --once, tubes --json and stats --json")
    if find_spec("textual") is None:
        raise ConfigError(f"top: {missing('textual')}")
    with connect(server.places) as servers:  # servers that can't be reached are reported in one line
        servers.list_tubes({"limit": 1})

    from beanlite.console.top.app import Top

    Top(server.places).run()
    return 0
