"""Compile the modules that commands pass through with mypyc when a wheel is built.

The sources remain plain Python, and an editable install and the tests run them as they are. Without a C compiler or
Python's headers the wheel holds plain Python as well, which does the same more slowly.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Compile(BuildHookInterface):
    """The hook that hatchling runs before it builds a wheel; pyproject.toml lists what to compile."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put the result into the wheel beside the sources."""
        if version != "standard":
            return
        self._scratch = TemporaryDirectory(prefix="beanlite-")  # until the wheel has been built
        scratch = Path(self._scratch.name)
        copytree(Path(self.root, "beanlite"), scratch / "beanlite", ignore=ignore_patterns("*.so", "__pycache__"))
        modules = self._modules(scratch)
        self.app.display_info(f"compiling {len(modules)} modules of beanlite on {os.cpu_count()} cores ...")
        began_s = time.monotonic()
        command = [sys.executable, Path(self.root, ".ci/parts.py"), "compiled", *modules]
        done = subprocess.run(command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            self.app.display_warning(done.stdout.decode(errors="replace"))
            self.app.display_warning("beanlite could not be compiled: it is installed as plain Python, which is slower")
            return
        self.app.display_info(f"compiled in {time.monotonic() - began_s:.0f} s")
        compiled = scratch / "compiled"
        files = {str(file): str(file.relative_to(compiled)) for file in sorted(compiled.rglob("*.so"))}
        build_data["force_include"].update(files)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _modules(self, scratch: Path) -> list[str]:
        """Return the listed files, and all modules in the listed folders except those that stay interpreted."""
        named = [scratch / name for name in self.config["modules"]]
        files = [file for each in named for file in (sorted(each.rglob("*.py")) if each.is_dir() else [each])]
        names = [str(file.relative_to(scratch)) for file in files if file.name != "__init__.py"]
        return [name for name in names if name not in self.config["interpreted"]]
