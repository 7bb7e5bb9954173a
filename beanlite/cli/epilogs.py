"""What --help says of a command: its options in sections, and what is below them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

# The sections of options that several commands have.
WHICH: Final = "Which jobs"
PLACE: Final = "Where to look"


class _Sparing:
    """A command whose parameters are converted only if need be: for a conversion typer imports pydantic, 0.1 s."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer does not export their types
        """Return the parameters."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if "process_value" not in vars(parameter):
                parameter.process_value = partial(_process, parameter, parameter.process_value)
        return parameters


def _process(parameter: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:  # noqa: ANN401 - likewise
    """Return the value of a parameter, as it is if that is right."""
    if parameter.nargs == 1 and not parameter.multiple and not parameter.required:
        kind = getattr(parameter, "type_descriptor", None)
        is_text = kind is not None and kind.annotation is str and kind.parameter_info.parser is None
        if value is parameter.default or (is_text and isinstance(value, str)):
            return value
    return process(ctx, value)


class Commands(_Sparing, TyperGroup):
    """The command line, or a command with commands of its own."""


class SectionedCommand(_Sparing, TyperCommand):
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
