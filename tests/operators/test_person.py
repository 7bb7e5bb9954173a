"""Who has typed a command, and as what name the server is told."""

import os

import pytest

from beanlite.console.live import identity_for, login_name, on_behalf_of
from beanlite.core.tube import is_person


@pytest.fixture
def nameless(monkeypatch):
    """No name in the environment."""
    for name in ("SUDO_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_it_is_the_one_who_has_called_sudo(nameless):
    nameless.setenv("LOGNAME", "root")
    assert login_name() == "root"
    nameless.setenv("SUDO_USER", "ann")
    assert login_name() == "ann"


def test_a_user_without_a_name_has_none(nameless):
    nameless.setattr(os, "getuid", lambda: 0xFFFF_FFF0)  # as in a container that runs as any user
    assert login_name() == ""
    assert on_behalf_of("") == {}


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("ann", "ann"),
        ("a\x1b\u202eb", "a··b"),
        ("\udcff", "·"),
        ("x" * 500, "x" * 128),
        ("ä" + "€" * 50, "ä" + "€" * 42),
    ],
)
def test_any_name_becomes_one_that_the_server_takes(name, sent):
    assert on_behalf_of(name) == {"by": sent}
    assert is_person(sent)


def test_no_name_becomes_that_of_another_person():
    names = ["ann", "x" * 128, "x" * 129, "x" * 130, "a\x1bb", "a·b", "ä" * 100]
    taken = [identity_for(name) for name in names]
    assert all(map(is_person, taken))
    assert len(set(taken)) == len(names)
    assert taken[:2] == names[:2]
    assert taken[2].startswith("x" * 100)


@pytest.mark.parametrize("name", ["x" * 129, "a\x1bb"])
def test_name_that_looks_shortened_is_another_than_the_shortened_one(name):
    shortened = identity_for(name)
    assert is_person(identity_for(shortened))
    assert identity_for(shortened) != shortened
