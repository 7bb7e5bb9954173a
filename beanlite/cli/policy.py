"""``beanlite policy``, with commands of its own."""

import sys
from typing import Final

import typer

from beanlite.cli.epilogs import epilog
from beanlite.cli.groups import Json, ServerOrFile, grouped
from beanlite.console import tables

EPILOG: Final = (
    "Exit codes: 0 done; 1 the server can't be reached or refuses the command; 2 a wrong setting, flag or file; 3 the"
    " database was refused, or is damaged; 130 Ctrl-C."
)
EXAMPLES: Final = """
beanlite policy list
beanlite policy list --json --db beanlite.db
"""

policy = typer.Typer(help="Set and show what holds for tubes, such as how often a job is tried.")


@policy.command("list", epilog=epilog("policy list", EXAMPLES, EPILOG))
@grouped
def list_(*, place: ServerOrFile, as_json: Json = False) -> None:
    """Show all policies."""
    with place.open() as source:
        rows = source.list_policies({})["policies"]
    if as_json:
        tables.print_json(rows)
    elif not tables.print_table(rows, tables.POLICIES):
        print("no policies", file=sys.stderr)
