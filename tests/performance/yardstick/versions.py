"""The versions to compare, each compiled by the recipe of its own commit and installed apart."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beanlite-yardstick"
VERSION = "import platform; print(platform.python_version())"
PACKAGES = "from importlib.metadata import distributions as all; print(*{f'{x.name}=={x.version}' for x in all()})"


@dataclass(frozen=True)
class Version:
    """An installed version."""

    name: str
    program: Path
    """Its bin/beanlite."""

    @property
    def python(self) -> Path:
        """The interpreter that runs it."""
        return self.program.with_name("python")

    def ask(self, code: str) -> str:
        """Return what a line of code prints there."""
        return output(self.python, "-c", code)


def output(*command: str | Path) -> str:
    """Return what a command prints, without the line end."""
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.rstrip("\n")


def commit_of(name: str) -> str:
    """Return the full id of a commit; the program ends if there is none."""
    try:
        return output("git", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}")
    except subprocess.CalledProcessError:
        sys.exit(f"there is no commit {name} here, nor a file of that name; is this a shallow clone?")


def both(baseline: str, present: str, folder: Path) -> tuple[Version, Version]:
    """Install two versions below a folder, with the same interpreter and the same packages.

    Each is a commit, or the bin/beanlite of an installation, which is taken as it is.
    """
    new = _version(present, folder / "present", Path(sys.executable), "")
    old = _version(baseline, folder / "baseline", new.python, new.ask(PACKAGES))
    for version in old, new:
        if "(compiled)" not in output(version.program, "--version"):
            sys.exit(f"{version.name} is not compiled")
    return old, new


def _version(what: str, folder: Path, python: Path, packages: str) -> Version:
    if Path(what).is_file():
        return Version(what, Path(what).absolute())
    commit = commit_of(what)
    wheel = _wheel(commit, python)
    output(python, "-m", "venv", folder)
    constraints = folder / "constraints.txt"
    lines = [line for line in packages.split() if not line.startswith("beanlite==")]
    constraints.write_text("\n".join(lines), encoding="utf-8")
    output(folder / "bin/pip", "install", "-q", "--disable-pip-version-check", "-c", constraints, wheel)
    return Version(commit[:7], folder / "bin/beanlite")


def _wheel(commit: str, python: Path) -> Path:
    """Return the wheel of a commit for an interpreter. It is compiled once, and then kept."""
    kept = CACHE / f"{commit}-python{output(python, '-c', VERSION)}"
    if not kept.exists():
        print(f"{commit[:7]} is compiled, once: up to eight minutes", file=sys.stderr)
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            scratch = Path(name)
            sources = scratch / "sources"
            sources.mkdir()
            output("git", "archive", "--output", scratch / "sources.tar", commit)
            output("tar", "-C", sources, "-xf", scratch / "sources.tar")
            output(python, "-m", "venv", scratch / "venv")
            wheels = scratch / "wheels"
            pip = scratch / "venv/bin/pip"
            output(pip, "wheel", "-q", "--disable-pip-version-check", "--no-deps", "--wheel-dir", wheels, sources)
            if [*wheels.glob("*-none-any.whl")]:
                sys.exit(f"{commit[:7]} could not be compiled: are a C compiler and Python's headers installed?")
            wheels.rename(kept)
    (wheel,) = kept.glob("beanlite-*.whl")
    return wheel
