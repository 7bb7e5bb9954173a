"""Policies: which values keys take, which pattern wins for a tube, and what is odd in them."""

import os
import random
import re
from fnmatch import fnmatchcase
from itertools import product

import pytest

from beanlite.core.job import SECOND_NS, U32_MAX
from beanlite.core.policies import (
    GLOBS_MAX,
    KEYS,
    OFF,
    ROWS_MAX,
    Glob,
    Policies,
    PolicyRow,
    check_row,
    is_pattern,
    text_of_value,
)
from beanlite.core.policy_changes import changed, changes_of, texts_of, warnings
from beanlite.core.rules import Rules


def policies(*texts):
    """Return policies of lines such as "mail.* max_tries=3 retry=5s"."""
    made = Policies()
    made.change([PolicyRow(pattern, key, value, 0.0, "") for (pattern, key), value in values(*texts).items()])
    return made


def values(*texts):
    found = {}
    for text in texts:
        pattern, *pairs = text.split()
        found |= {(pattern.encode(), pair.partition("=")[0]): pair.partition("=")[2] for pair in pairs}
    return found


def effective(tube, *texts):
    """Return the value and the pattern of each key that holds for a tube."""
    found = policies(*texts).effective(tube.encode())
    return {key: f"{row.pattern.decode()} {row.value}" for key, row in found.items()}


# -- values


def rules(key, value):
    made = Rules()
    KEYS[key](made, value)
    return made


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("max_tries", "1", {"max_tries": 1}),
        ("max_tries", "1000000", {"max_tries": 1_000_000}),
        ("then", "bury", {"then_to": None}),
        ("then", "move:dead", {"then_to": b"dead"}),
        ("retry", "5s", {"retry_s": 5, "retry_most_s": 5}),
        ("retry", "5s..1h", {"retry_s": 5, "retry_most_s": 3600}),
        ("retry", "2m..2m", {"retry_s": 120, "retry_most_s": 120}),
        ("retry", "999999d", {"retry_s": U32_MAX, "retry_most_s": U32_MAX}),
        ("max_reserved", "4294967295", {"max_reserved": U32_MAX}),
        ("rate", "10/s", {"token_ns": SECOND_NS // 10, "burst": 10}),
        ("rate", "300/m", {"token_ns": SECOND_NS // 5, "burst": 5}),
        ("rate", "5/h", {"token_ns": 720 * SECOND_NS, "burst": 1}),
        ("rate", "7/s", {"token_ns": 142_857_143, "burst": 7}),
        ("max_jobs", "10", {"max_jobs": 10}),
        ("fair", "true", {"fair": True}),
        ("unique", "waiting", {"unique": "waiting"}),
        ("unique", "present", {"unique": "present"}),
        ("ttl", "1d", {"ttl_ns": 86400 * SECOND_NS}),
        ("expired", "delete", {"expired_deletes": True, "expired_to": None}),
        ("expired", "move:old", {"expired_deletes": False, "expired_to": b"old"}),
    ],
)
def test_value_of_a_key_sets_rules(key, value, expected):
    made = rules(key, value)
    assert {name: getattr(made, name) for name in expected} == expected
    plain = Rules()
    names = [name for name in dir(plain) if not name.startswith("_")]
    assert {name for name in names if getattr(made, name) != getattr(plain, name)} <= expected.keys()
    check_row(b"mail", key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("max_tries", value) for value in ("", "0", "-1", "1000001", "1.5", "x", "٣", "1 ", "9" * 5000)],
        *[("then", value) for value in ("", "delete", "move:", "move:a b", "move:-a", "move:a*", "dead", "Bury")],
        *[("retry", value) for value in ("", "5", "0s", "5s..", "..5s", "5s..4s", "5s...9s", "5ms", "1w", "1000000s")],
        *[("rate", value) for value in ("", "10", "0/s", "10/d", "10/", "10 /s", "1000000/s")],
        *[("max_reserved", value) for value in ("0", "4294967296")],
        *[("max_jobs", value) for value in ("0", "4294967296")],
        *[("fair", value) for value in ("", "false", "True", "1")],
        *[("unique", value) for value in ("", "true", "all")],
        *[("ttl", value) for value in ("0s", "1d..2d", "never")],
        *[("expired", value) for value in ("", "kick", "move:")],
    ],
)
def test_other_values_are_refused_with_their_key(key, value):
    with pytest.raises(ValueError, match=rf"^{key}: "):
        check_row(b"mail", key, value)


def test_destination_that_is_not_utf_8_is_refused_in_words():
    with pytest.raises(ValueError, match=r"^then: .* is neither bury nor move: with the name of a tube$"):
        check_row(b"mail", "then", os.fsdecode(b"move:\x80"))


@pytest.mark.parametrize("key", KEYS)
def test_each_key_can_be_off(key):
    assert check_row(b"mail", key, OFF) is None


def test_unknown_key_and_bad_pattern_are_refused():
    with pytest.raises(ValueError, match=r"^'retries' is no key of a policy: max_tries, then, "):
        check_row(b"mail", "retries", "5")
    with pytest.raises(ValueError, match=r"^'a b' is neither the name of a tube nor a pattern$"):
        check_row(b"a b", "max_tries", "5")


@pytest.mark.parametrize("pattern", ["mail", "*", "?", "mail.*", "a-b", "$(x)", "*-", "x" * 200])
def test_pattern_is_a_name_or_a_glob(pattern):
    assert is_pattern(pattern.encode())


@pytest.mark.parametrize("pattern", ["", "-a", "a b", "[ab]", "a\n", "ä", "x" * 201, "a,b"])
def test_no_other_text_is_a_pattern(pattern):
    assert not is_pattern(pattern.encode())


def test_numbers_and_true_are_values():
    assert [text_of_value(value) for value in (5, "5", True)] == ["5", "5", "true"]
    for value in (False, 1.5, None, [], {}):
        with pytest.raises(ValueError, match=r'^a value is text such as "off", a whole number or true$'):
            text_of_value(value)


# -- precedence


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ("mail.de", "mail.d?"),
        ("mail.de", "*****************mail.de"),
        ("mail.*", "*"),
        ("mail.*", "mai*"),
        ("mail.d?", "mail.*"),
        ("*.de", "*e"),
        ("*il.de", "mail.*"),
        ("*mail*", "mail?*"),
        ("mail*de", "mail.d*"),
    ],
)
def test_more_specific_pattern_wins(more, less):
    for lines in ([f"{more} max_tries=1", f"{less} max_tries=2"], [f"{less} max_tries=2", f"{more} max_tries=1"]):
        assert effective("mail.de", *lines) == {"max_tries": f"{more} 1"}


def test_each_key_has_a_winner_of_its_own():
    lines = ["* max_tries=9 retry=1s", "mail.* rate=10/s max_tries=5", "mail.de retry=2s"]
    assert effective("mail.de", *lines) == {"max_tries": "mail.* 5", "retry": "mail.de 2s", "rate": "mail.* 10/s"}
    assert effective("mail", *lines) == {"max_tries": "* 9", "retry": "* 1s"}


def test_off_exempts_a_tube_from_one_key():
    made = policies("* max_tries=9 retry=1s", "mail max_tries=off")
    assert effective("mail", "* max_tries=9", "mail max_tries=off") == {"max_tries": "mail off"}
    found = made.rules_of(b"mail")
    assert (found.max_tries, found.retry_s) == (0, 1)
    assert policies("* max_tries=9", "mail max_tries=off").rules_of(b"mail") is None


def test_tubes_for_which_the_same_holds_share_their_rules():
    made = policies("*.a max_tries=9", "z.a retry=1s")
    assert made.rules_of(b"x.a") is made.rules_of(b"y.a") is not None
    assert made.rules_of(b"z.a") is not made.rules_of(b"y.a")
    assert made.rules_of(b"x") is None


def test_rules_of_very_many_combinations_are_not_all_remembered():
    values = {"max_tries": 5, "max_reserved": 3, "max_jobs": 7, "rate": "5/s", "ttl": "5s", "retry": "1s"}
    globs = [(f"*{key}-{number}*", f"{key}={value}") for key, value in values.items() for number in range(3)]
    made = policies(*(f"{glob} {pair}" for glob, pair in globs))
    for numbers in product(range(4), repeat=len(values)):
        name = ".".join(f"{key}-{number}" for key, number in zip(values, numbers, strict=True))
        rules = made.rules_of(name.encode())
        assert rules is None or len(rules.values) == len(values) - numbers.count(3)
    assert len(made._shared) < 2000


def test_name_is_matched_once_however_often_its_rules_are_asked_for(matched):
    made = policies("*-x fair=true", "*-y fair=true")
    for _ in range(4):
        assert made.rules_of(b"a-x").fair
    assert matched == ["a-x"]
    made.change([PolicyRow(b"*-x", "ttl", "1s", 0.0, "")])
    assert made.rules_of(b"a-x").ttl_ns == SECOND_NS


def test_rules_of_very_many_names_are_not_all_remembered():
    made = policies("*-x fair=true")
    for _ in range(2):
        for number in range(3000):
            assert made.rules_of(b"%d-x" % number).fair
            assert made.rules_of(b"%d-y" % number) is None
    assert len(made._answers) < 2000


def test_change_sets_and_unsets_keys():
    made = policies("* max_tries=9 retry=1s")
    made.change([PolicyRow(b"*", "retry", "2s", 0.0, "")], [(b"*", "max_tries")])
    assert {key: row.value for key, row in made.effective(b"x").items()} == {"retry": "2s"}
    made.change([], [(b"*", "retry")])
    assert made.effective(b"x") == {}
    assert made.rules_of(b"x") is None


def test_question_mark_matches_one_character_and_a_dollar_itself():
    assert effective("mail.de", "mail?de max_tries=1") != {}
    assert effective("mailde", "mail?de max_tries=1") == {}
    assert effective("mailxde", "mail.d* max_tries=1") == {}
    assert effective("a$(b)", "a$(*) max_tries=1") != {}


def test_globs_match_what_those_of_a_shell_match():
    chance = random.Random(1)
    for _ in range(500):
        glob = "".join(chance.choices("ab*?", k=chance.randrange(1, 7)))
        made = policies(f"{glob}* fair=true", f"*{glob} ttl=1d", f"{glob}? rate=1/s")
        for _ in range(20):
            name = "".join(chance.choices("ab", k=chance.randrange(1, 7)))
            expected = {"fair": f"{glob}*", "ttl": f"*{glob}", "rate": f"{glob}?"}
            found = set(made.effective(name.encode()))
            assert found == {key for key, each in expected.items() if fnmatchcase(name, each)}, (glob, name)


@pytest.fixture
def matched(monkeypatch):
    """The names that globs were tried with, which takes long where there are many."""
    names = []
    real = Glob.fits

    def fits(glob, name):
        names.append(name)
        return real(glob, name)

    monkeypatch.setattr(Glob, "fits", fits)
    return names


def test_many_long_globs_are_set_without_expressions(monkeypatch):
    def compiled(*_):
        raise AssertionError

    monkeypatch.setattr(re, "compile", compiled)
    monkeypatch.setattr(re, "match", compiled)
    globs = [f"{number}{'a*b?' * 45}" for number in range(GLOBS_MAX)]
    made = policies(*[f"{glob} max_tries=3" for glob in globs])
    assert len(made.effective(b"7" + b"ab." * 44)) == 0
    assert len(made.effective(b"7" + b"a.b." * 45)) == 1
    assert len(warnings(values(*[f"{glob} max_tries=3" for glob in globs]), [glob.encode() for glob in globs])) == 100


def test_which_patterns_a_glob_holds_for_as_well():
    chance = random.Random(2)
    for _ in range(300):
        glob, other = ("".join(chance.choices("ab*?", k=chance.randrange(2, 6))) for _ in range(2))
        glob += "*"
        odd = warnings(values(f"{other} max_tries=3", f"{glob} retry=1s"), [other.encode()])
        assert (odd == []) is fnmatchcase(other, glob.replace("?", "[!*]")), (glob, other)


def test_glob_is_tried_only_with_names_that_have_its_literals(matched):
    made = policies("mail.* fair=true", "*-dead ttl=1d", "*.eu.* rate=1/s", "a*c*e max_jobs=1")
    for name in ("x.mail.y", "mail", "dead-x", "eu", "x.eu", "a.c", "c.e"):
        assert made.effective(name.encode()) == {}
    assert matched == []
    assert len(made.effective(b"mail.eu.x-dead")) == 3
    assert matched == ["mail.eu.x-dead"] * 3


def test_warnings_try_globs_only_where_their_literals_are(matched):
    found = values("*-dead retry=1s", "*.eu.* retry=1s", *[f"mail{number} max_tries=3" for number in range(9)])
    assert len(warnings(found, [pattern for pattern, _ in found])) == 9
    assert matched == []
    assert warnings(found | values("x-dead max_tries=3"), [b"x-dead"]) == []
    assert matched == ["x-dead"]


# -- changes


def test_only_what_differs_is_a_change():
    before = values("* max_tries=9 retry=1s")
    wishes = {(b"*", "max_tries"): "9", (b"*", "retry"): "2s", (b"*", "rate"): None, (b"a", "fair"): "true"}
    changes = changes_of(before, wishes)
    assert changes == {(b"*", "retry"): "2s", (b"a", "fair"): "true"}
    assert changed(before, changes) == values("* max_tries=9 retry=2s", "a fair=true")
    assert texts_of({**changes, (b"*", "ttl"): None, (b"b", "then"): None}) == {
        b"*": "retry=2s unset ttl",
        b"a": "fair=true",
        b"b": "unset then",
    }


def test_mistake_in_any_wish_refuses_all():
    for each in ((b"a b", "fair"), (b"a", "fare")):
        for value in ("true", None):
            with pytest.raises(ValueError, match=r"neither the name|no key of a policy"):
                changes_of({}, {(b"a", "fair"): "true", each: value})


def test_rows_and_globs_are_limited():
    names = {(b"a%d" % n, "fair"): "true" for n in range(ROWS_MAX)}
    assert len(changes_of({}, names)) == ROWS_MAX
    with pytest.raises(ValueError, match=r"^there would be 1001 policies, each key counted; there can be 1000$"):
        changes_of(names, {(b"b", "fair"): "true"})
    assert changes_of(names, {(b"b", "fair"): "true", (b"a1", "fair"): None}) != {}
    globs = {(b"a%d*" % n, key): "off" for n in range(GLOBS_MAX) for key in ("fair", "rate")}
    assert len(changes_of({}, globs)) == 2 * GLOBS_MAX
    with pytest.raises(ValueError, match=r"^there would be 101 patterns with \* or \?; there can be 100$"):
        changes_of(globs, {(b"?", "fair"): "true"})


def test_policies_beyond_a_limit_can_be_changed_but_not_added():
    """An import may leave more than there can be."""
    globs = {(b"a%d*" % n, "fair"): "true" for n in range(GLOBS_MAX + 20)}
    assert changes_of(globs, {(b"a1*", "fair"): None}) == {(b"a1*", "fair"): None}
    assert changes_of(globs, {(b"a1*", "fair"): "off", (b"name", "rate"): "1/s"}) != {}
    with pytest.raises(ValueError, match=r"^there would be 121 patterns with \* or \?; there can be 100$"):
        changes_of(globs, {(b"?", "fair"): "true"})
    names = {(b"a%d" % n, "fair"): "true" for n in range(ROWS_MAX + 20)}
    assert changes_of(names, {(b"a1", "fair"): None, (b"b*", "rate"): "1/s"}) != {}
    with pytest.raises(ValueError, match=r"^there would be 1021 policies, each key counted; there can be 1000$"):
        changes_of(names, {(b"b", "fair"): "true"})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["mail max_tries=3"], ["mail has max_tries without retry: jobs come back at once"]),
        (["mail max_tries=3 retry=5s"], []),
        (["mail max_tries=3", "* retry=5s"], []),
        (["mail max_tries=3", "ma?l retry=5s"], []),
        (["mail max_tries=3", "mail? retry=5s"], ["mail has max_tries without retry: jobs come back at once"]),
        (["mail max_tries=3 retry=off", "* retry=5s"], ["mail has max_tries without retry: jobs come back at once"]),
        (["mail.a max_tries=3", "* retry=off", "mail.* retry=5s"], []),
        (["mail.* max_tries=3", "* retry=5s"], []),
        (["mail.* max_tries=3", "?ail.* retry=5s"], []),
        (["mail.* max_tries=3", "mail.? retry=5s"], ["mail.* has max_tries without retry: jobs come back at once"]),
        (["mail max_tries=off"], []),
        (["mail then=bury"], ["mail has then without max_tries: it has no effect"]),
        (["mail then=off"], []),
        (["mail then=move:dead", "* max_tries=5 retry=1s"], []),
        (["mail expired=delete"], ["mail has expired without ttl: it has no effect"]),
        (["mail expired=delete ttl=1d"], []),
        (
            ["* max_tries=3 retry=1s then=move:dead"],
            ["* matches dead itself: jobs in dead that die there are buried"],
        ),
        (["* max_tries=3 retry=1s then=move:dead", "dead then=bury max_tries=1 retry=1s"], []),
        (
            ["mail max_tries=3 retry=1s then=move:mail"],
            ["mail matches mail itself: jobs in mail that die there are buried"],
        ),
        (["m* ttl=1d expired=move:mail"], ["m* matches mail itself: jobs in mail that expire there are buried"]),
    ],
)  # fmt: skip
def test_odd_values_are_warned_of(lines, expected):
    found = values(*lines)
    assert warnings(found, [pattern for pattern, _ in found]) == expected
    assert warnings(found, [b"other"]) == []


def test_glob_with_many_stars_takes_no_time():
    """An expression that goes back and forth would take longer than anybody lives."""
    values = {(b"*a" * 50 + b"b", "max_tries"): "1", (b"a" * 200, "then"): "bury"}
    assert warnings(values, [b"a" * 200]) == [f"{'a' * 200} has then without max_tries: it has no effect"]
