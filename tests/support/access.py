"""Files of access, and servers that have one."""

import json
import signal
from hashlib import sha256

from tests.support.certificates import wrap
from tests.support.wire import Wire, until

TOKEN = "0123456789abcdef" * 4
DIGEST = sha256(TOKEN.encode()).hexdigest()


def allow(who, tubes, *roles):
    """Return a rule for one identity or a list of them; without roles, for all but that of an operator."""
    who = [who] if isinstance(who, str) else who
    roles = roles or ("producer", "worker", "reader")
    return f"[[allow]]\nwho = {json.dumps(who)}\nrole = {json.dumps(roles)}\ntubes = {json.dumps(tubes)}\n"


class RuledServer:
    """A server with a file of access."""

    def __init__(self, server, rules):
        self.server = server
        self.rules = rules

    def connect(self, context=None):
        """Open a connection; with a context, over TLS."""
        return Wire(self.server.connect() if context is None else wrap(self.server, context))

    def reload(self, text):
        """Replace the rules; return what the server logs meanwhile."""
        self.rules.write_text(text)
        before = len(self.server.log_text())
        self.server.signal(signal.SIGHUP)
        until(lambda: "reloaded" in self.server.log_text()[before:])
        return self.server.log_text()[before:]
