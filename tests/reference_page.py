"""Write what the sources say into docs/reference.md: ``python -m tests.reference_page``."""

import re
from pathlib import Path
from typing import Any

import typer

from beanlite import cli
from beanlite.cli.serve import EXIT_CODES
from beanlite.server.reload import APPLIED
from beanlite.settings import config

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference.md"
EXAMPLE = ROOT / "config.example.toml"


def settings() -> str:
    """A heading for each setting, how it is set, and what config.example.toml says about it."""
    example = EXAMPLE.read_text(encoding="utf-8")
    return "\n".join(_setting(key, field.default, example) for key, field in config.Settings.model_fields.items())


def _setting(key: str, default: Any, example: str) -> str:
    names = [name for option in _options() if option.name in {key, f"no_{key}"} for name in option.opts]
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    how = [
        ", ".join(f"`{name}`" for name in [*names, config.variable(key)]),
        "no default" if default is None else f"default `{shown}`",
        "SIGHUP changes it" if key in APPLIED else "a change needs a restart",
    ]
    found = re.search(rf"((?:^# .*\n)+)(?:# )?{key} = ", example, re.MULTILINE)
    assert found, f"config.example.toml has no {key}"
    about = (
        " ".join(found[1].replace("# ", "").split())
        .replace(" Default: none.", "")
        .replace("Default: none, which", "By default this")
    )
    about = re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", about)
    return f"### {key}\n\n{'; '.join(how)}.\n\n{about}\n"


def other_flags() -> str:
    """The flags of ``beanlite serve`` that are not named after a setting."""
    keys = {*config.Settings.model_fields, "no_journal"}
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


def made(page: str) -> str:
    """The page with each part between marks made anew; the rest is written by hand."""
    for part in settings, other_flags, exit_codes:
        begin, end = f"<!-- {part.__name__} -->\n", f"<!-- /{part.__name__} -->\n"
        before, mark, rest = page.partition(begin)
        assert mark, f"the page has no place for {part.__name__}"
        page = f"{before}{begin}{part()}{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
