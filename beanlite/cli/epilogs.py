"""What --help says of a command: its options in sections, and what is below them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

# The sections of options that several commands have.
WHICH: Final = "Which jobs"
PLACE: Final = "Where to look"
_CHANGES: Final = "Commands to change jobs"
# The sections of the list of commands. The others are those that change jobs.
SECTIONS: Final = {
    "Commands of a server": ("serve", "config", "cluster"),
    "Commands for files": (
        "backup", "restore", "verify", "salvage", "compact", "export", "import", "import-binlog",
    ),
    "Commands to look": ("why", "tubes", "jobs", "job", "clients", "stats", "tail", "history", "top", "web"),
    _CHANGES: (),
    "Commands to set rules": ("policy", "schedule", "access", "token"),
    "Commands for several servers": ("where", "shard", "route", "targets"),
}  # fmt: skip


# The commands whose options are those of beanstalkd, where the last one holds.
_LAST_HOLDS: Final = ("serve", "config")


class _Careful:
    """A command whose parameters are converted only if need be: for a conversion typer imports pydantic, which is slow.

    Of an option that is given twice no value is left out without a word.
    """

    def make_parser(self, ctx: Any) -> Any:  # noqa: ANN401 - typer does not export their types
        """Return the parser of the command line."""
        parser = super().make_parser(ctx)  # type: ignore[misc]
        parser.parse_args = partial(_parse, ctx, parser.parse_args)
        return parser

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer does not export their types
        """Return the parameters."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if "process_value" not in vars(parameter):
                parameter.process_value = partial(_process, parameter, parameter.process_value)
        return parameters


def _parse(ctx: Any, parse: Callable[..., Any], args: list[str]) -> Any:  # noqa: ANN401 - likewise
    """Parse a command line. UsageError: an option that takes one value is there twice."""
    values, rest, order = parse(args=args)
    if ctx.info_name in _LAST_HOLDS or ctx.resilient_parsing:
        return values, rest, order
    for at, option in enumerate(order):
        takes_one = option.param_type_name == "option" and not (option.multiple or option.is_flag)
        if takes_one and option in order[:at]:
            ctx.fail(f"{option.opts[0]} is given twice, and takes one value")
    return values, rest, order


def _process(parameter: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:  # noqa: ANN401 - likewise
    """Return the value of a parameter, as it is if that is right."""
    if parameter.nargs == 1 and not parameter.required:
        kind = getattr(parameter, "type_descriptor", None)
        is_text = kind is not None and kind.annotation in (str, list[str]) and kind.parameter_info.parser is None
        if value is parameter.default or (is_text and isinstance(value, (str, list))):
            return value
    return process(ctx, value)


class Commands(_Careful, TyperGroup):
    """The command line, or a command with commands of its own."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer does not export their types
        """Write the commands; those of beanlite itself in sections."""
        if ctx.parent is not None:
            super().format_commands(ctx, formatter)
            return
        section_of = {name: title for title, names in SECTIONS.items() for name in names}
        limit = formatter.width - 6 - max(map(len, self.commands))
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for name in self.list_commands(ctx):
            title = section_of.get(name, _CHANGES)
            sections[title].append((name, self.commands[name].get_short_help_str(limit)))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class SectionedCommand(_Careful, TyperCommand):
    """A command whose help has a section for each ``rich_help_panel`` of its options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer does not export their types
        """Write the arguments, the options of this command alone, and those of each section."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            title = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def epilog(command: str, examples: str, exit_codes: str) -> str:
    """Return the examples of a command, such as "kick" or "policy set", and its exit codes.

    ``examples`` has those of several commands, a paragraph for each.
    """
    words = command.split()
    blocks = (block.strip().split("\n") for block in examples.split("\n\n"))
    lines = next((block for block in blocks if block[0].split()[1 : 1 + len(words)] == words), [])
    # The mark at the beginning of a paragraph keeps its lines from being rewrapped.
    return ("\n  ".join(["\b\nExamples:", *lines]) + "\n\n" if lines else "") + exit_codes
