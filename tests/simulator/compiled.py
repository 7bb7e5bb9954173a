"""Compiles the server and the simulator: ``python -m tests.simulator.compiled FOLDER``, in a minute or two.

``cd FOLDER; python -m tests.simulator`` then simulates what a wheel has, and plays each seed as the sources do.
Compiled modules call each other whatever their names stand for by now, so the methods that the simulator sees look for
a stand-in first, the bounds of a batch are variables, and a few modules stay interpreted.
"""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from shutil import copytree, ignore_patterns

from tests.simulator.fit import BATCH
from tests.simulator.hooks import REPLACED, real_name
from tests.simulator.referee import METHODS

ROOT = Path(__file__).parents[2]
# These have a class of which the simulator derives one, or a function that it replaces.
INTERPRETED = (
    "beanlite/host/clock.py",
    "beanlite/journal/base.py",
    "beanlite/journal/volatile.py",
    "beanlite/journal/sqlite/served/journal.py",
    "beanlite/journal/sqlite/served/sync.py",
)
# Modules of the simulator itself that stay interpreted: mypyc takes no class derived from the clock, as ``life`` has,
# nor the defaults of the settings, with which ``run`` makes them. The others take no time.
NOT_PLAYERS = ("__init__", "__main__", "compiled", "life", "mutants", "run", "test_simulator")
NOT_SIMULATED = ("beanlite/router", "beanlite/journal/postgres")
VARIABLES = {"beanlite/commit/group.py": tuple(BATCH), "beanlite/journal/sqlite/file/room.py": ("RESERVE_BYTES",)}


def main(folder: Path) -> None:
    """Lay out what is simulated in a new folder, and compile it there."""
    lay_out(folder)
    command = [sys.executable, str(ROOT / ".ci/parts.py"), str(folder), *compiled_modules(folder)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def lay_out(folder: Path) -> None:
    """Copy the sources and the simulator, and have the methods look for their stand-ins."""
    for name in ("beanlite", "migrations", "tests/simulator", "tests/faults"):
        copytree(ROOT / name, folder / name, ignore=ignore_patterns("*.so", "__pycache__"))
    (folder / "tests/__init__.py").touch()
    compiled = players(folder)
    for source in [path for path in (folder / "tests").rglob("*.py") if path not in compiled]:
        # mypyc reads it as well, and what it finds there is no matter.
        source.write_text("# mypy: ignore-errors\n" + source.read_text(encoding="utf-8"), encoding="utf-8")
    *package, module = REPLACED.split(".")
    Path(folder, *package, f"{module}.py").write_text("from typing import Any\n\nby_name: dict[str, Any] = {}\n")
    for path in {kind.__module__ for kind, _ in METHODS}:
        source = folder / f"{path.replace('.', '/')}.py"
        methods = {(kind.__name__, name) for kind, name in METHODS if kind.__module__ == path}
        source.write_text(with_stand_ins(source.read_text(encoding="utf-8"), methods), encoding="utf-8")
    for name, variables in VARIABLES.items():
        text = (folder / name).read_text(encoding="utf-8")
        for variable in variables:
            assert text.count(f"\n{variable}: Final = ") == 1
            text = text.replace(f"\n{variable}: Final = ", f"\n{variable}: int = ")
        (folder / name).write_text(text, encoding="utf-8")


def players(folder: Path) -> list[Path]:
    """Return the modules of the simulator itself that are compiled."""
    modules = (folder / "tests/simulator").glob("*.py")
    return [*(path for path in modules if path.stem not in NOT_PLAYERS), folder / "tests/faults/power.py"]


def compiled_modules(folder: Path) -> list[str]:
    """Return the simulator, and what a wheel has compiled, but for what the simulator does not use or replaces."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    paths = [
        path
        for name in wheel["modules"]
        for path in ((folder / name).rglob("*.py") if (folder / name).is_dir() else [folder / name])
    ]
    names = {str(path.relative_to(folder)) for path in paths if path.name != "__init__.py"}
    names -= {*wheel["interpreted"], *INTERPRETED}
    simulator = [str(path.relative_to(folder)) for path in players(folder)]
    return sorted([*simulator, *(name for name in names if not name.startswith(NOT_SIMULATED))])


def with_stand_ins(text: str, methods: set[tuple[str, str]]) -> str:
    """Return a module in which each of these methods calls its stand-in, if there is one, or else the method itself."""
    module = ast.parse(text)
    for kind in [each for each in module.body if isinstance(each, ast.ClassDef)]:
        for method in [each for each in kind.body if isinstance(each, ast.FunctionDef)]:
            if (kind.name, method.name) in methods:
                kind.body.append(_looking(kind.name, method))
                methods = methods - {(kind.name, method.name)}
                method.name = real_name(kind.name, method.name)
    assert not methods, methods
    package, _, name = REPLACED.rpartition(".")
    first = next(
        at for at, each in enumerate(module.body) if isinstance(each, ast.ImportFrom) and each.module != "__future__"
    )
    module.body[first:first] = ast.parse(f"from {package} import {name}").body
    return ast.unparse(ast.fix_missing_locations(module))


def _looking(kind: str, method: ast.FunctionDef) -> ast.FunctionDef:
    """Return a method with the same parameters that looks for the stand-in."""
    given, name = method.args, REPLACED.rpartition(".")[2]
    values = ", ".join([each.arg for each in given.args[1:]] + [f"{each.arg}={each.arg}" for each in given.kwonlyargs])
    body = (
        f"stand_in = {name}.by_name.get('{kind}.{method.name}')\n"
        f"if stand_in is None:\n    return self.{real_name(kind, method.name)}({values})\n"
        f"return stand_in(self, {values})"
    )
    looking = ast.parse(f"def {method.name}(): pass").body[0]
    assert isinstance(looking, ast.FunctionDef)
    looking.args, looking.returns, looking.body = given, method.returns, ast.parse(body).body
    return looking


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
