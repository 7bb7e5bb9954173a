"""Rights: which tubes a pattern covers, and which rights include others."""

import itertools
from fnmatch import fnmatchcase

import pytest

from beanlite.core.access import ANY, OPERATOR, PRODUCER, READER, ROLES, WORKER, Rights, covers


def texts(alphabet, longest):
    for size in range(1, longest + 1):
        for letters in itertools.product(alphabet, repeat=size):
            yield "".join(letters)


NAMES = list(texts("ab", 4))
GLOBS = list(texts("ab*?", 3))


@pytest.mark.parametrize("glob", GLOBS)
def test_glob_covers_the_names_that_it_matches(glob):
    for name in NAMES:
        assert covers(glob.encode(), name.encode()) == fnmatchcase(name, glob), name


def test_glob_that_covers_a_pattern_matches_all_that_it_matches():
    covered = 0
    for glob, pattern in itertools.product(GLOBS, GLOBS):
        if covers(glob.encode(), pattern.encode()):
            covered += glob != pattern
            assert all(fnmatchcase(name, glob) for name in NAMES if fnmatchcase(name, pattern)), (glob, pattern)
    assert covered > 500


@pytest.mark.parametrize(
    ("glob", "pattern", "is_covered"),
    [
        (b"*", b"*", True),
        (b"mail.*", b"mail.*", True),
        (b"mail.*", b"mail.de.*", True),
        (b"mail.*", b"mail.?", True),
        (b"mail.?", b"mail.*", False),
        (b"mail.*", b"mail*", False),
        (b"mail.*", b"*", False),
        (b"*.de", b"*.mail.de", True),
    ],
)
def test_pattern_is_covered(glob, pattern, is_covered):
    assert covers(glob, pattern) == is_covered


def test_many_stars_take_no_longer_than_their_number():
    assert not covers(b"*a" * 99 + b"b", b"a" * 200)  # with backtracking to each star it would never end


@pytest.mark.parametrize("role", ROLES)
def test_role_is_had_on_its_tubes_alone(role):
    rights = Rights([(role, b"mail.*"), (role, b"sms")])
    others = set(ROLES) - {role} if role != OPERATOR else set()
    assert all(rights.may(each, name) for each in (role, ANY) for name in (b"mail.de", b"sms", b"mail.?"))
    assert not any(rights.may(each, name) for each in (*ROLES, ANY) for name in (b"mail", b"sms.de", b"*"))
    assert not any(rights.may(each, b"sms") or rights.has(each) for each in others)


def test_role_of_one_rule_is_not_had_on_the_tubes_of_another():
    rights = Rights([(PRODUCER, b"out"), (WORKER, b"in")])
    assert rights.may(PRODUCER, b"out")
    assert rights.may(WORKER, b"in")
    assert not rights.may(PRODUCER, b"in")
    assert not rights.may(WORKER, b"out")


def test_operator_of_all_tubes_may_do_everything():
    assert Rights([(OPERATOR, b"*")]).everything
    assert not Rights([(OPERATOR, b"mail.*")]).everything
    assert not Rights([(each, b"*") for each in (PRODUCER, WORKER, READER)]).everything
    assert not Rights([]).everything


@pytest.mark.parametrize(
    ("rights", "others", "includes"),
    [
        ([(WORKER, b"a")], [(WORKER, b"a")], True),
        ([(WORKER, b"a*")], [(WORKER, b"a"), (WORKER, b"ab?")], True),
        ([(OPERATOR, b"a*")], [(WORKER, b"a"), (READER, b"ab")], True),
        ([(WORKER, b"a"), (READER, b"b")], [], True),
        ([(WORKER, b"a")], [(READER, b"a")], False),
        ([(WORKER, b"a")], [(WORKER, b"a*")], False),
        ([(WORKER, b"*"), (READER, b"*"), (PRODUCER, b"*")], [(OPERATOR, b"a")], False),
        ([], [(WORKER, b"a")], False),
    ],
)
def test_rights_include_others_of_which_nothing_is_lost(rights, others, includes):
    assert Rights(rights).include(Rights(others)) == includes


def test_answers_are_remembered_within_bounds():
    rights = Rights([(WORKER, b"a*")])
    for number in range(2500):
        assert rights.may(WORKER, b"a%d" % number)
        assert not rights.may(WORKER, b"b%d" % number)
    assert max(map(len, rights._answers.values())) <= 1000


def test_only_globs_are_looked_at_one_by_one():
    rights = Rights([*((READER, b"tube-%d" % number) for number in range(200)), (WORKER, b"mail.*"), (WORKER, b"?")])
    assert [rights.looks(role) for role in (PRODUCER, READER, WORKER, ANY)] == [1, 1, 3, 3]
    assert all(rights.may(READER, b"tube-%d" % number) for number in range(200))
    assert not rights.may(READER, b"tube-200")
