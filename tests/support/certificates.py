"""Certificates for tests, made with OpenSSL's command, and connections that use them."""

import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

from tests.support.needs import need
from tests.support.servers import RunningServer

KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes".split()


class Authority:
    """One that signs certificates; all files are in its folder."""

    def __init__(self, folder: Path, name: str = "ca"):
        need(shutil.which("openssl"), "openssl is not installed")
        self.folder = folder
        self.name = name
        folder.mkdir(exist_ok=True)
        self._openssl(
            "req",
            "-x509",
            *KEY,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.crt",
            *f"-days 365 -subj /CN={name}".split(),
        )
        self.file = folder / f"{name}.crt"

    def sign(self, name: str, *, days: int = 365, curve: str = "P-256") -> tuple[Path, Path]:
        """Make a certificate and its key; one of -1 days has expired."""
        (self.folder / "ext").write_text(f"subjectAltName=DNS:{name},DNS:localhost")
        key = [word.replace("P-256", curve) for word in KEY]
        self._openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        self._openssl(
            *f"x509 -req -in {name}.csr -CA {self.name}.crt -CAkey {self.name}.key -CAcreateserial".split(),
            *f"-out {name}.crt -days {days} -extfile ext".split(),
        )
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def client(self, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return what a client needs that trusts this authority, and has a certificate."""
        context = ssl.create_default_context(cafile=self.file)
        if own is not None:
            context.load_cert_chain(*own)
        return context


def tls_flags(own: tuple[Path, Path], clients: Path | None = None) -> list[str]:
    """Return the flags for a server with this certificate and key, and an authority for its clients."""
    flags = ["--tls", "127.0.0.1:0", "--tls-cert", str(own[0]), "--tls-key", str(own[1])]
    return flags if clients is None else [*flags, "--tls-clients", str(clients)]


def tls_port(server: RunningServer) -> int:
    """Return the port that the log names."""
    return int(re.findall(r" tls=127\.0\.0\.1:(\d+)", server.log_text())[-1])


def wrap(server: RunningServer, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Connect to it with TLS. OSError: the handshake fails."""
    client = socket.create_connection((server.host, tls_port(server)), 10)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(client, server_hostname="localhost")
