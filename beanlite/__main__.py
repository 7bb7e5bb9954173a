"""The entry point of the console script and of ``python -m beanlite``."""

import gc
import os
import sys


def main() -> int:
    """Carry out the command line; returns the exit code.

    Importing the whole program takes longer than some clients wait for a server, so two things are done first, as soon
    as possible: signals are held, and the server begins to listen if the flags alone say where.
    """
    args = sys.argv[1:]
    try:
        from beanlite.host import signals  # noqa: PLC0415 - Ctrl-C during an import is to be no traceback
        from beanlite.settings.defaults import COMPLETES  # noqa: PLC0415 - likewise

        is_server = not os.environ.get(COMPLETES) and signals.is_server(args)
        if is_server:
            signals.hold()

        from beanlite.host import stderr  # noqa: PLC0415 - not before signals are held
        from beanlite.net.listener import listen_early  # noqa: PLC0415 - likewise

        gc.disable()  # what is imported stays, and searching it for garbage takes time
        stderr.open_closed()
        stderr.install()
        if is_server:
            listen_early(args)

        from beanlite import cli  # noqa: PLC0415 - not before the server listens

        # A server does without the collector for good: it makes no garbage that only the collector finds (a test
        # verifies that), and searching a million jobs for it would stall all clients. All other commands have it.
        if not is_server:
            gc.freeze()
            gc.enable()
        return cli.main(args)
    except KeyboardInterrupt:  # during the imports
        return 130


if __name__ == "__main__":
    sys.exit(main())
