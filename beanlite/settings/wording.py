"""Our own words for a value that is not allowed: pydantic's are for programmers."""

import json
from reprlib import Repr
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# By pydantic's types of errors. The value is ``{given}``, and the other names are those of its context.
_WORDS: Final = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "{given} is not a whole number"),
    "int_parsing_size": "{given} has too many digits",
    **dict.fromkeys(("float_type", "float_parsing"), "{given} is not a number"),
    "finite_number": "{given} is not a finite number",
    **dict.fromkeys(("string_type", "bytes_type"), "{given} is not text"),
    "bool_type": "{given} is neither true nor false",
    "list_type": "{given} is not a list",
    "model_type": "{given} is not an object",
    "greater_than_equal": "{given} is less than {ge}",
    "less_than_equal": "{given} is more than {le}",
    "literal_error": "{given} is not one of {expected}",
    "too_long": "there are more than {max_length}",
    "too_short": "there are fewer than {min_length}",
    "string_too_long": "it is longer than {max_length} characters",
    "missing": "this key is required",
    "extra_forbidden": "unknown key",
    "value_error": "{error}",
}
# Those whose value is a number, whether written as one or as text.
_OF_NUMBERS: Final = {"int_parsing_size", "greater_than_equal", "less_than_equal"}
_SHORT: Final = Repr()
_SHORT.maxlong = 30
_SHORT.maxother = 60


def in_our_words(mistake: "ErrorDetails") -> str:
    """Return what is wrong with a value, from one of pydantic's ``errors(include_context=True)``."""
    value, context = mistake["input"], dict(mistake.get("ctx", {}))
    for bound in ("ge", "le"):
        if isinstance(context.get(bound), float):
            context[bound] = int(context[bound])
    text = json.dumps(value) if value is None or isinstance(value, bool) else _SHORT.repr(value)
    if mistake["type"] in _OF_NUMBERS:  # of a command line, where each number is text
        text = text.strip("'")
    return _WORDS.get(mistake["type"], "{given} is not allowed").format(given=text, **context)
