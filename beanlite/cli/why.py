"""``beanlite why``."""

from typing import Annotated, Final

import typer

from beanlite.cli import completion
from beanlite.cli.groups import Json, ServerOption, grouped
from beanlite.console import tables, why as telling
from beanlite.console.filters import WILDCARDS, encode_tube
from beanlite.console.several import named_each
from beanlite.core.findings import URGENT
from beanlite.errors import BeanliteError

EPILOG: Final = (
    "Exit codes: 0 nothing urgent is wrong; 1 something urgent is, there is no such tube, or a server can't be"
    " reached or refuses the command; 2 a wrong setting or flag; 130 Ctrl-C. docs/monitoring.md says what to do about"
    " each finding."
)
EXAMPLES: Final = """
beanlite why
beanlite why mail             also what is known of this tube
beanlite why 'mail*' --json
beanlite why --connect queue.example.org:11300 || send-a-page
"""


@grouped
def why(
    tube: Annotated[
        str | None,
        typer.Argument(
            metavar="TUBE",
            help="Only this tube, and what is known of it; * is any text, ? any character.",
            autocompletion=completion.tubes,
        ),
    ] = None,
    *,
    server: ServerOption,
    as_json: Json = False,
) -> int:
    """Say what is wrong, and what to do about it.

    The worst comes first. It looks for workers that hang, jobs that crash their workers, tubes that nobody consumes,
    that grow or are late, pauses, policies and puts that they refuse, buried jobs, very many delayed jobs that are due,
    the disk, the memory and the backups.
    """
    names_one = tube is not None and not WILDCARDS & set(tube)
    request = {} if tube is None else {"tube" if names_one else "like": tube}
    if names_one and tube is not None:
        encode_tube(tube)
    with server.open() as live:
        diagnosis = live.diagnose(request)
        if names_one and tube is not None and diagnosis["tube"] is None:
            raise live.no_tube(tube)
        if tube is not None and not names_one and not diagnosis["tubes"]:
            raise BeanliteError(f"no tube has a name like {tube}")
        guesses = {} if as_json else telling.misspelt(live, diagnosis)
    if as_json:
        servers = diagnosis.get("servers")
        tables.print_json([diagnosis] if servers is None else named_each(servers))
    else:
        telling.print_diagnosis(diagnosis, server.options, guesses)
    return int(any(finding["severity"] == URGENT for finding in diagnosis["findings"]))
