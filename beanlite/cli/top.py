"""``beanlite top``."""

import gc
import sys
from typing import Final

from beanlite.cli.groups import Server, grouped
from beanlite.errors import ConfigError
from beanlite.operators.live import Live

EPILOG: Final = (
    "Exit codes: 0 done; 1 the server can't be reached, or refuses it; 2 a wrong setting or flag, or there is no"
    " terminal to show it on."
)
EXAMPLES: Final = {"top": ("beanlite top", "beanlite top --connect queue.example.org:11300")}


@grouped
def top(*, server: Server) -> None:
    """Watch a server, full screen.

    Its rates, latency and memory, its tubes, and their jobs.     The keys are shown below: s sorts by
    another column and r the other way round, Enter shows the jobs of a tube and then one of them, Escape goes back, q
    ends it.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("top needs a terminal; for scripts there are tubes --json and stats --json")
    with Live(server.address) as live:  # what is wrong from the beginning is said in a line
        live.list_tubes({"limit": 1})

    from beanlite.operators.top.app import Top  # noqa: PLC0415 - no other command needs it, and it takes long

    gc.enable()  # it makes garbage, unlike a server
    Top(server.address).run()
