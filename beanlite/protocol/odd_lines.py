"""Lines that begin with no client's command, and all lines of a client up to the first that does.

Until then a client may speak another protocol, which costs it the connection.
"""

from __future__ import annotations

from beanlite.protocol import commands, replies
from beanlite.protocol.arguments import parse_pause
from beanlite.protocol.blocked import CLOSING
from beanlite.protocol.session import Session
from beanlite.protocol.strangers import UNKNOWN_MAX, is_foreign


def odd_line(session: Session, line: bytes, now_ns: int) -> bytes | None:
    """Carry out a line for which the session has found no command."""
    return (_other_line if session.is_known else _early_line)(session, line, now_ns)


def _early_line(session: Session, line: bytes, now_ns: int) -> bytes | None:
    """Carry out a line of a client that has sent no word of the protocol yet."""
    if is_foreign(line):
        is_stranger(session, line)
        return replies.UNKNOWN_COMMAND
    word, blank, args = line.partition(b" ")
    command = session.service.find(word, bare=not blank)
    if command is not None:
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
        command = session.service.operator_commands.get(word)
        if command is not None:
            return command.give(session, args, now_ns)
    if b"\0" in line:
        return replies.BAD_FORMAT
    if line.startswith(b"quit"):
        session.blocked = CLOSING
        return None
    if line.startswith(b"pause-tube"):
        given = parse_pause(line[len(b"pause-tube") :])
        if given is None:
            return replies.BAD_FORMAT
        session.service.with_arguments[b"pause-tube"].count += 1
        return commands.pause_tube(session, given, now_ns)
    more_than_should = line.startswith(tuple(session.service.bare))
    return replies.BAD_FORMAT if more_than_should else replies.UNKNOWN_COMMAND
