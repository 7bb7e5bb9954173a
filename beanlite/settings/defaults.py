"""The few defaults that are needed before the settings can be read. Importing this takes no time."""

import os
from typing import Final

# Where a server listens by default.
HOST: Final = "127.0.0.1"
PORT: Final = 11300
# The environment variable for a setting is this prefix and the setting's name in capitals.
ENV_PREFIX: Final = "BEANLITE_"
# The variable with the token that a client shows to a server; it is no setting.
TOKEN: Final = f"{ENV_PREFIX}TOKEN"
# The variable in which a server gives its page the token by which it knows it.
PAGE_TOKEN: Final = f"{ENV_PREFIX}PAGE_TOKEN"
# The variable of the setting ``database``, in which a server gives its page the URL, too.
DATABASE: Final = f"{ENV_PREFIX}DATABASE"
# The variable with the file of several servers, for the commands that look at them; it is no setting either.
SERVERS: Final = f"{ENV_PREFIX}SERVERS"
# A shell that completes a command line runs the program with this in its environment, and without arguments.
COMPLETES: Final = "_BEANLITE_COMPLETE"


def are_in_environment() -> bool:
    """Whether a variable may have a setting, or a mistake that reading the settings would report."""
    ours = (name for name in os.environ if name.upper().startswith(ENV_PREFIX))
    return any(name not in {TOKEN, PAGE_TOKEN, SERVERS} for name in ours)
