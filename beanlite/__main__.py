"""The way in, for the console script and for ``python -m beanlite``."""

import gc
import sys

# Imports make no garbage, and looking for it costs a tenth of the start; `serve` turns it on again.
gc.disable()

from beanlite.cli import main  # noqa: E402 - after gc.disable, that is its point

if __name__ == "__main__":
    sys.exit(main())
