"""Compile modules in parts: ``python parts.py FOLDER MODULE...``, where the package is, puts the result into FOLDER.

This is a process of its own because mypyc prints what it finds, and exits. It makes a C file of each module; all cores
compile them, and they are linked into one library, so that a call of another module costs no more than it would if all
modules were one C file.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildInParts(build_ext):
    """The command of setuptools that builds extensions, which by itself compiles one source of each after the other."""

    def build_extensions(self) -> None:
        """Compile all sources, the largest first, and leave the linking to setuptools."""
        extensions = {source: extension for extension in self.extensions for source in extension.sources}
        sources = sorted(extensions, key=lambda source: Path(source).stat().st_size, reverse=True)
        with ThreadPoolExecutor(self.parallel) as pool:
            made = pool.map(self._compile, sources, [extensions[source] for source in sources])
            objects = dict(zip(sources, made, strict=True))
        for extension in self.extensions:
            # Always in the same order: the same sources make the same library.
            extension.extra_objects = [objects[source] for source in sorted(extension.sources)]
            extension.sources = []
        super().build_extensions()

    def _compile(self, source: str, extension: Extension) -> str:
        (made,) = self.compiler.compile(
            [source],
            output_dir=self.build_temp,
            include_dirs=extension.include_dirs,
            extra_postargs=extension.extra_compile_args,
        )
        return str(made)


def build(extensions: list[Extension], folder: str) -> None:
    """Build extensions into a folder. SystemExit: the compiler is missing, or fails."""
    command = ["build_ext", f"--build-lib={folder}", f"--parallel={os.cpu_count() or 1}"]
    setup(name="beanlite", ext_modules=extensions, cmdclass={"build_ext": BuildInParts}, script_args=command)


def main(folder: str, modules: list[str]) -> None:
    """Compile the modules. SystemExit: that is impossible here."""
    # mypyc takes some seconds, which are saved if there is no compiler or Python's headers are missing.
    probe = Path("probe.c")
    probe.write_text("#include <Python.h>\n", encoding="utf-8")
    build([Extension("probe", [str(probe)])], "build")
    # What the modules import from elsewhere is not installed here.
    extensions = mypycify(["--ignore-missing-imports", *modules], multi_file=True, opt_level="2", debug_level="0")
    for extension in extensions:
        extension.extra_link_args = ["-s"]
    build(extensions, folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
