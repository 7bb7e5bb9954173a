"""Compile modules in parts: ``python parts.py FOLDER MODULE...``, where the package is, puts the result into FOLDER.

This is a process of its own because mypyc prints what it finds, and exits. It makes a C file of each module, all cores
compile them, and they are linked into one library, so that a call of another module costs no more than it would if all
were one C file.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# A part is several C files that the compiler is given as one: otherwise it reads the headers, which are long, as often
# as there are modules. The number does not depend on the machine, as the same sources are to make the same library.
PARTS = 8


class BuildInParts(build_ext):
    """The command of setuptools that builds extensions; by itself it compiles the sources of one after the other."""

    def build_extensions(self) -> None:
        """Compile all sources, and leave the linking to setuptools."""
        sources = [(extension, source) for extension in self.extensions for source in extension.sources]
        with ThreadPoolExecutor(self.parallel) as pool:
            compiled = list(pool.map(lambda each: self._compile(*each), sources))
        for extension in self.extensions:
            extension.sources = []
        for (extension, _), made in zip(sources, compiled, strict=True):
            extension.extra_objects += made
        super().build_extensions()

    def _compile(self, extension: Extension, source: str) -> list[str]:
        return self.compiler.compile(
            [source],
            output_dir=self.build_temp,
            include_dirs=extension.include_dirs,
            extra_postargs=extension.extra_compile_args,
        )


def build(extensions: list[Extension], folder: str) -> None:
    """Build extensions into a folder. SystemExit: there is no compiler, or it fails."""
    command = ["build_ext", f"--build-lib={folder}", f"--parallel={os.cpu_count() or 1}"]
    setup(name="beanlite", ext_modules=extensions, cmdclass={"build_ext": BuildInParts}, script_args=command)


def in_parts(sources: list[str]) -> list[str]:
    """Write C files that include these, about as many bytes each; neighbours, which call each other, are together."""
    parts: list[list[Path]] = [[] for _ in range(PARTS)]
    files = sorted(map(Path, sources))
    total_bytes, bytes_before = sum(file.stat().st_size for file in files), 0
    for file in files:
        parts[bytes_before * PARTS // total_bytes].append(file)
        bytes_before += file.stat().st_size
    names = []
    for number, part in enumerate(parts):
        path = files[0].with_name(f"part{number}.c")
        path.write_text("".join(f'#include "{file.name}"\n' for file in part), encoding="utf-8")
        names.append(str(path))
    return names


def main(folder: str, modules: list[str]) -> None:
    """Compile the modules. SystemExit: that is impossible here."""
    # mypyc takes some seconds, which are saved if there is no compiler or Python's headers are missing.
    probe = Path("probe.c")
    probe.write_text("#include <Python.h>\n", encoding="utf-8")
    build([Extension("probe", [str(probe)])], "build")

    extensions = mypycify(
        ["--ignore-missing-imports", *modules],  # what they import from elsewhere is not installed here
        multi_file=True,
        include_runtime_files=True,
        opt_level="1",  # -O2 takes longer, and what it brings is hard to measure
        debug_level="0",
    )
    library = extensions[0]  # the others are the modules, which only refer to it
    library.sources = in_parts(library.sources)
    # Declare operations of bytes and bytearray; mypyc leaves them out where it includes the files of its runtime.
    for header in ("bytes_extra_ops.h", "bytearray_extra_ops.h"):
        library.extra_compile_args = [*library.extra_compile_args, "-include", header]
    for extension in extensions:
        # What other libraries can't see is called without a detour; and the option of -O2 that matters costs nothing.
        extension.extra_compile_args = [*extension.extra_compile_args, "-fvisibility=hidden", "-fpeephole2"]
        extension.extra_link_args = ["-s"]
    build(extensions, folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
