"""``beanlite cluster``."""

from typing import Annotated

import typer

from beanlite.cli.options import AsJson, ConfigFile, url_of_database
from beanlite.console import units
from beanlite.console.filters import Record
from beanlite.errors import ConfigError

EPILOG = (
    "Exit codes: 0 done; 1 the database can't be reached, or commits wait because no synchronous standby is streaming;"
    " 2 a wrong setting or flag; 3 the database was refused, or no server has used it yet; 130 Ctrl-C."
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
) -> int:
    """Show which server is active, and which ones stand by.

    Also shows where the active server runs and since when, how often a server took over, which servers are connected
    but silent (halted, or lost), which old primaries still accept writes, what replicates the database, its size and
    its dead rows, and the oldest transaction, which keeps them there. The command asks the database, so it works even
    if no server runs. Seeing the replicas and what other roles do takes the role pg_monitor.
    """
    database = url_of_database(None, url, config_file)
    if database is None:
        raise ConfigError("settings keep jobs in a file; name a PostgreSQL database")

    from beanlite.console import tables
    from beanlite.journal.postgres.status import status as ask  # it may not be installed

    facts = ask(database)
    exit_code = int(facts["commits_wait"])
    if as_json:
        tables.print_json([facts])
        return exit_code
    del facts["commits_wait"]  # the status says it
    for key in ("standing_by", "silent", "other_primaries"):
        facts[key] = ", ".join(facts[key]) or "none"
    facts["synchronous_standby_names"] = facts["synchronous_standby_names"] or "none"
    facts["replicas"] = "; ".join(map(_replica, facts["replicas"])) or "none"
    tables.print_facts(facts | _state(facts))
    return exit_code


def _replica(facts: Record) -> str:
    """Return a line about what replicates the database."""
    words = [str(facts[key]) for key in ("name", "address", "state", "sync_state") if facts[key]]
    if facts["lag_bytes"] is not None:
        words.append(f"{units.size(facts['lag_bytes'])} behind")
    return " ".join(words)


def _state(facts: Record) -> Record:
    """Return how the database is doing, as people read it."""
    dead = [f"{name} {units.count(rows)}" for name, rows in facts["dead_rows"].items() if rows]
    holder = "" if facts["oldest_holder"] is None else f": {facts['oldest_holder']}"
    return {
        "size_bytes": units.size(facts["size_bytes"]),
        "dead_rows": ", ".join(dead) or "none",
        "oldest_transaction_s": units.age(facts["oldest_transaction_s"]) if facts["oldest_transaction_s"] else "none",
        "oldest_snapshot": f"{units.quantity(facts['oldest_snapshot'], 'later transaction')}{holder}",
        "oldest_holder": None,
    }
