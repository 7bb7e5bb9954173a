"""The page as the server starts it beside itself: ``python -m beanlite.web OBJECT``.

The object, in JSON, says which ``server`` to ask and where to ``listen``, perhaps its ``db``, and the folder of its
``backups``. The process ends when its standard input does: the server has the other end, and loses it however it ends.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from beanlite.beanstalk.client import parse_address
from beanlite.errors import BeanliteError
from beanlite.web import serving
from beanlite.web.backups import Folder
from beanlite.web.site import Site

# Where memory runs out, the page goes before the queue does; the kernel adds this to what it thinks of a process.
GOES_FIRST: Final = 500


def main() -> int:
    """Serve the page; returns the exit code."""
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(GOES_FIRST), encoding="ascii")
    asked: dict[str, str] = json.loads(sys.argv[1])
    db = Path(asked["db"]) if "db" in asked else None
    backups = Folder(Path(asked["backups"]), db) if db is not None and "backups" in asked else None
    try:
        where = parse_address(asked["listen"])
        site = Site(
            address=parse_address(asked["server"]),
            db=db,
            backups=backups,
            hosts=serving.LOOPBACK_NAMES | {where[0]},
        )
        listening = serving.listen(where)
    except BeanliteError as error:
        print(f"beanlite: {error}", file=sys.stderr, flush=True)  # noqa: T201 - for the server's log
        return error.exit_code
    print(serving.url(listening), file=sys.stderr, flush=True)  # noqa: T201 - likewise
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C in the server's terminal is meant for both
        serving.serve(site, listening)
    return 0


def _end_with_the_server() -> None:
    """Wait for the end of the standard input, on which nothing comes, and end in order if that is possible."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(2 * serving.STOPS_WITHIN_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
