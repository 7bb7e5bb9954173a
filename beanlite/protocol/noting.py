"""The command that leaves a note on a job. ``docs/protocol.md`` describes it and its replies."""

from __future__ import annotations

from typing import Final

from beanlite.core.access import OPERATOR, WORKER
from beanlite.core.job import Job
from beanlite.core.notes import NOTE_MAX, is_note
from beanlite.protocol import arguments, replies
from beanlite.protocol.arguments import Put
from beanlite.protocol.session import Command, Session

WORD: Final = b"note"


class NoteLine(Put):
    """The line of a note, whose text comes next as its body."""

    __slots__ = ("job_id",)

    def __init__(self, job_id: int, size: int) -> None:
        super().__init__(0, 0, 0, size, ends_well=True, is_request=True)
        self.job_id = job_id


def new_note_command() -> Command:
    """Return the command, with a count of 0."""
    return Command(WORD, arguments.parse_id_and_size, _receive, in_stats=False)


def _receive(session: Session, args: tuple[int, int], _now_ns: int) -> bytes | None:
    """Carry out the line: have the text received that comes next."""
    line = NoteLine(*args)
    if line.size > NOTE_MAX:
        session.refuse(line, replies.NOTE_TOO_BIG)
    else:
        session.put = line
    return None


def finish_note(session: Session, line: NoteLine, text: bytes | None, now_ns: int) -> bytes:
    """Carry out a note whose text has come. ``text`` is None if CR LF does not follow it."""
    if text is None:
        return replies.EXPECTED_CRLF
    if not is_note(text):
        return replies.BAD_FORMAT
    engine, client = session.engine, session.client
    job = engine.jobs.find(line.job_id)
    if job is None or not _may_note(session, job):
        return replies.NOT_FOUND
    if not engine.notes.has_room(job, text):
        return replies.OUT_OF_MEMORY
    engine.notes.set(job, text, client.peer, now_ns, by_operator=job.holder is not client)
    session.waits = True
    return replies.NOTED


def _may_note(session: Session, job: Job) -> bool:
    """Whether the client has the job reserved, or is an operator."""
    if job.holder is session.client:
        return session.may_with(WORKER, job)
    return session.operator and session.may_with(OPERATOR, job)
