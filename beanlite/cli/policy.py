"""``beanlite policy``, with commands of its own."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.beanstalk.client import TIMEOUT_S
from beanlite.cli import completion
from beanlite.cli.epilogs import epilog
from beanlite.cli.groups import Json, ServerOption, ServerOrFile, grouped
from beanlite.cli.paths import as_path
from beanlite.cli.printing import prefix, print_done, server_key
from beanlite.console import policies, tables
from beanlite.console.filters import Record, encode_tube
from beanlite.console.listing import names_in_order
from beanlite.console.live import Live, by_me
from beanlite.core.policies import KEYS, OFF, check_row
from beanlite.errors import BeanliteError, ConfigError

EPILOG: Final = (
    "Exit codes: 0 done; 1 a server can't be reached or refuses the command, or there is no such policy; 2 a wrong"
    " setting, flag or value; 3 the database was refused, or is damaged; 130 Ctrl-C."
)
_OF_CHANGES: Final = (
    "Exit codes: 0 done; 1 a server can't be reached or refuses the command, or there is no such policy; 2 a wrong"
    " setting, flag or value; 130 Ctrl-C."
)
_OF_LOOKS: Final = (
    "Exit codes: 0 done; 1 a server can't be reached or refuses the command; 2 a wrong setting or flag; 3 the database"
    " was refused, or is damaged; 130 Ctrl-C."
)
EXAMPLES: Final = """
beanlite policy set 'mail.*' max_tries=5 retry=5s..1h
beanlite policy set 'mail.*' max_tries=5 then=move:mail-dead --dry-run
beanlite policy set mail.slow max_tries=off                 except this tube

beanlite policy unset 'mail.*' retry
beanlite policy unset 'mail.*'                              all keys

beanlite policy list
beanlite policy list --json --db beanlite.db

beanlite policy show mail.de
beanlite policy show mail.de --json

beanlite policy apply policies.toml --dry-run
beanlite policy apply policies.toml --prune                 and unset all others
"""

policy = typer.Typer(
    help="Set and show policies, which hold for tubes by their names.\n\n"
    "docs/policies.md has the keys and their values."
)

Pattern = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN", help="Tubes with this name; * is any text, ? any character.", autocompletion=completion.tubes
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only report what would change.")]


@policy.command("set", epilog=epilog("policy set", EXAMPLES, _OF_CHANGES))
@grouped
def set_(
    pattern: Pattern,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE",
            help=f"One or more of {', '.join(KEYS)}; the value {OFF} exempts.",
            autocompletion=completion.one_of([f"{key}=" for key in KEYS]),
        ),
    ],
    *,
    dry_run: DryRun = False,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Set policies of the tubes that a pattern matches.

    Other keys stay as they are. For each key the most specific pattern holds. With --dry-run also the tubes that match
    now are shown.
    """
    pairs = {}
    for each in values:
        key, sign, value = each.partition("=")
        if not sign:
            raise ConfigError(f"{each!r} is not a key and a value, such as max_tries=5")
        if key in pairs:
            raise ConfigError(f"{key} is given twice")
        pairs[key] = value
    _check(pattern, pairs)

    def set_at(live: Live) -> Record:
        reply = _ask(live, {"pattern": pattern, "set": pairs, "dry_run": dry_run})
        return {**reply, "tubes": names_in_order(live, {"like": pattern}, "name")} if dry_run else reply

    with server.open(TIMEOUT_S) as servers:
        _report(servers.each(set_at), dry_run=dry_run, as_json=as_json)


@policy.command(epilog=epilog("policy unset", EXAMPLES, _OF_CHANGES))
@grouped
def unset(
    pattern: Pattern,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY", help="Only these keys.", show_default=False, autocompletion=completion.one_of(KEYS)
        ),
    ] = None,
    *,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Unset policies, all of a pattern or only some keys.

    What less specific patterns have then holds for its tubes.
    """
    _check(pattern, dict.fromkeys(keys or (), OFF))
    with server.open(TIMEOUT_S) as servers:
        replies = servers.each(lambda live: _ask(live, {"pattern": pattern, "unset": keys or "all"}))
    if not any(reply["changes"] for reply in replies.values()):
        where = " on the servers that answer" if servers.away else ""
        raise BeanliteError(f"{pattern} has no such policy{where}; beanlite policy list shows all")
    _report(replies, dry_run=False, as_json=as_json)


@policy.command("list", epilog=epilog("policy list", EXAMPLES, _OF_LOOKS))
@grouped
def list_(*, place: ServerOrFile, as_json: Json = False) -> None:
    """Show all policies, with who set them."""
    with place.source() as source:
        reply = source.list_policies({})
    _print(reply, "no policies", as_json=as_json)


@policy.command(epilog=epilog("policy show", EXAMPLES, _OF_LOOKS))
@grouped
def show(
    tube: Annotated[str, typer.Argument(metavar="TUBE", help="The tube.", autocompletion=completion.tubes)],
    *,
    place: ServerOrFile,
    as_json: Json = False,
) -> None:
    """Show the policies that hold for a tube, and the pattern that each comes from.

    There need not be such a tube yet.
    """
    encode_tube(tube)
    with place.source() as source:
        reply = source.list_policies({"tube": tube})
    _print(reply, f"no policies for {tube}", as_json=as_json)


@policy.command(epilog=epilog("policy apply", EXAMPLES, _OF_CHANGES))
@grouped
def apply(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", parser=as_path, help='TOML with a table for each pattern, such as ["mail.*"].'),
    ],
    *,
    prune: Annotated[bool, typer.Option("--prune", help="Unset all policies that the file does not have.")] = False,
    dry_run: DryRun = False,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Set the policies of a file, all or none."""
    from beanlite.server.policy_file import read_policies

    wanted: dict[str, dict[str, str]] = {}
    for (pattern, key), value in read_policies(file).items():
        wanted.setdefault(pattern.decode(), {})[key] = value
    changes = [{"pattern": pattern, "set": pairs} for pattern, pairs in wanted.items()]
    with server.open(TIMEOUT_S) as servers:
        replies = servers.each(lambda live: _ask(live, {"policies": changes, "prune": prune, "dry_run": dry_run}))
    _report(replies, dry_run=dry_run, as_json=as_json)


def _check(pattern: str, pairs: dict[str, str]) -> None:
    """Check a pattern with its keys and values. ConfigError: something in it is wrong."""
    name = pattern.encode(errors="surrogateescape")
    try:
        for key, value in (pairs or {next(iter(KEYS)): OFF}).items():
            check_row(name, key, value)
    except ValueError as why:
        raise ConfigError(str(why)) from None


def _ask(live: Live, request: Record) -> Record:
    return live.ask("set-policy", {**request, **by_me()})


def _report(replies: Mapping[str, Record], *, dry_run: bool, as_json: bool) -> None:
    """Print what was changed in each server, or would be, and warnings."""
    lines: list[str] = []
    for server, reply in replies.items():
        before = prefix(server)
        if as_json:
            lines.append(json.dumps({**server_key(server), **reply, "dry_run": dry_run}))
            continue
        would = "would change " if dry_run else ""
        changed = [would + line for line in policies.changes_text(reply["changes"])] or ["nothing to change"]
        lines += [before + line for line in changed]
        if "tubes" in reply:
            lines.append(before + policies.summary(reply["tubes"]))
        for warning in reply["warnings"]:
            print(f"warning: {before}{warning}", file=sys.stderr)
    if dry_run:
        print("\n".join(lines))
    else:
        print_done("\n".join(lines))


def _print(reply: Record, none: str, *, as_json: bool) -> None:
    rows = reply["policies"]
    if as_json:
        tables.print_json(rows)
    elif not tables.print_table(rows, tables.POLICIES):
        print(none, file=sys.stderr)
    if reply.get("file") is not None and sys.stderr.isatty():
        print(f"policies come from {reply['file']}", file=sys.stderr)
