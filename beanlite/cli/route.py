"""``beanlite route``."""

import ssl
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.beanstalk.client import parse_address
from beanlite.cli.paths import as_path
from beanlite.cli.targets import ServersFile
from beanlite.errors import ConfigError
from beanlite.host import log, signals
from beanlite.host.loop import loop_factory, run_loop
from beanlite.host.shown import page_context

DEFAULT_LISTEN: Final = "127.0.0.1:11300"
EPILOG: Final = "Exit codes: 0 stopped; 2 a wrong flag, or the file of servers is wrong; 5 can't listen on the address."
EXAMPLES: Final = """
beanlite route --servers servers.toml
beanlite route --listen 0.0.0.0:11300 --servers /etc/beanlite/servers.toml --tls-ca ca.pem
"""


def route(
    *,
    servers: ServersFile,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address to listen on; also unix:PATH.")
    ] = DEFAULT_LISTEN,
    listen_tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=as_path, help="Encrypt, and show clients this certificate and its chain."),
    ] = None,
    listen_tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=as_path, help="The key of --listen-tls-cert.")
    ] = None,
    listen_tls_clients: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=as_path, help="Clients need a certificate that this authority vouches for."
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=as_path, help="Trust servers at tls:// that this authority vouches for."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=as_path, help="Show this certificate to servers at tls://.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=as_path, help="Its key, unless that is in the same file.")
    ] = None,
    relay: Annotated[
        bool,
        typer.Option(
            "--relay",
            help="Tell servers the address and the certificate of each client: it has its own rights there. "
            "They must trust the router: the role operator on all tubes.",
        ),
    ] = False,
) -> None:
    """Have clients use several servers as if they were one.

    Each tube is on one of the servers that the file lists, which is read again when it changes. Nothing is stored here,
    so there can be any number of routers, such as one on each machine with clients.
    """
    from beanlite.net.listener import listen_at
    from beanlite.router.router import Files, Router

    def read_tls() -> ssl.SSLContext | None:
        return _listening_context(listen_tls_cert, listen_tls_key, listen_tls_clients)

    log.setup("info", "text")
    files = Files(servers, *(None if path is None else str(path) for path in (tls_ca, tls_cert, tls_key)))
    signals.hold()
    listener = listen_at(parse_address(listen, "--listen"))

    async def serve() -> None:
        await Router(files, listener, read_tls, relays=relay).serve()

    try:
        run_loop(loop_factory(), serve)
    finally:
        listener.close()


def _listening_context(cert: Path | None, key: Path | None, clients: Path | None) -> ssl.SSLContext | None:
    """Return what encrypts for clients; None: nothing does. ConfigError: the files can't be used."""
    from beanlite.net.certificates import ask_for_certificates

    if (cert is None) != (key is None):
        raise ConfigError("--listen-tls-cert and --listen-tls-key need each other")
    if cert is None:
        if clients is not None:
            raise ConfigError("--listen-tls-clients needs --listen-tls-cert")
        return None
    context = page_context(str(cert), str(key), ("--listen-tls-cert", "--listen-tls-key"))
    if clients is not None:
        ask_for_certificates(context, "--listen-tls-clients", clients)
    return context
