"""The way in: nothing happens before it is called."""

import subprocess
import sys

from tests.support.servers import free_port

LOOK = """
import gc, signal, sys
sys.argv = ["beanlite", "-p", "{port}"]
signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever other tests have left
import beanlite.__main__ as entry
from beanlite.net import listener
print(listener._early, gc.isenabled(), signal.pthread_sigmask(signal.SIG_BLOCK, ()), sys.stderr is sys.__stderr__)
"""


def test_an_import_does_nothing():
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(port=free_port())], capture_output=True, check=True, text=True
    )
    assert done.stdout == "{} True set() True\n"
