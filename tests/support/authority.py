"""An authority of a test's own, by the program openssl, and what it vouches for."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.support.needs import need

NEW_KEY: Final = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc".split()
LOCAL: Final = "DNS:localhost,IP:127.0.0.1"


class Authority:
    """An authority with its files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        need(shutil.which("openssl"), "openssl is not installed")
        self._folder = folder
        self.file = folder / f"{name}.pem"
        """Its certificate."""
        self._key = folder / f"{name}.key"
        usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign", "-days", "10", "-subj", f"/CN={name}"]
        self._run("req", "-x509", *NEW_KEY, *usage, "-keyout", self._key, "-out", self.file)

    def issue(self, name: str, alternatives: str = LOCAL, *, days: int = 5) -> Path:
        """Make a certificate for these names; return a file with it and its key. It has expired with -1 days."""
        request, both = self._folder / f"{name}.csr", self._folder / f"{name}.pem"
        names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={alternatives}"]
        self._run("req", "-new", *NEW_KEY, *names, "-keyout", both, "-out", request)
        signed: list[str | Path] = ["-CA", self.file, "-CAkey", self._key, "-days", str(days)]
        key = both.read_bytes()
        self._run("x509", "-req", "-in", request, *signed, "-copy_extensions", "copy", "-out", both)
        both.write_bytes(both.read_bytes() + key)
        both.chmod(0o600)
        return both

    def _run(self, *words: str | Path) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
