"""The Debian package, which is built once for all tests that install it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("dpkg-deb", "help2man", "adduser")


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """The path of the package, built as plain Python: that is quicker, and `.ci/run` tests the compiled wheel."""
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("deb")
    environment = {**os.environ, "HATCH_BUILD_NO_HOOKS": "true"}
    command = [ROOT / "packaging/deb/build", folder]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (package,) = folder.glob("beanlite_*.deb")
    return package
