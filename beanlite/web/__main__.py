"""The page as a child process of the server: ``python -m beanlite.web OBJECT``.

The JSON object has the address of the ``server``, the address to ``listen`` on, and optionally the server's ``db``, the
folder of its ``backups``, the files of a certificate, ``web_tls_cert`` and ``web_tls_key``, and the one of users,
``web_password_file``. The URL of a PostgreSQL database is in the environment, as it may have a password. The process
ends at the end of its stdin, a pipe whose other end the server holds: however the server ends, the pipe is closed.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Final

from beanlite.beanstalk.client import parse_address
from beanlite.console.live import Live
from beanlite.console.several import Place
from beanlite.errors import BeanliteError
from beanlite.host import log
from beanlite.host.places import host_and_port
from beanlite.host.shown import page_context
from beanlite.settings.defaults import DATABASE, HOST, PORT
from beanlite.web import serving
from beanlite.web.app import make_app
from beanlite.web.backups import Folder
from beanlite.web.safety import Passwords
from beanlite.web.site import Site, Visitors

CERTIFICATE: Final = ("web_tls_cert", "web_tls_key")


def main() -> int:
    """Serve the page, and return the exit code."""
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    log.setup_child()
    options: dict[str, str] = json.loads(sys.argv[1])
    file = Path(options["db"]) if "db" in options else None
    backups = Folder(Path(options["backups"]), file) if file is not None and "backups" in options else None
    tls = None
    try:
        if CERTIFICATE[0] in options:
            cert, key = (options[key] for key in CERTIFICATE)
            tls = page_context(cert, key, CERTIFICATE)
        where = host_and_port(options["listen"])
        address = parse_address(options["server"])
        site = Site(
            name=options["server"],
            connect=partial(Live, address),
            options="" if address == (HOST, PORT) else Place("", 0, (address,)).options,
            visitors=Visitors(
                passwords=Passwords(Path(options["web_password_file"])) if "web_password_file" in options else None,
                hosts=serving.own_names(where),
            ),
            db=file or os.environ.get(DATABASE),
            backups=backups,
        )
        listening = serving.listen(where)
    except BeanliteError as error:
        print(f"beanlite: {error}", file=sys.stderr, flush=True)  # noqa: T201 - for the server's log
        return error.exit_code
    print(serving.url(listening, tls), file=sys.stderr, flush=True)  # noqa: T201 - likewise
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C in the server's terminal is meant for both
        serving.serve(make_app(site), listening, tls)
    return 0


def _end_with_the_server() -> None:
    """Wait for the end of stdin, on which nothing is sent; then stop in order, or exit if that takes too long."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(2 * serving.STOPS_WITHIN_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
