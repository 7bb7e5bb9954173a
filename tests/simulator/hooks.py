"""The methods of the server that the simulator sees, or replaces: also those that ``compiled.py`` has compiled."""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

REPLACED = "beanlite.replaced"
"""The module that ``compiled.py`` adds: what stands in for methods, by the names of class and method."""
IS_COMPILED = importlib.util.find_spec(REPLACED) is not None


def real_name(kind: str, name: str) -> str:
    """Return the name under which the method itself is found where a compiled method looks for a stand-in."""
    return f"real_{kind}_{name}"


@cache
def real(kind: type, name: str) -> Callable[..., Any]:
    """Return a method of the server, whatever stands in for it."""
    method: Callable[..., Any] = getattr(kind, real_name(kind.__name__, name) if IS_COMPILED else name)
    return method


def replace(kind: type, name: str, by: Callable[..., Any] | None) -> None:
    """Have a function stand in for a method of the server; None: the method itself. Call ``real`` before."""
    if IS_COMPILED:
        importlib.import_module(REPLACED).by_name[f"{kind.__name__}.{name}"] = by
    else:
        setattr(kind, name, by or real(kind, name))
