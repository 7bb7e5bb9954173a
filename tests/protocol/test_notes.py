"""Notes on jobs: who may leave one, what is said of it, and what memory takes them."""

import base64
import json

import pytest

from beanlite.core.access import OPERATOR, WORKER
from beanlite.core.events import BURY, DELETE, NOTE
from beanlite.core.memory import NOTE_BYTES, PART
from beanlite.core.notes import LINE_MAX, NOTE_MAX, first_line
from tests.support.core import put

WHY = "Zugriff verweigert für Jörg\n  at mail.py:17\n"


@pytest.fixture
def worker(core):
    """A client that has reserved job 1."""
    session = core.client()
    put(core, session, ttr_s=60)
    core.send(session, b"reserve\r\n")
    return session


def note(job_id, text):
    text = text if isinstance(text, bytes) else text.encode()
    return b"note %d %d\r\n%b\r\n" % (job_id, len(text), text)


def shown(core, operator, job_id=1):
    return json.loads(core.send(operator.session, b"show-job %d\r\n" % job_id).split(b"\r\n")[1])["note"]


# -- the word


def test_holder_leaves_a_note_and_takes_it_away(core, operator, worker):
    assert core.send(worker, note(1, WHY)) == b"NOTED\r\n"
    assert shown(core, operator) == WHY
    assert core.send(worker, note(1, "again")) == b"NOTED\r\n"
    assert shown(core, operator) == "again"
    assert core.send(worker, note(1, "")) == b"NOTED\r\n"
    assert shown(core, operator) is None


def test_note_waits_until_it_is_stored(core, worker):
    core.store()
    core.receive(worker, note(1, "x"))
    assert worker.waits
    assert core.store().notes == [(1, b"x")]
    assert core.store().notes == []


@pytest.mark.parametrize("cut", range(1, 14))
def test_note_may_come_in_two_parts(core, operator, worker, cut):
    data = note(1, "abc")
    assert core.send(worker, data[:cut]) == b""
    assert core.send(worker, data[cut:] + b"stats-job 9\r\n") == b"NOTED\r\nNOT_FOUND\r\n"
    assert shown(core, operator) == "abc"


def test_largest_note_is_taken_and_a_larger_one_is_skipped(core, operator, worker):
    assert core.send(worker, note(1, b"x" * NOTE_MAX)) == b"NOTED\r\n"
    assert core.send(worker, note(1, b"y" * (NOTE_MAX + 1)) + b"touch 1\r\n") == b"NOTE_TOO_BIG\r\nTOUCHED\r\n"
    assert shown(core, operator) == "x" * NOTE_MAX


@pytest.mark.parametrize("text", [b"\xff", b"a\0b", b"\xed\xa0\x80"])
def test_note_that_is_no_text_is_refused(core, operator, worker, text):
    assert core.send(worker, note(1, text)) == b"BAD_FORMAT\r\n"
    assert shown(core, operator) is None


@pytest.mark.parametrize("line", [b"note\r\n", b"note 1\r\n", b"note x 1\r\n", b"note 1 -1\r\n", b"note 1 1 1\r\n"])
def test_malformed_line_is_refused(core, worker, line):
    assert core.send(worker, line) in {b"BAD_FORMAT\r\n", b"UNKNOWN_COMMAND\r\n"}
    assert core.send(worker, b"touch 1\r\n") == b"TOUCHED\r\n"


def test_text_without_its_end_is_refused(core, operator, worker):
    assert core.send(worker, b"note 1 2\r\nabcd") == b"EXPECTED_CRLF\r\n"
    assert shown(core, operator) is None


def test_only_the_holder_and_operators_leave_a_note(core, operator, worker):
    other = core.client()
    put(core, other)
    for job_id in (1, 2, 3):
        assert core.send(other, note(job_id, "x")) == b"NOT_FOUND\r\n"
    core.send(worker, b"bury 1 0\r\n")
    assert core.send(worker, note(1, "late")) == b"NOT_FOUND\r\n"
    for job_id, reply in ((1, b"NOTED\r\n"), (2, b"NOTED\r\n"), (3, b"NOT_FOUND\r\n")):
        assert core.send(operator.session, note(job_id, "seen")) == reply
    assert [shown(core, operator, job_id) for job_id in (1, 2)] == ["seen", "seen"]


def test_operator_of_one_tube_leaves_notes_there(core, operator):
    session = core.limited((OPERATOR, b"mail"), (WORKER, b"*"))
    put(core, operator.session)
    core.send(operator.session, b"use mail\r\n")
    put(core, operator.session)
    assert core.send(session, note(1, "x") + note(2, "x")) == b"NOT_FOUND\r\nNOTED\r\n"
    assert core.send(session, b"watch mail\r\nreserve-job 1\r\n").endswith(b"RESERVED 1 1\r\nx\r\n")
    assert core.send(session, note(1, "x")) == b"NOTED\r\n"


def test_body_of_a_note_that_is_denied_is_skipped(core):
    session = core.limited(("producer", b"*"))
    assert core.send(session, note(1, "delete 1") + b"stats-job 1\r\n") == b"UNAUTHORIZED\r\n" * 2


# -- what becomes of it


def test_note_stays_until_the_job_is_deleted(core, operator, worker):
    core.send(worker, note(1, "why"))
    core.store()
    for line in (b"release 1 0 0", b"reserve", b"bury 1 0", b"kick 1"):
        core.send(worker, line + b"\r\n")
        assert shown(core, operator) == "why"
    operator.change("move", ids=[1], to="other")
    operator.change("copy", ids=[1], to="other")
    assert [shown(core, operator, job_id) for job_id in (1, 2)] == ["why", None]
    core.store()
    core.send(worker, b"delete 1\r\n")
    assert core.store().notes == [(1, b"")]
    assert core.engine.memory.note_bytes == 0


def test_note_of_a_job_that_never_was_stored_leaves_nothing(core, worker):
    core.send(worker, note(1, "why") + b"delete 1\r\n")
    changes = core.store()
    assert (changes.jobs, changes.notes) == ([], [(1, b"")])
    assert core.engine.memory.note_bytes == 0


def test_deletion_by_an_operator_takes_the_note_along(core, operator, worker):
    core.send(worker, note(1, "why"))
    core.store()
    operator.change("delete", ids=[1])
    assert core.store().notes == [(1, b"")]


def test_job_without_a_note_takes_no_memory_for_it(core, worker):
    before = core.engine.memory.used_bytes
    core.send(worker, note(1, "why"))
    assert core.engine.memory.used_bytes == before + NOTE_BYTES + 3
    core.send(worker, note(1, ""))
    assert core.engine.memory.used_bytes == before


def test_notes_take_a_quarter_of_the_memory_at_most(core, operator, worker):
    engine = core.engine
    engine.bound_memory(4_000_000, 4_000_000, fetches=True)
    for _ in range(400):
        put(core, worker)
    core.store()
    replies = [core.send(operator.session, note(job_id, b"x" * NOTE_MAX)) for job_id in range(1, 402)]
    taken = replies.count(b"NOTED\r\n")
    assert replies == [b"NOTED\r\n"] * taken + [b"OUT_OF_MEMORY\r\n"] * (401 - taken)
    assert 100 < taken < 400
    assert engine.memory.note_bytes < engine.memory.max_bytes // PART
    core.store()
    assert core.send(operator.session, note(1, "y" * NOTE_MAX)) == b"NOTED\r\n"  # in place of another one
    assert core.send(operator.session, note(2, "y")) == b"NOTED\r\n"
    assert core.send(operator.session, note(taken + 1, b"x" * NOTE_MAX)) == b"NOTED\r\n"
    assert core.send(operator.session, note(2, b"x" * NOTE_MAX)) == b"OUT_OF_MEMORY\r\n"
    assert core.send(operator.session, note(1, "")) == b"NOTED\r\n"
    reply = operator.ask("change-jobs", do="note", note="y" * NOTE_MAX, tube="default", limit=100)
    assert reply["stopped"] == "OUT_OF_MEMORY"


def test_full_disk_takes_no_note_but_lets_one_be_taken_away(core, worker):
    core.send(worker, note(1, "why"))
    core.engine.admission.refuse_puts()
    assert core.send(worker, note(1, "other")) == b"OUT_OF_MEMORY\r\n"
    assert core.send(worker, note(1, "")) == b"NOTED\r\n"


def test_notes_in_a_batch_take_room_from_the_puts_in_it(core, worker):
    core.engine.bound_memory(2_000_000, 2_000_000, fetches=True)
    room = core.engine.admission.room_bytes
    core.send(worker, note(1, b"x" * NOTE_MAX))
    assert core.engine.admission.room_bytes <= room - NOTE_MAX // 2


# -- operators


def test_operators_leave_notes_on_many_jobs(core, operator, worker):
    put(core, worker)
    assert operator.change("note", note="looked at", tube="default", by="ann") == (2, 0)
    assert [shown(core, operator, job_id) for job_id in (1, 2)] == ["looked at"] * 2
    assert operator.change("note", note="", ids=[2]) == (1, 0)
    assert [shown(core, operator, job_id) for job_id in (1, 2)] == ["looked at", None]
    events = [event for event in core.store().events if event.what == NOTE]
    assert [(event.body, event.by.person, event.by_operator) for event in events] == [
        (b"looked at", "ann", True),
        (b"looked at", "ann", True),
        (b"", "", True),
    ]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"do": "note"}, "note needs note"),
        ({"do": "bury", "note": "x"}, "bury takes no note"),
        ({"do": "note", "note": "ü" * 2049}, "note: a note has at most 4096 bytes of UTF-8, and none of them is NUL"),
        ({"do": "note", "note": "a\0"}, "note: a note has at most 4096 bytes of UTF-8, and none of them is NUL"),
    ],
)
def test_request_for_a_note_is_checked(operator, what, why):
    assert operator.refusal("change-jobs", ids=[1], **what) == why


def test_list_has_the_first_line_of_notes_if_asked_for(core, operator, worker):
    put(core, worker)
    core.send(worker, note(1, WHY))
    assert [job["note"] for job in operator.ask("list-jobs", notes=True)["jobs"]] == [
        "Zugriff verweigert für Jörg",
        None,
    ]
    assert "note" not in operator.ask("list-jobs")["jobs"][0]


@pytest.mark.parametrize(
    ("text", "line"),
    [("", ""), ("a", "a"), ("\n\r\n a b \r\nc", "a b"), ("ü" * 500, "ü" * LINE_MAX), (" \n", "")],
)
def test_first_line_is_the_first_that_is_not_blank(text, line):
    assert first_line(text.encode()) == line


def test_note_is_an_event(core, worker):
    core.store()
    core.engine.ledger.start_recording()
    before = core.engine.memory.other_bytes
    core.send(worker, note(1, "why") + b"bury 1 0\r\n")
    assert core.engine.memory.other_bytes == before + NOTE_BYTES + len("why")
    assert core.engine.ledger.event_bytes == len("why")  # in the event as well
    core.send(worker, b"delete 1\r\n")
    changes = core.store()
    assert [(event.what, event.body) for event in changes.events] == [(NOTE, b"why"), (BURY, None), (DELETE, None)]
    assert not changes.events[0].by_operator
    assert core.engine.memory.other_bytes == before


def test_body_and_note_are_shown_apart(core, operator, worker):
    core.send(worker, note(1, "why"))
    reply = json.loads(core.send(operator.session, b"show-job 1\r\n").split(b"\r\n")[1])
    assert (base64.b64decode(reply["body"]), reply["note"]) == (b"x", "why")
