"""Recognises clients that speak another protocol, above all browsers.

Any page can have a browser send what it likes to a port of this machine, as the body of a request. What a browser sends
before the body, the page can't choose.
"""

import re
from typing import Final

# The connection is closed at this line if none so far has begun with a word of the protocol: a person at a terminal may
# mistype some, and so may programs that try what the server understands.
UNKNOWN_MAX: Final = 16
# A request's line, whole (`GET / HTTP/1.1`, `OPTIONS sip:a SIP/2.0`) or cut; a field of its header; and the record of
# TLS that opens a connection. No command begins with capitals or has a colon in its first word, and none that ends with
# three words is like this, except for a person's name of two words: browsers send HTTP as the last one.
_FOREIGN: Final = re.compile(
    rb"(?:(?!act-for )[^ ]+ [^ ]+ [A-Z]+|act-for [^ ]+ HTTP)/[0-9.]+\Z|[A-Z]+ (?:/|\*|[a-z]+:)|[A-Za-z0-9-]+:|\x16\x03"
)


def is_foreign(line: bytes) -> bool:
    """Whether a line, or the beginning of one, shows that a client speaks another protocol."""
    return _FOREIGN.match(line) is not None
