"""The way in, for the console script and for ``python -m beanlite``."""

import gc
import sys

from beanlite.signals import hold_early

hold_early(sys.argv[1:])

from beanlite import stderr  # noqa: E402 - after this: each import takes a while
from beanlite.net.listener import listen_early  # noqa: E402 - likewise

# For good: a server makes no garbage that only a collector finds (a test holds that), and to look for it among a
# million jobs would stop all clients for as long as that takes.
gc.disable()
stderr.install()
listen_early(sys.argv[1:])

from beanlite.cli import main  # noqa: E402 - after these, that is their point

if __name__ == "__main__":
    sys.exit(main())
