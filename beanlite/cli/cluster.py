"""``beanlite cluster``."""

from typing import Annotated

import typer

from beanlite.cli.options import AsJson, ConfigFile, url_of_database
from beanlite.errors import ConfigError

EPILOG = (
    "Exit codes: 0 done; 1 the database can't be reached; 2 a wrong setting or flag; 3 the database was refused, or no"
    " server has used it yet; 130 Ctrl-C."
)

cluster = typer.Typer(help="Show the servers that share a PostgreSQL database.")


@cluster.callback()
def _group() -> None:
    """Have ``status`` named, although there is no other."""


@cluster.command(epilog=f"\b\nExamples:\n  beanlite cluster status postgresql://beanlite@db1,db2/queue\n\n{EPILOG}")
def status(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The database. Default: database in the server's settings.")
    ] = None,
    *,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show which server is active, and which ones stand by.

    Also shows where the active server runs and since when, which servers are connected but silent (halted, or lost),
    and what replicates the database. The command asks the database, so it works even if no server runs.
    Seeing the replicas takes the role pg_monitor.
    """
    database = url_of_database(None, url, config_file)
    if database is None:
        raise ConfigError("settings keep jobs in a file; name a PostgreSQL database")

    from beanlite.console import tables  # noqa: PLC0415 - `serve` starts faster without it
    from beanlite.journal.postgres.status import status as ask  # noqa: PLC0415 - it may not be installed

    facts = ask(database)
    if as_json:
        tables.print_json([facts])
        return
    replicas = [
        " ".join(str(each[key]) for key in ("name", "address", "state", "sync_state") if each[key])
        for each in facts.pop("replicas")
    ]
    for key in ("standing_by", "silent"):
        facts[key] = ", ".join(facts[key]) or "none"
    facts["synchronous_standby_names"] = facts["synchronous_standby_names"] or "none"
    tables.print_facts({**facts, "replicas": "; ".join(replicas) or "none"})
