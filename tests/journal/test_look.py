"""A look into a file tells of the file only what is so."""

import signal
from functools import partial

import pytest

from beanlite.core.where import Where
from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.tools.filling import filling
from beanlite.journal.sqlite.tools.look import looking
from tests.journal.test_filling import fill, job


def raise_it(error, *_):
    raise error


@pytest.mark.parametrize(
    ("look_for", "interrupt"),
    [
        (lambda look: look.list_jobs({"where": ["n=1"], "limit": 10}), partial(raise_it, KeyboardInterrupt)),
        (lambda look: look.list_jobs({"where": ["n=1"], "limit": 10}), lambda *_: signal.raise_signal(signal.SIGINT)),
        (lambda look: look.group_jobs({"where": ["n=1"], "fact": "tube"}), partial(raise_it, KeyboardInterrupt)),
    ],
)
def test_ctrl_c_amid_a_look_is_no_damage(path, monkeypatch, look_for, interrupt):
    fill(path, [job(1, b'{"n": 1}')])
    monkeypatch.setattr(Where, "fits", interrupt)
    with looking(path) as look, pytest.raises(KeyboardInterrupt):
        look_for(look)


def test_ctrl_c_at_a_later_row_or_before_a_function_is_no_damage(path):
    fill(path, [job(number) for number in range(1, 4)])
    with looking(path) as look:
        for call in (look._function, lambda name, function: look._connection.create_function(name, 1, function)):
            call("at_third", lambda number: raise_it(KeyboardInterrupt) if number == 3 else number)
            with pytest.raises(KeyboardInterrupt):
                look._rows("SELECT at_third(id) FROM jobs", {})
            assert len(look._rows("SELECT id FROM jobs", {})) == 3


def test_an_error_of_our_own_amid_a_look_is_no_damage(path, monkeypatch):
    fill(path, [job(1)])
    monkeypatch.setattr(Where, "fits", partial(raise_it, RecursionError))
    with looking(path) as look, pytest.raises(RecursionError):
        look.list_jobs({"where": ["n=1"], "limit": 10})


@pytest.mark.parametrize("request_", [{"fact": "note"}, {"fact": "state", "tube_like": "mail*"}])
def test_text_that_is_damaged_is_not_taken_for_a_signal(path, request_):
    with filling(path) as queue:
        queue.add(job(1, tube="mailbox"))
        queue.connection.execute("INSERT INTO notes VALUES (1, 'it failed', 0)")
    path.write_bytes(path.read_bytes().replace(b"mailbox", b"mail\xffox").replace(b"it failed", b"it\xfffailed"))
    with looking(path) as look:
        if "tube_like" in request_:
            assert look.group_jobs(request_)["groups"] == [["ready", 1]]
        else:
            with pytest.raises(JournalRefused, match="is damaged"):
                look.group_jobs(request_)
