"""Lines that begin with no client's command, and all lines of a client up to the first that does.

Until then a client may speak another protocol, which costs it the connection.
"""

from __future__ import annotations

from typing import Final

from beanlite.protocol import replies
from beanlite.protocol.blocked import CLOSING
from beanlite.protocol.session import Session
from beanlite.protocol.strangers import UNKNOWN_MAX, is_foreign

AUTH: Final = b"auth"
PAUSE_TUBE: Final = b"pause-tube"


def odd_line(session: Session, line: bytes, now_ns: int) -> bytes | None:
    """Carry out a line for which the session has found no command."""
    if session.authenticate is not None and (line == AUTH or line.startswith(AUTH + b" ")):
        return _authenticate(session, line)
    return (_other_line if session.is_known else _early_line)(session, line, now_ns)


def _authenticate(session: Session, line: bytes) -> bytes:
    """Carry out the command auth, which has to be the first line and is not tried twice."""
    authenticate = session.authenticate
    is_first = not session.is_known and not session.unknown
    if authenticate is not None and is_first and authenticate(line.partition(b" ")[2]):
        session.unknown = 1  # so that it is not tried again, and act-for may still follow
        return replies.AUTHENTICATED
    session.service.unauthorized(session.client.peer.address, AUTH.decode())
    session.blocked = CLOSING
    return replies.UNAUTHORIZED


def _early_line(session: Session, line: bytes, now_ns: int) -> bytes | None:
    """Carry out a line of a client that has sent no word of the protocol yet."""
    if is_foreign(line):
        is_stranger(session, line)
        return replies.UNKNOWN_COMMAND
    word, blank, args = line.partition(b" ")
    command = session.words.find(word, bare=not blank)
    if command is not None:
        session.last = command
        answer = command.give(session, args, now_ns)
    else:
        answer = _other_line(session, line, now_ns)
        if answer == replies.UNKNOWN_COMMAND or b"\0" in line:
            is_stranger(session, line)
            return answer
    session.is_known = True
    return answer


def is_stranger(session: Session, line: bytes) -> bool:
    """Count a line of no command, or its beginning; close the session, and return True, if that was one too many."""
    session.unknown += 1
    if session.unknown < UNKNOWN_MAX and not is_foreign(line):
        return False
    session.service.refused("protocol")
    session.blocked = CLOSING
    return True


def _other_line(session: Session, line: bytes, now_ns: int) -> bytes | None:
    """Carry out a line that may be an operator's command, or what the reference takes by prefix."""
    if session.operator:
        word, _, args = line.partition(b" ")
        command = session.words.operators.get(word)
        if command is not None:
            session.last = command
            return command.give(session, args, now_ns)
    if b"\0" in line:
        return replies.BAD_FORMAT
    if line.startswith(b"quit"):
        session.blocked = CLOSING
        return None
    if line.startswith(PAUSE_TUBE):
        return session.words.with_arguments[PAUSE_TUBE].give(session, line[len(PAUSE_TUBE) :], now_ns)
    more_than_should = line.startswith(tuple(session.words.bare))
    return replies.BAD_FORMAT if more_than_should else replies.UNKNOWN_COMMAND
