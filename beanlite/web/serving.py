"""Runs the application."""

import asyncio
import contextlib
import os
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

import uvicorn
from starlette.applications import Starlette

from beanlite.beanstalk.client import Address, address_text
from beanlite.errors import BeanliteError, ListenError, in_system_words
from beanlite.host import signals
from beanlite.host.places import as_place
from beanlite.net.listener import listen_at
from beanlite.settings import values
from beanlite.web.safety import own_host
from beanlite.web.visits import CONNECTIONS_MAX, Door, Visit

# The host names by which browsers reach the loopback interface.
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
# How long a connection may be idle.
IDLE_S: Final = 30
STOPS_WITHIN_S: Final = 2
# How many threads there are, unless several servers are asked: enough for all that may run in them at the same time.
THREADS: Final = 32
# The nice value: with few cores, pages that are made every two seconds must not keep the queue's clients waiting.
GIVES_WAY: Final = 10


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach the address. True for a Unix socket, which is as open as its file."""
    return len(address) != 2 or values.is_loopback(address[0])


def own_names(address: Address) -> frozenset[str]:
    """Return the host names by which browsers reach the address; none if other machines can reach it."""
    if not is_loopback(address):
        return frozenset()
    return _LOOPBACK_NAMES | {own_host(address[0])} if len(address) == 2 else _LOOPBACK_NAMES


def listen(address: Address) -> socket.socket:
    """Open the socket that browsers connect to. BeanliteError: that fails."""
    try:
        if len(address) == 2:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            # On Linux "::" means all addresses, those of IPv4 as well.
            both = address[0] == "::"
            address[0].encode("idna")  # create_server does so with an error that leaves its socket open
            return socket.create_server((address[0], address[1]), family=family, dualstack_ipv6=both)
        return listen_at(address).sockets[0]  # in the place of what an earlier page has left there
    except ListenError as error:
        raise BeanliteError(str(error)) from error
    except UnicodeError as error:
        raise BeanliteError(f"can't listen on {address_text(address)}: no machine can have this name") from error
    except OSError as error:
        raise BeanliteError(f"can't listen on {address_text(address)}: {in_system_words(error)}") from error


def url(listening: socket.socket, tls: ssl.SSLContext | None = None) -> str:
    """Return the URL to open in a browser, or ``unix:PATH``."""
    name = listening.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    scheme = "http" if tls is None else "https"
    return f"{scheme}://{as_place(name[0], name[1])}/"


class _PageServer(uvicorn.Server):
    """A server that hears of signals from its start on."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        signals.hear()
        await super().startup(sockets)


def serve(
    app: Starlette, listening: socket.socket, tls: ssl.SSLContext | None = None, threads: int | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C, at a low priority; with ``tls``, encrypt.

    ``threads`` work at the same time; None: as many as usual.
    """
    with contextlib.suppress(OSError):  # if that is not permitted, serve at normal priority
        os.nice(GIVES_WAY)
    how = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=Visit if tls is None else cast(type[Visit], Door(tls)),  # called to make a protocol, and no more
        limit_concurrency=CONNECTIONS_MAX + 1,  # above it, uvicorn refuses all requests
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOPS_WITHIN_S,
        proxy_headers=False,  # the user is taken only from the configured header, if any
    )

    signals.hold()  # until uvicorn handles them: asyncio would cancel its start, which leaves a traceback
    with asyncio.Runner(loop_factory=how.get_loop_factory()) as runner:
        runner.get_loop().set_default_executor(ThreadPoolExecutor(threads or THREADS))
        runner.run(_PageServer(how).serve([listening]))
