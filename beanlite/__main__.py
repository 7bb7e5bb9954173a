"""The way in, for the console script and for ``python -m beanlite``."""

import gc
import sys

from beanlite.listen import listen_early

# Imports make no garbage, and looking for it costs a tenth of the start; `serve` turns it on again.
gc.disable()
listen_early(sys.argv[1:])

from beanlite.cli import main  # noqa: E402 - after these two, that is their point

if __name__ == "__main__":
    sys.exit(main())
