"""``beanlite route``."""

import gc
from pathlib import Path
from typing import Annotated, Final

import typer

from beanlite.beanstalk.client import parse_address
from beanlite.cli.paths import as_path
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
    servers: Annotated[
        Path,
        typer.Option(metavar="FILE", parser=as_path, help="The file of servers; it is read again when it changes."),
    ],
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
) -> None:
    """Have clients use several servers as if they were one.

    Each tube is on one of the servers that the file lists; clients need not know. Nothing is stored here, so there can
    be any number of routers, such as one on each machine with clients.
    """
    from beanlite.net.listener import listen_at  # noqa: PLC0415 - no other command listens like that
    from beanlite.router.router import Files, Router  # noqa: PLC0415 - likewise

    if (listen_tls_cert is None) != (listen_tls_key is None):
        raise ConfigError("--listen-tls-cert and --listen-tls-key need each other")
    tls = None
    if listen_tls_cert is not None:
        options = ("--listen-tls-cert", "--listen-tls-key")
        tls = page_context(str(listen_tls_cert), str(listen_tls_key), options)
    log.setup("info", "text")
    gc.enable()
    files = Files(servers, *(None if path is None else str(path) for path in (tls_ca, tls_cert, tls_key)))
    signals.hold()
    listener = listen_at(parse_address(listen, "--listen"))

    async def serve() -> None:
        router = Router(files, listener, tls)
        await router.serve()

    try:
        run_loop(loop_factory(), serve)
    finally:
        listener.close()
