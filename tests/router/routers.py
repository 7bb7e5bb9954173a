"""Real routers in front of real servers."""

from collections.abc import Sequence
from pathlib import Path

from tests.support import servers
from tests.support.certificates import tls_port
from tests.support.forks import fork
from tests.support.servers import RunningServer, free_port


class Routed(RunningServer):
    """A router that accepts connections, and its servers. Leaving its ``with`` stops the router, and then these."""

    upstreams: Sequence[RunningServer] = ()

    def signal(self, number):
        """Send a signal to the first server: a router has nothing to drain."""
        self.upstreams[0].signal(number)

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        for server in self.upstreams:
            server.__exit__(kind, error, trace)


def servers_file(file: Path, upstreams: Sequence[RunningServer], tubes: Sequence[Sequence[str]] = (), **more) -> Path:
    """Write the file of servers: ``s1``, ``s2`` and so on, with these tubes."""
    text = f"version = {more.get('version', 1)}\n"
    for at, server in enumerate(upstreams):
        number = more.get("first", 1) + at
        text += f'[servers.s{at + 1}]\nnumber = {number}\nconnect = "{_address(server, more)}"\n'
        if at < len(tubes):
            text += f"tubes = {list(tubes[at])!r}\n"
    text += more.get("moved", "")
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)
    return file


def _address(server: RunningServer, more: dict) -> str:
    return f"tls://localhost:{tls_port(server)}" if more.get("over_tls") else f"127.0.0.1:{server.port}"


def start_router(directory: Path, upstreams: Sequence[RunningServer], tubes=(), flags=(), **more) -> Routed:
    """Start ``beanlite route`` in front of servers."""
    directory.mkdir(parents=True, exist_ok=True)
    file = servers_file(directory / "servers.toml", upstreams, tubes, **more)
    for _ in range(servers.TRIES):
        port = free_port()
        log = directory / "router.log"
        with log.open("wb") as sink:
            process = fork(
                ["route", "--listen", f"127.0.0.1:{port}", "--servers", str(file), *flags], directory, {}, sink
            )
        router = Routed(process, port, directory, log)
        router.upstreams = upstreams
        if servers._wait_until_it_accepts(router):
            return router
        if "in use" not in router.log_text():
            break
    raise servers.ServerDied(router.log_text())
