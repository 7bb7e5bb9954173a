"""TLS in front of a server, for tests of clients."""

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path
from typing import Self


class TlsFront:
    """Accepts TLS at a port of its own, and passes on what clients send to a server. Leaving its ``with`` ends it."""

    def __init__(self, server_port: int, cert: Path, *, clients: Path | None = None) -> None:
        """``clients``: the authority of the certificates that it asks for; None: it asks for none."""
        self._server_port = server_port
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(cert)
        if clients is not None:
            self.context.load_verify_locations(clients)
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def where(self) -> str:
        """Its address, as commands take it."""
        return f"tls://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            self.context.wrap_socket(client, server_side=True) as shielded,
            socket.create_connection(("127.0.0.1", self._server_port)) as server,
        ):
            _pass_on(shielded, server)


def _pass_on(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Pass on the client's commands and the server's replies, in one thread, as an SSL object wants it."""
    while True:
        readable = [client] if client.pending() else select.select([client, server], [], [])[0]
        for source, target in ((client, server), (server, client)):
            if source in readable:
                data = source.recv(1 << 16)
                if not data:
                    return
                target.sendall(data)
