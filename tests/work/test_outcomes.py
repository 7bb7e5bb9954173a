"""The note that a failure leaves on its job."""

import pytest

from beanlite.worker.outcomes import note_of


def failure(text):
    with pytest.raises(ValueError, match="could not convert") as error:
        float(text)
    return error.value


def test_note_of_a_long_error_has_its_line_and_the_end():
    note = note_of(failure("é" * 5000))
    line, blank, rest = note.split("\n", 2)
    assert ("éé" in line, blank, rest[-4:]) == (True, "", "éé'\n")
    assert 4090 < len(note.encode()) <= 4096


def test_note_of_an_error_that_was_not_raised_is_its_line():
    assert note_of(TimeoutError("not done within 2 s")) == "TimeoutError: not done within 2 s\n"
