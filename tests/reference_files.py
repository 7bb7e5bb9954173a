"""Write what the sources say into pages and config.example.toml: ``python -m tests.reference_files``."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import MemberDescriptorType
from typing import Any

import typer

from beanlite import cli, client
from beanlite.cli.serve import EXIT_CODES
from beanlite.server.reload import APPLIED
from beanlite.settings import config

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference.md"
CLIENT_PAGE = ROOT / "docs/python-client.md"
EXAMPLE = ROOT / "config.example.toml"
FIELDS = config.Settings.model_fields

INTRODUCTION = """\
# Settings for `beanlite serve --config FILE`. The values here are the defaults; settings without one are commented out.
# Environment variables (BEANLITE_PORT for port) win over this file, and flags (--port) win over both.
"""


def abouts() -> dict[str, str]:
    """What is said about each setting: the text below its field, around its description."""
    (settings,) = ast.parse(inspect.getsource(config.Settings)).body
    assert isinstance(settings, ast.ClassDef)
    templates = {key: _template(field.description or "") for key, field in FIELDS.items()}
    for field, below in pairwise(settings.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                templates[key] = " ".join(text.split())
    return {key: _about(key, template) for key, template in templates.items()}


def _template(description: str) -> str:
    """What is said if there is no text below the field."""
    return "{}." if description.startswith(("how ", "what ", "when ", "whether ")) else "The {}."


def _about(key: str, template: str) -> str:
    assert template.count("{}") == 1, f"the text below {key} has no place for the description"
    text = template.replace("{}", FIELDS[key].description or "")
    if FIELDS[key].default is None and "Default: none" not in text:
        text += " Default: none."
    return text[0].upper() + text[1:]


def example() -> str:
    """The file of settings, each at its default; those without one have an example and are commented out."""
    return "\n".join([INTRODUCTION, *(_entry(key, about) for key, about in abouts().items())])


def _entry(key: str, about: str) -> str:
    field = FIELDS[key]
    comment = textwrap.fill(about, 120, initial_indent="# ", subsequent_indent="# ")
    if field.default is None:
        assert field.examples, f"{key} has neither a default nor an example"
        return f"{comment}\n# {key} = {json.dumps(field.examples[0])}\n"
    return f"{comment}\n{key} = {json.dumps(field.default, default=str)}\n"


def settings() -> str:
    """A heading for each setting, how it is set, and what is said about it."""
    return "\n".join(_setting(key, about) for key, about in abouts().items())


def _setting(key: str, about: str) -> str:
    names = [name for option in _options() if option.name in {key, f"no_{key}"} for name in option.opts]
    default = FIELDS[key].default
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    how = [
        ", ".join(f"`{name}`" for name in [*names, config.variable(key)]),
        {None: "no default", "": "empty by default"}.get(default, f"default `{shown}`"),
        "SIGHUP changes it" if key in APPLIED else "a change needs a restart",
    ]
    about = about.replace(" Default: none.", "").replace("Default: none, which", "By default this")
    about = re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", about)
    return f"### {key}\n\n{'; '.join(how)}.\n\n{about}\n"


def other_flags() -> str:
    """The flags of ``beanlite serve`` that are not named after a setting."""
    keys = {*FIELDS, "no_journal"}
    rows = [
        f"| {', '.join(f'`{name}`' for name in option.opts)} | {option.help} |\n"
        for option in _options()
        if option.name not in keys and not option.hidden
    ]
    return "".join(["| flag | |\n|---|---|\n", *rows])


def exit_codes() -> str:
    """The table of the server's exit codes."""
    return "".join(["| exit code | |\n|---|---|\n", *(f"| {code} | {what} |\n" for code, what in EXIT_CODES.items())])


def _options() -> list[Any]:
    """The options of ``beanlite serve``, as Click has them."""
    return typer.main.get_group(cli.build_app(["serve"])).commands["serve"].params


def client_reference() -> str:
    """The functions, classes and errors of the client, as their docstrings tell of them."""
    functions = [_function(function) for function in (client.connect, client.connect_blocking)]
    return "\n".join([*functions, *(_class(each) for each in (client.Queue, client.Job, client.PeekedJob)), _errors()])


def _function(function: Any) -> str:
    signature = inspect.signature(function)
    lines = [f"    {line}," if line != "*" else "    *," for line in _parameters(signature)]
    code = "\n".join([f"{function.__name__}(", *lines, f") -> {_name_of(signature.return_annotation)}"])
    return f"### {function.__name__}\n\n```\n{code}\n```\n\n{_in_markdown(_doc(function))}\n"


def _class(kind: type) -> str:
    rows = []
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property | MemberDescriptorType):
            rows.append(f"- `{name}`: {_line(member)}")
        elif inspect.isfunction(member):
            signature = inspect.signature(member)
            parameters = ", ".join(_parameters(signature))
            word = "await " if inspect.iscoroutinefunction(member) else "async for job in " * (name == "jobs")
            rows.append(f"- `{word}{name}({parameters}){_returned(signature, name)}`: {_line(member)}")
    return "\n".join([f"### {kind.__name__}\n", _in_markdown(_doc(kind)), "", *rows, ""])


def _returned(signature: inspect.Signature, name: str) -> str:
    kind = signature.return_annotation
    if kind is None or name == "jobs":
        return ""
    text = inspect.formatannotation(kind).replace("beanlite.client.calls.", "").replace("beanlite.client.reserved.", "")
    return f" -> {text.replace(str(client.Statistics), 'Statistics')}"


def _errors() -> str:
    rows = [
        f"- `{name}({kind.__base__.__name__})`: {_line(kind)}"
        for name in client.__all__
        if isinstance(kind := getattr(client, name), type) and issubclass(kind, Exception)
        if kind.__base__ is not None
    ]
    return "\n".join(["### The errors\n", *rows, ""])


def _parameters(signature: inspect.Signature) -> list[str]:
    """The parameters as they are written in the sources, without ``self``."""
    text: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(each.startswith("*") for each in text):
            text.append("*")
        if name != "self":
            text.append(str(parameter).replace("ssl.", "").replace("collections.abc.", ""))
    return text


def _name_of(kind: type) -> str:
    return kind.__name__


def _doc(member: Any) -> str:
    return inspect.getdoc(member) or ""


def _line(member: Any) -> str:
    return " ".join(_in_markdown(_doc(member)).split())


def _in_markdown(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?=``)", "\n\n", text).replace("``", "`")


def made(page: str, *parts: Callable[[], str]) -> str:
    """The page with each part between marks made anew; the rest is written by hand."""
    for part in parts or (settings, other_flags, exit_codes):
        begin, end = f"<!-- {part.__name__} -->\n", f"<!-- /{part.__name__} -->\n"
        before, mark, rest = page.partition(begin)
        assert mark, f"the page has no place for {part.__name__}"
        page = f"{before}{begin}\n{part()}{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    EXAMPLE.write_text(example(), encoding="utf-8")
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    CLIENT_PAGE.write_text(made(CLIENT_PAGE.read_text(encoding="utf-8"), client_reference), encoding="utf-8")
