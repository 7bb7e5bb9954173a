"""``beanlite access`` and ``beanlite token``, with commands of their own."""

import json
import secrets
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from beanlite.cli.epilogs import epilog
from beanlite.cli.groups import Json
from beanlite.cli.options import ConfigFile
from beanlite.cli.paths import as_path
from beanlite.console import tables
from beanlite.core.access import ALL_TUBES, ANY
from beanlite.core.policies import is_pattern
from beanlite.errors import ConfigError
from beanlite.settings import sources

if TYPE_CHECKING:
    from beanlite.net.allowed import Access, Rule

EPILOG: Final = "Exit codes: 0 done; 2 a wrong setting, flag or file."
EPILOG_OF_CHECK: Final = "Exit codes: 0 allowed; 1 not allowed; 2 a wrong setting, flag or file."
EXAMPLES: Final = """
beanlite access check --as cert:mailer.example.org put mail.de
beanlite access check --as uid:www-data --as net:10.1.2.3 reserve sms
beanlite access check --as token:ci set-policy 'mail.*' --json

beanlite access list
beanlite access list --file access.toml --json

beanlite token new ci
"""
# Bytes of chance in a token.
_TOKEN_BYTES: Final = 32
_NOT_ALLOWED: Final = 1

access = typer.Typer(help="Show who may do what with which tubes.\n\ndocs/access.md describes the file of rules.")
token = typer.Typer(help="Make tokens, by which clients prove who they are.")

RulesFile = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", parser=as_path, help="The file of rules. Default: access in the settings."),
]


@access.command(epilog=epilog("access check", EXAMPLES, EPILOG_OF_CHECK))
def check(
    word: Annotated[str, typer.Argument(metavar="WORD", help="A word of the protocol, such as put.")],
    tube: Annotated[str, typer.Argument(metavar="TUBE", help="A tube, or a pattern; by default all.")] = "*",
    *,
    identities: Annotated[
        list[str],
        typer.Option("--as", metavar="WHO", help="An identity, such as uid:www-data; repeatable."),
    ],
    file: RulesFile = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> int:
    """Show whether a client may give a command for a tube, and which rule decides."""
    from beanlite.net.allowed import deciding
    from beanlite.protocol.limited import ALL
    from beanlite.server.access_file import identity_from

    pattern = tube.encode(errors="surrogateescape")
    if not is_pattern(pattern):
        raise ConfigError(f"{tube!r} is neither the name of a tube nor a glob")
    role, on = _role_of(word)
    names, host = identity_from(identities)
    rules = _read(file, config_file)
    if on == ALL:
        pattern, tube = ALL_TUBES, "*"
    rule = None if role is None else deciding(rules.matching(names, host), role, pattern)
    is_allowed = role is None or rule is not None
    if as_json:
        facts = {"allowed": is_allowed, "role": role, "rule": None if rule is None else _record(rule)}
        print(json.dumps(facts))
    elif role is None:
        print(f"allowed: everybody may {word}")
    elif rule is None:
        needs = "any role" if role == ANY else f"the role {role}"
        print(f"not allowed: no rule gives {', '.join(identities)} {needs} on {tube}")
    else:
        print(f"allowed by rule {rule.number}: {_rule_text(rule)}")
    return 0 if is_allowed else _NOT_ALLOWED


@access.command("list", epilog=epilog("access list", EXAMPLES, EPILOG))
def list_(*, file: RulesFile = None, config_file: ConfigFile = None, as_json: Json = False) -> None:
    """Show all rules, in the order of the file."""
    rules = _read(file, config_file).rules
    if as_json:
        tables.print_json([_record(rule) for rule in rules])
    else:
        for rule in rules:
            print(f"{rule.number}: {_rule_text(rule)}")


@token.callback()
def _group() -> None:
    """Have ``new`` named, although there is no other."""


@token.command(epilog=epilog("token new", EXAMPLES, EPILOG))
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the token in rules: token:NAME.")],
    *,
    as_json: Json = False,
) -> None:
    """Make a token, and print it with the line for the file of rules.

    The token is for the client (BEANLITE_TOKEN) and is not shown again; the line does not tell it.
    """
    from beanlite.server.access_file import TOKEN_NAME

    if TOKEN_NAME.fullmatch(name) is None:
        raise ConfigError("the name of a token has 1 to 64 letters, digits, dots, hyphens and underscores")
    secret = secrets.token_hex(_TOKEN_BYTES)
    digest = sha256(secret.encode()).hexdigest()
    if as_json:
        print(json.dumps({"name": name, "token": secret, "sha256": digest}))
    else:
        key = json.dumps(name) if "." in name else name
        print(f'token for the client:       {secret}\nline for [tokens] in the file: {key} = "{digest}"')


def _read(file: Path | None, config_file: Path | None) -> "Access":
    from beanlite.server.access_file import read_access

    path = sources.load(config_file).access if file is None else file
    if path is None:
        raise ConfigError("the settings name no file of rules (access); name one with --file")
    return read_access(path, serves=False)


def _role_of(word: str) -> tuple[str | None, str]:
    """Return the role that a word takes, None if everybody may give it, and on what. ConfigError: no such word."""
    from beanlite.protocol.limited import EVERYBODY, IN_NO_TABLE, ROLE_OF

    key = word.encode(errors="surrogateescape")
    if key in EVERYBODY or key in IN_NO_TABLE:
        return None, ""
    if key not in ROLE_OF:
        raise ConfigError(f"{word!r} is no word of the protocol, such as put or reserve")
    return ROLE_OF[key]


def _record(rule: "Rule") -> dict[str, object]:
    return {
        "number": rule.number,
        "who": list(rule.who),
        "role": list(rule.roles),
        "tubes": [tube.decode() for tube in rule.tubes],
    }


def _rule_text(rule: "Rule") -> str:
    tubes = ", ".join(tube.decode() for tube in rule.tubes)
    return f"{', '.join(rule.who)}: {', '.join(rule.roles)} on {tubes}"
