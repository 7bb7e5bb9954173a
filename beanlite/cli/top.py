"""``beanlite top``."""

import gc
import sys
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from beanlite.cli.groups import ServerOption, grouped
from beanlite.console.live import Live
from beanlite.errors import ConfigError, missing

EPILOG: Final = (
    "Exit codes: 0 done; 1 the server can't be reached, or refuses the command; 2 a wrong setting or flag, no"
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
) -> None:
    """Watch a server, full screen.

    Shows its rates, latency and memory, what is wrong, its tubes, and their jobs. The keys are listed at the bottom,
    and ? says more of them: / filters the tubes, k kicks and p pauses after a question, Enter opens a tube and then a
    job, Escape goes back, and q quits.
    """
    if once:
        from beanlite.console.top.summary import print_once  # noqa: PLC0415 - no other command needs it

        print_once(server.address)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("top needs a terminal; for scripts there are --once, tubes --json and stats --json")
    if find_spec("textual") is None:
        raise ConfigError(f"top: {missing('textual')}")
    with Live(server.address) as live:  # a server that can't be reached is reported in one line
        live.list_tubes({"limit": 1})

    from beanlite.console.top.app import Top  # noqa: PLC0415 - no other command needs it, and importing it is slow

    gc.enable()  # unlike a server, it makes cyclic garbage
    Top(server.address).run()
