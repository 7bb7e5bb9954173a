"""``beanlite web``."""

import contextlib
import getpass
import os
import re
import ssl
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from beanlite.beanstalk.client import address_text, parse_address
from beanlite.cli.groups import ServerOption, grouped
from beanlite.cli.options import path_of_db, url_of_database
from beanlite.cli.paths import as_path
from beanlite.cli.source import STDIN, reader
from beanlite.console.file import File
from beanlite.console.several import reach_only
from beanlite.console.stored import Location, OpenDatabase
from beanlite.errors import ConfigError
from beanlite.host import log
from beanlite.host.shown import page_context
from beanlite.host.signals import terminable
from beanlite.settings import sources

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from beanlite.web.backups import Folder
    from beanlite.web.site import Visitors

# A header with any other name can't be sent, so that nobody could log in.
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
DEFAULT_LISTEN: Final = "127.0.0.1:11380"
EPILOG: Final = (
    "Exit codes: 0 stopped; 1 can't listen on the address; 2 a wrong setting or flag; 3 the database can't be read."
)
EXAMPLES: Final = """
beanlite web
beanlite web --db /var/lib/beanlite/beanlite.db           with history and curves
beanlite web --add-user ann:operator >> users              asks for the password
beanlite web --listen 0.0.0.0:11380 --password-file users --host queue.example.org \\
             --web-tls-cert page.pem --web-tls-key page.key
beanlite web --connect tls://queue.example.org:11301 --tls-ca ca.pem --tls-cert ann.pem
"""


DatabaseOfPage = Annotated[
    str | None, typer.Option("--database", metavar="URL", help="Or its PostgreSQL database, likewise.")
]


def _backups_of(server: ServerOption, db: Path | None) -> "Folder | None":
    """Return the folder for backups in the server's settings; None if there is none, or the settings are unknown."""
    if (server.connect or server.servers_file) and server.config_file is None:
        return None
    settings = sources.load(server.config_file)
    if settings.backup_dir is None:
        return None
    from beanlite.web.backups import Folder

    return Folder(_real(settings.backup_dir), _real(settings.db) if db is None else db)


def _real(path: Path) -> Path:
    """Return where a path leads. A loop of links is left for what opens it to report, unlike by Path.resolve."""
    return Path(os.path.realpath(path))


def _password() -> str:
    """Read a new user's password from the terminal or, in a script, from stdin.

    ConfigError: it is not UTF-8. BeanliteError: stdin can't be read.
    """
    try:
        # The login of a browser is UTF-8, whatever the locale here is.
        return getpass.getpass() if sys.stdin.isatty() else reader(STDIN).readline().decode().rstrip("\r\n")
    except EOFError:  # Ctrl-D
        return ""
    except UnicodeDecodeError as error:
        raise ConfigError("the password is not UTF-8") from error


def _check_users(password_file: Path | None, user_header: str | None) -> None:
    """Check by what users are known. ConfigError: by two things, or by a header that can't be sent."""
    if password_file is not None and user_header is not None:
        raise ConfigError("--password-file and --user-header exclude each other")
    if user_header is not None and _HEADER_NAME.fullmatch(user_header) is None:
        raise ConfigError(f"--user-header takes the name of a header, not {user_header!r}")


def _readable(db: str | None, database: str | None) -> Location | None:
    """Return the path or the URL of a database. BeanliteError: it can't be read: not said on each page only."""
    if database is not None:
        url = url_of_database(db, database, None)
        assert url is not None
        with OpenDatabase(url):
            return url
    if db is None:
        return None
    path = _real(path_of_db(db, None))
    with File(path):
        return path


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what encrypts the page; None without a certificate. ConfigError: it can't be used."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--web-tls-cert and --web-tls-key need each other")
    return page_context(str(cert), str(key), ("--web-tls-cert", "--web-tls-key"))


def _app_of(
    server: ServerOption, db: str | None, database: str | None, visitors: "Visitors", *, hide_bodies: bool
) -> tuple["Starlette", str, int | None]:
    """Return the application, the name of what it shows, and how many threads it may need; None: as many as usual."""
    from beanlite.web.app import make_app
    from beanlite.web.site import Site

    places = server.places
    has_database = db is not None or database is not None
    if len(places.places) == 1 and (places.fleet is None or has_database):
        (place,), stored = places.places, _readable(db, database)
        site = Site(
            name=place.name or address_text(place.addresses[0]),
            connect=partial(reach_only, place),
            visitors=visitors,
            db=stored,
            backups=_backups_of(server, stored if isinstance(stored, Path) else None),
            hide_bodies=hide_bodies,
            options=server.options(None),
        )
        return make_app(site), site.name, None
    if has_database:
        raise ConfigError(f"--{'db' if db is not None else 'database'} is for the page of one server")
    if server.config_file is not None:
        raise ConfigError("--config is for the page of one server")
    from beanlite.web.members import THREADS, Together
    from beanlite.web.merging import make_app_of_all

    together = Together(
        name="all servers",
        load=lambda: server.places,
        file=server.servers_file,
        make=lambda place: Site(
            name=place.name,
            connect=partial(reach_only, place),
            visitors=visitors,
            hide_bodies=hide_bodies,
            options=place.options + server.files_for(address_text(place.addresses[0])),
        ),
        visitors=visitors,
        hide_bodies=hide_bodies,
    )
    return make_app_of_all(together), ", ".join(together.members), THREADS


@grouped
def web(
    *,
    server: ServerOption,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address to listen on; also unix:PATH.")
    ] = DEFAULT_LISTEN,
    db: Annotated[
        str | None, typer.Option("--db", metavar="PATH", help="The server's database file, for history and curves.")
    ] = None,
    database: DatabaseOfPage = None,
    password_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=as_path, help="File of users, with lines printed by --add-user."),
    ] = None,
    user_header: Annotated[
        str | None, typer.Option(metavar="NAME", help="Header in which a proxy in front names the user.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A host name that browsers may use, without a port; repeatable."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Allow no changes.")] = False,
    hide_bodies: Annotated[bool, typer.Option("--hide-bodies", help="Show no bodies, and no notes.")] = False,
    web_tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=as_path, help="Encrypt, and show browsers this certificate and its chain."),
    ] = None,
    web_tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=as_path, help="The key of --web-tls-cert.")
    ] = None,
    add_user: Annotated[
        str | None,
        typer.Option(metavar="NAME:ROLE", help="Only print a line for --password-file; ROLE is operator or reader."),
    ] = None,
) -> None:
    """Show a server in the browser, and change its jobs.

    To listen beyond the loopback interface it must know its users, by --password-file or --user-header. It encrypts
    with --web-tls-cert; without it, put a proxy with TLS in front.
    """
    from beanlite.web import serving
    from beanlite.web.safety import Passwords, own_host, password_line
    from beanlite.web.site import Visitors

    if add_user is not None:
        name, _, role = add_user.rpartition(":")
        print(password_line(name, role, _password()))
        return
    tls = _tls(web_tls_cert, web_tls_key)
    address = parse_address(listen, "--listen")
    _check_users(password_file, user_header)
    if not serving.is_loopback(address) and password_file is None and user_header is None:
        raise ConfigError(f"--listen {listen} needs --password-file or --user-header: everybody could change anything")
    visitors = Visitors(
        passwords=None if password_file is None else Passwords(password_file),
        user_header=user_header,
        hosts=serving.own_names(address) | frozenset(map(own_host, host or ())),
        read_only=read_only,
    )
    app, name, threads = _app_of(server, db, database, visitors, hide_bodies=hide_bodies)
    log.setup("warning", "text")
    # Once it has stopped in order, uvicorn raises the signal again, which is to be no failure.
    with contextlib.suppress(KeyboardInterrupt), terminable():
        listening = serving.listen(address)
        print(f"beanlite: {serving.url(listening, tls)} shows {name}", file=sys.stderr, flush=True)
        serving.serve(app, listening, tls, threads)
