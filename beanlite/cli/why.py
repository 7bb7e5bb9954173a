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
    " reached or refuses the command; 2 a wrong setting or flag; 130 Ctrl-C. docs/findings.md says what to do about"
    " each finding."
)
EXAMPLES: Final = """
beanlite why
beanlite why mail             also what is known of this tube
beanlite why 'mail*' --json
beanlite why --connect queue.example.org:11300 || send-a-page
"""

# What may be taken for the name of a tube.
_TOPICS: Final = {
    "disk": "of the disk itself tells beanlite stats: disk-free, disk-full, database-bytes",
    "memory": "of the memory itself tells beanlite stats: memory-used, memory-max",
    **dict.fromkeys(
        ("backup", "backups"), "of scheduled backups tells beanlite stats: backup-succeeded-at, backup-failed-at"
    ),
}


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
    the disk, the memory and scheduled backups that fail. Rates are those of the last minutes; dates are in UTC.
    """
    one = None if tube is None or WILDCARDS & set(tube) else tube
    request = {} if tube is None else {"like" if one is None else "tube": tube}
    if one is not None:
        encode_tube(one)
    with server.open() as live:
        diagnosis = live.diagnose(request)
        if one is not None and diagnosis["tube"] is None:
            error = live.no_tube(one)
            raise BeanliteError(f"{error}; {_TOPICS[one]}") if one in _TOPICS else error
        if tube is not None and one is None and not diagnosis["tubes"]:
            raise BeanliteError(f"no tube {'of a server that answers ' if live.away else ''}has a name like {tube}")
        guesses, rest = {}, ""
        if not as_json:
            guesses, rest = telling.misspelt(live, diagnosis), telling.looked_at(live)
            if one is not None:
                telling.add_policies(live, diagnosis, one)
        telling.add_away(live, diagnosis)
    if as_json:
        servers = diagnosis.get("servers")
        tables.print_json([diagnosis] if servers is None else named_each(servers))
    else:
        telling.print_diagnosis(diagnosis, server.options, guesses, rest)
    return int(any(finding["severity"] == URGENT for finding in diagnosis["findings"]))
