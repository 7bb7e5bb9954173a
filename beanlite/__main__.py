"""The way in, for the console script and for ``python -m beanlite``."""

import gc
import os
import sys

from beanlite import signals
from beanlite.defaults import COMPLETES


def main() -> int:
    """Carry out the command line; returns the exit code.

    To import all of the program takes longer than some clients wait for a server, so this comes in between as soon as
    it can: signals are held first, and then the server listens if the flags alone say where.
    """
    args = sys.argv[1:]
    serves = COMPLETES not in os.environ
    if serves:
        signals.hold_early(args)

    try:
        from beanlite import stderr  # noqa: PLC0415 - not before signals are held
        from beanlite.net.listener import listen_early  # noqa: PLC0415 - likewise

        # For good: a server makes no garbage that only a collector finds (a test holds that), and to look for it among
        # a million jobs would stop all clients for as long as that takes.
        gc.disable()
        stderr.install()
        if serves:
            listen_early(args)

        from beanlite import cli  # noqa: PLC0415 - not before the server listens

        return cli.main(args)
    except KeyboardInterrupt:  # while all that was imported
        return 130


if __name__ == "__main__":
    sys.exit(main())
