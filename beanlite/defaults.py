"""The few defaults that are needed before the settings can be read: this imports nothing, and so takes no time."""

from typing import Final

# Where to listen, if nothing says otherwise.
HOST: Final = "127.0.0.1"
PORT: Final = 11300
# The environment's variable for a setting is this and its name in capitals.
ENV_PREFIX: Final = "BEANLITE_"
# A shell that asks how a line may go on runs the program with this in its environment, and without arguments.
COMPLETES: Final = "_BEANLITE_COMPLETE"
