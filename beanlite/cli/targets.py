"""``beanlite targets``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from beanlite.cli.paths import as_path
from beanlite.settings.defaults import SERVERS

EPILOG = "Exit codes: 0 done; 2 the file of servers can't be read, or something in it is wrong; 130 Ctrl-C."
EXAMPLES = """
beanlite targets --servers servers.toml > /etc/prometheus/beanlite.json
"""
ServersFile = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        parser=as_path,
        envvar=SERVERS,
        show_envvar=False,
        help=f"The file of servers. Default: {SERVERS}.",
        show_default=False,
    ),
]


def targets(
    *,
    servers: ServersFile,
) -> None:
    """Print for Prometheus (file_sd_configs) where it asks.

    These are the addresses of the key metrics; each gets the label server, with the name of its server.
    """
    from beanlite.fleet.servers import Fleet

    print(json.dumps(Fleet.load(servers).targets(), indent=2))
