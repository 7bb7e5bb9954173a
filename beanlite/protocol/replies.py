"""The texts of replies. Those with numbers or a body are templates, to be filled in with ``%``.

Those that are sent most have functions, in which the template is compiled to a concatenation.
"""

from typing import Final

END: Final = b"\r\n"

# To put
EXPECTED_CRLF: Final = b"EXPECTED_CRLF\r\n"
JOB_TOO_BIG: Final = b"JOB_TOO_BIG\r\n"
DRAINING: Final = b"DRAINING\r\n"
OUT_OF_MEMORY: Final = b"OUT_OF_MEMORY\r\n"

# To the reserves, the peeks and offer; id, size and body follow
RESERVED: Final = b"RESERVED"
FOUND: Final = b"FOUND"
OFFERED: Final = b"OFFERED"
RESERVED_BATCH: Final = b"RESERVED_BATCH %d\r\n"
BATCH_OF_ONE: Final = RESERVED_BATCH % 1 + RESERVED  # to a client that is given a job while it waits for a batch
DEADLINE_SOON: Final = b"DEADLINE_SOON\r\n"
TIMED_OUT: Final = b"TIMED_OUT\r\n"

# To commands that change a job
DELETED: Final = b"DELETED\r\n"
RELEASED: Final = b"RELEASED\r\n"
BURIED: Final = b"BURIED\r\n"
TOUCHED: Final = b"TOUCHED\r\n"
KICKED: Final = b"KICKED %d\r\n"
KICKED_JOB: Final = b"KICKED\r\n"
TAKEN: Final = b"TAKEN\r\n"
DECLINED: Final = b"DECLINED\r\n"
NOTED: Final = b"NOTED\r\n"
NOTE_TOO_BIG: Final = b"NOTE_TOO_BIG\r\n"

# To commands on tubes
USING: Final = b"USING "  # followed by the tube's name and END: concatenation is cheaper than a template
WATCHING: Final = b"WATCHING %d\r\n"
NOT_IGNORED: Final = b"NOT_IGNORED\r\n"
PAUSED: Final = b"PAUSED\r\n"

# Statistics and lists: size, body
OK: Final = b"OK %d\r\n%b\r\n"

# To an operator's request that is refused: size, and an object that says why
REFUSED: Final = b"REFUSED %d\r\n%b\r\n"

# To clients that watch, unasked: size, and an object
EVENT: Final = b"EVENT %d\r\n%b\r\n"

# To name
NAMED: Final = b"NAMED\r\n"

# To auth; if the token is wrong, UNAUTHORIZED
AUTHENTICATED: Final = b"AUTHENTICATED\r\n"

# To act-for; if that is not permitted, UNAUTHORIZED
ACTING: Final = b"ACTING\r\n"

# To any command
UNAUTHORIZED: Final = b"UNAUTHORIZED\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
BAD_FORMAT: Final = b"BAD_FORMAT\r\n"
UNKNOWN_COMMAND: Final = b"UNKNOWN_COMMAND\r\n"
INTERNAL_ERROR: Final = b"INTERNAL_ERROR\r\n"

# The replies that are errors
ERRORS: Final = [
    EXPECTED_CRLF,
    JOB_TOO_BIG,
    DRAINING,
    OUT_OF_MEMORY,
    NOT_IGNORED,
    NOT_FOUND,
    BAD_FORMAT,
    UNKNOWN_COMMAND,
    INTERNAL_ERROR,
    UNAUTHORIZED,
    NOTE_TOO_BIG,
]


def inserted(job_id: int) -> bytes:
    """Make the reply to a put."""
    return b"INSERTED %d\r\n" % job_id


def with_job(words: bytes, job_id: int, body: bytes) -> bytes:
    """Make a reply with a job: RESERVED, FOUND, OFFERED or BATCH_OF_ONE."""
    return b"%b %d %d\r\n%b\r\n" % (words, job_id, len(body), body)
