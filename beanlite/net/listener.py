"""Listening sockets, the limit of open files, and the user to serve as."""

from __future__ import annotations

import contextlib
import errno
import getopt
import os
import pwd
import resource
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from beanlite.errors import ConfigError, ListenError
from beanlite.host.places import as_place, host_and_port, is_port
from beanlite.settings.defaults import ENV_PREFIX, HOST, PORT

if TYPE_CHECKING:
    from beanlite.settings.config import Settings

# How many connections the kernel queues until they are accepted.
BACKLOG: Final = 1024
# What stands in for the address of sockets passed by systemd, and the first file descriptor of those.
HANDED: Final = "systemd"
_FIRST_FD: Final = 3
# Of the addresses of a name those may be missing that the machine lacks: ::1 of localhost where IPv6 is switched off.
_ABSENT: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
# File descriptors that the server itself needs: for its files and the loop's, for a few more at times, for connections
# about to be refused, and for probes.
_OWN: Final = 40


class Listener:
    """Listening sockets: a client that connects before the server is ready waits, instead of being refused."""

    __slots__ = ("_made", "_refuses", "address", "path", "sockets", "tls")

    def __init__(
        self, sockets: list[socket.socket], address: str, path: Path | None = None, *, refuses: bool = False
    ) -> None:
        self._refuses = refuses
        self.sockets = sockets
        self.address = address
        self.path = path
        """The path of the Unix socket, if we have made one."""
        self._made = None if path is None else _identity(path)
        self.tls: Listener | None = None
        """The one for clients that use TLS, which does what this one does."""

    def refuse(self, *, refuses: bool) -> None:
        """Refuse connections, or listen again, so that a check of the port shows which server is active.

        Only our own TCP sockets can refuse; on others clients wait.
        """
        if self.tls is not None:
            self.tls.refuse(refuses=refuses)
        if refuses == self._refuses or self.address == HANDED:
            return
        self._refuses = refuses
        for sock in self.sockets:
            if sock.family != socket.AF_UNIX:
                if refuses:
                    sock.shutdown(socket.SHUT_RDWR)
                else:
                    _begin(sock, self.address)

    def stand_by(self, active: str | None) -> None:
        """Refuse connections while another server is active; ``active`` is its address, or None."""
        self.refuse(refuses=active is not None)

    def close(self) -> None:
        """Stop listening, and remove the Unix socket."""
        if self.tls is not None:
            self.tls.close()
        for sock in self.sockets:
            sock.close()  # the loop has done so already, unless the start failed
        if self.path is not None:
            # After -u we may lack permission; the next start removes what is left. It may have done so already, and
            # listen in its place, since the loop has closed our socket before the last clients have their replies.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                if _identity(self.path) == self._made:
                    self.path.unlink()


def open_listener(settings: Settings) -> Listener:
    """Listen where the settings say, or on the sockets passed by systemd. ListenError: that fails."""
    listener = _open(settings)
    if settings.tls is not None:
        try:
            listener.tls = _tcp(*host_and_port(settings.tls), refuses=_refuses(settings))
        except ListenError:
            listener.close()
            raise
    return listener


def _open(settings: Settings) -> Listener:
    handed = _from_systemd()
    if handed:
        return Listener(handed, HANDED)
    place = settings.socket if settings.socket is not None else (settings.host, settings.port)
    early = _early.pop(place, None)
    while _early:  # the settings say otherwise
        _early.popitem()[1].close()
    # Refuse connections until it is known that no other server is active.
    return early or _listen(place, refuses=settings.socket is None and _refuses(settings))


def _refuses(settings: Settings) -> bool:
    return settings.database is not None and settings.standby == "refuse"


def advertised(settings: Settings, listener: Listener) -> str:
    """Return the address at which other servers reach this one."""
    if settings.advertise is not None:
        return settings.advertise
    for sock in listener.sockets:
        if sock.family != socket.AF_UNIX:
            host, port = sock.getsockname()[:2]
            host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)  # noqa: S104 - compared
            return as_place(host, port)
    return listener.address


_Place = Path | tuple[str, int]  # the path of a Unix socket, which has several spellings as text; or host and port
_early: dict[_Place, Listener] = {}


def listen_early(args: list[str]) -> None:
    """Listen before the settings are read, if the command line has only beanstalkd's flags and --no-journal.

    Clients' test suites start the server and give it 0.1 s. Reading the settings takes longer; clients that connect in
    the meantime wait. If the settings turn out to be wrong, the process ends, and this socket is closed with it.
    """
    try:
        given, rest = getopt.getopt(args, "l:p:b:f:Fz:u:s:Vcn", ["no-journal"])
    except getopt.GetoptError:
        return
    flags = dict(given)
    elsewhere = {"LISTEN_PID", f"{ENV_PREFIX}DATABASE"}  # what else may determine where and when to listen
    if "-l" not in flags:
        elsewhere |= {f"{ENV_PREFIX}HOST", f"{ENV_PREFIX}SOCKET"}
    if "-p" not in flags:
        elsewhere |= {f"{ENV_PREFIX}PORT"}
    host, port = flags.get("-l", HOST), flags.get("-p", str(PORT))
    if rest or elsewhere & {name.upper() for name in os.environ} or not is_port(port):
        return
    place = Path(host.removeprefix("unix:")) if host.startswith("unix:") else (host, int(port))
    with contextlib.suppress(
        ListenError, OverflowError
    ):  # the second attempt reports it, and an address that is absent
        _early[place] = _listen(place, passed_over=frozenset())


def room_for(connections: int, there: int = 0, others: Callable[[int], int] | None = None) -> int:
    """Raise the limit of open files for this many connections; return how many it allows. ConfigError: none.

    ``there`` is how many of them are open already. ``others`` returns how many further ones there may be beside these.

    Without a file descriptor to spare, the loop could not even refuse a connection, and would wake for it endlessly.
    """
    beside = _open_now() - there + _OWN
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = min(_with_others(connections, others) + beside, hard)
    if wanted > soft:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may not let us
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
            soft = wanted
    room = min(connections, soft - beside)
    while room > 0 and _with_others(room, others) > soft - beside:
        room -= 1
    if room <= 0:
        own = beside + _with_others(1, others) - 1
        raise ConfigError(f"the limit of open files is {soft}, and beanlite itself needs {own}: raise it (ulimit -n)")
    return room


def _with_others(connections: int, others: Callable[[int], int] | None) -> int:
    return connections if others is None else connections + others(connections)


def _open_now() -> int:
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:  # no /proc
        return _FIRST_FD + 1


def entry_of(user: str) -> pwd.struct_passwd:
    """Return what the system knows of a user. ConfigError: there is no such user."""
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise ConfigError(f"there is no user {user}") from error


def become(user: str) -> None:
    """Switch from root to a user. ConfigError: there is no such user, or switching is not permitted."""
    entry = entry_of(user)
    try:
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except OSError as error:
        raise ConfigError(f"can't become user {user}: {error.strerror}") from error


def _from_systemd() -> list[socket.socket]:
    """Return the sockets passed by socket activation (sd_listen_fds(3)), if they are meant for this process."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = os.environ.get("LISTEN_FDS", "")
    if not count.isdecimal() or len(count) > 20:
        raise ConfigError(f"LISTEN_FDS is no number: {count!r}")
    try:
        sockets = [socket.socket(fileno=fd) for fd in range(_FIRST_FD, _FIRST_FD + int(count))]
        for sock in sockets:
            if sock.family != socket.AF_UNIX:
                _notice_dead_clients(sock)
    except OSError as error:
        raise ListenError(
            f"LISTEN_FDS is {count}, but what was handed over are no sockets: {error.strerror}"
        ) from error
    return sockets


def _notice_dead_clients(sock: socket.socket) -> None:
    """Have the kernel detect dead clients with TCP keepalives; accepted connections inherit the option."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def listen_at(address: tuple[str, int] | tuple[str]) -> Listener:
    """Listen on a host and a port, or on a Unix socket. ListenError: that fails."""
    return _listen(Path(address[0]) if len(address) == 1 else address)


def _listen(place: _Place, *, refuses: bool = False, passed_over: frozenset[int] = _ABSENT) -> Listener:
    return _unix(place) if isinstance(place, Path) else _tcp(*place, refuses=refuses, passed_over=passed_over)


def _begin(sock: socket.socket, place: str) -> None:
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        raise ListenError(f"can't listen on {place}: {error.strerror}") from error


def _tcp(host: str, port: int, *, refuses: bool, passed_over: frozenset[int] = _ABSENT) -> Listener:
    sockets = tcp_sockets(host, port, None if refuses else BACKLOG, passed_over=passed_over)
    for sock in sockets:
        _notice_dead_clients(sock)
    host, port = sockets[0].getsockname()[:2]
    return Listener(sockets, as_place(host, port), refuses=refuses)


def tcp_sockets(
    host: str, port: int, backlog: int | None, purpose: str = "", passed_over: frozenset[int] = _ABSENT
) -> list[socket.socket]:
    """Bind a socket to each address of a host; they listen unless the backlog is None. ListenError: that fails.

    ``purpose`` is said in the error, such as ``, for --health``. An address is left out for the errors in
    ``passed_over``, if the host has another one.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # Python does not ask the resolver for such a name
        raise ListenError(f"can't listen on {host}{purpose}: no machine can have this name") from error
    except OSError as error:
        raise ListenError(f"can't listen on {host}{purpose}: {error.strerror}") from error
    sockets: list[socket.socket] = []
    absent: dict[str, OSError] = {}
    for family, _, _, _, address in addresses:
        try:
            sockets.append(_bound(family, address, backlog))
        except OSError as error:
            absent[str(address[0])] = error
            if error.errno not in passed_over:
                break
    else:
        if sockets:
            _tell_absent(host, absent)
            return sockets
    for sock in sockets:
        sock.close()
    last = list(absent.values())[-1]
    raise ListenError(f"can't listen on {host} port {port}{purpose}: {last.strerror}") from last


def _bound(family: int, address: tuple[Any, ...], backlog: int | None) -> socket.socket:
    """Return a socket that is bound to an address. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # On Linux "::" means all addresses, those of IPv4 as well; a name may have one of each kind.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        sock.bind(address)
        if backlog is not None:
            sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _tell_absent(host: str, absent: dict[str, OSError]) -> None:
    for address, error in absent.items():
        from beanlite.host import log  # noqa: PLC0415 - not imported before the server listens

        log.warning("this machine lacks an address of a name", name=host, address=address, error=error.strerror)


def _unix(path: Path) -> Listener:
    sock = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        sock.bind(str(path))
        sock.listen(BACKLOG)
        return Listener([sock], f"unix:{path}", path)
    except OSError as error:
        sock.close()
        raise ListenError(f"can't listen on {path}: {error.strerror or error}") from error


def _identity(path: Path) -> tuple[int, int, int]:
    """Return what tells a socket from those that come after it by the same name. Raises OSError.

    File systems use the number of a file again, at once; a change of the owner or the mode leaves st_mtime as it is.
    """
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _remove_stale(path: Path) -> None:
    """Remove a socket that a killed server has left behind. OSError: another process is listening on it."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return  # if something is wrong, bind reports it
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
