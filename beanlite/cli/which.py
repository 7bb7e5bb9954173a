"""The options that select jobs, made from the fields of a filter."""

import inspect
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, get_args

import typer

from beanlite.cli import completion
from beanlite.cli.epilogs import WHICH
from beanlite.cli.groups import OptionGroup, age_option, moment_option
from beanlite.console import units
from beanlite.console.filters import ID_MAX, STATES, WHYS, filter_by
from beanlite.errors import ConfigError
from beanlite.protocol.operators.filters import CRITERIA, NAMES, Filter, most_of

# What a shell completes the values of.
_COMPLETIONS: Final = {"tube": completion.tubes, "state": completion.one_of(STATES), "why": completion.one_of(WHYS)}
# What is said of a moment that is still to come: some look for jobs that are due by it.
_NOT_DUE: Final = (
    ". This option selects by when jobs entered their state; what is due soon is told by beanlite jobs --group-by due,"
    " and by beanlite tubes --sort due"
)


def _options() -> Iterator[inspect.Parameter]:
    """Make the options of a filter from its fields."""
    for key, item in CRITERIA.items():
        field = Filter.model_fields[key]
        names = [name for name in ("--" + NAMES[key].replace("_", "-"), item.short) if name]
        kind: Any = str
        option: Any = typer.Option(*names, metavar=item.value or key.upper(), help=item.help)
        if key.endswith("_at"):
            kind, option = float, moment_option(*names, text=item.help, is_end=key == "until_at", hint=_NOT_DUE)
        elif float in get_args(field.annotation):
            kind, option = float, age_option(*names, text=item.help)
        elif list[str] in get_args(field.annotation):
            kind = list[str]
        elif int in get_args(field.annotation):
            kind = int
            option = typer.Option(*names, min=0, max=most_of(field, ID_MAX), metavar=item.number, help=item.help)
        option.rich_help_panel, option.autocompletion = WHICH, _COMPLETIONS.get(key)
        annotation = Annotated[kind | None, option]
        yield inspect.Parameter(NAMES[key], inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


class Which(OptionGroup):
    """Which jobs to select: those that match all of this."""

    __signature__ = inspect.Signature(list(_options()))

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - the values of these options
        self._values = {key: values[NAMES[key]] for key in CRITERIA if values[NAMES[key]] not in (None, [])}

    def filter(self, ids: Sequence[int] | None = None, state: str | None = None) -> Filter:
        """Return the options as a filter; if some are given, but no state or ids, `state` is used. ConfigError."""
        for key, what in (("text", "body"), ("note_text", "note")):
            if self._values.get(key) == "":  # as from a script whose variable is not set
                option = f"--{NAMES[key].replace('_', '-')}"
                raise ConfigError(f"{option}: every {what} has an empty text in it; leave it out to mean all")
        until_s = self._values.get("until_at", 0.0)
        if self._values.get("state") == "delayed" and until_s > time.time():
            raise ConfigError(f"--until: {units.utc(until_s)} UTC is still to come{_NOT_DUE}")
        default = {} if ids or not self._values else {"state": state}
        return filter_by(ids=list(ids) if ids else None, **default | self._values)
