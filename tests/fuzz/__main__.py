"""Fuzz the wire, guided by coverage, for as long as you like::

    python -m tests.fuzz -max_total_time=600

Options are libFuzzer's. It starts from ``corpus`` and writes what it finds to a new folder, which it names at the end;
give one to keep it. A failing input is written there, too; try it again with ``python -m tests.fuzz <file>``.
To take what is new into the corpus: ``python -m tests.fuzz -merge=1 tests/fuzz/corpus <folder>``.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["beanlite"]):
    from tests.fuzz.wire import check

HERE = Path(__file__).parent


def main() -> None:
    options = [option for option in sys.argv[1:] if option.startswith("-")]
    paths = [option for option in sys.argv[1:] if not option.startswith("-")]
    if not paths:
        paths = [tempfile.mkdtemp(prefix="fuzz-"), str(HERE / "corpus")]
    defaults = [f"-dict={HERE / 'words.dict'}", f"-artifact_prefix={paths[0]}/", "-max_len=1024", "-timeout=30"]
    if Path(paths[0]).is_file():
        defaults = []
    print("found:", paths[0], flush=True)  # noqa: T201 - to be seen
    atheris.Setup([f"{sys.executable} -m tests.fuzz", *defaults, *options, *paths], check)
    atheris.Fuzz()


main()
