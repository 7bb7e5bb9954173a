"""Filters as one line of text."""

import time

import pytest

from beanlite.console.filters import filter_by
from beanlite.console.query import (
    KEYS,
    Misunderstood,
    complete,
    from_fields,
    hint,
    is_cut,
    key_of,
    parse,
    syntax,
    without,
    write,
)
from beanlite.protocol.operators.filters import CRITERIA, Filter

NOW_S = 1_796_000_000.0


@pytest.mark.parametrize(
    ("line", "criteria"),
    [
        ("", {}),
        ("  ", {}),
        ("state:buried", {"state": "buried"}),
        ("tube:web*", {"tube": "web*"}),
        ("id:17,18", {"ids": [17, 18]}),
        ("pri:5", {"pri_min": 5, "pri_max": 5}),
        ("pri:>5 pri:<=10", {"pri_min": 6, "pri_max": 10}),
        ("tries:>5", {"tries_min": 6}),
        ("reserves:>=5 timeouts:>0", {"reserves_min": 5, "timeouts_min": 1}),
        ("age:>2d age:<=3d", {"older_s": 172_800.0, "newer_s": 259_200.0}),
        ("in-state:>90", {"in_state_s": 90.0}),
        ("since:24h", {"since_at": NOW_S - 86_400}),
        ("until:2026-11-27T14:30Z", {"until_at": 1_795_789_800.0}),
        ("holder:17 host:10.0.0.5", {"holder": 17, "holder_host": "10.0.0.5"}),
        ("why:tries", {"why": "tries"}),
        ('note:"see INC"', {"note_text": "see INC"}),
        ("timed out", {"text": "timed out"}),
        ('"timed  out"', {"text": "timed  out"}),
        ('state:ready "a:b"', {"state": "ready", "text": "a:b"}),
        ('"say \\"hi\\""', {"text": 'say "hi"'}),
        ("customer:4711", {"where": ["customer=4711"]}),
        ("a.b:1 c[0]:x", {"where": ["a.b=1", "c[0]=x"]}),
        ('user.name:"Ann Lee"', {"where": ['user.name="Ann Lee"']}),
        ('"state":open', {"where": ['"state"=open']}),
        ("at:12:30", {"where": ["at=12:30"]}),
        ("text:x state:ready", {"text": "x", "state": "ready"}),
    ],
)
def test_line_becomes_criteria(line, criteria):
    assert parse(line, NOW_S) == criteria
    valid = filter_by(**parse(line, NOW_S)).criteria()
    assert Filter.model_validate(valid, strict=True).criteria() == valid


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("state:burried", "state:burried: did you mean state:buried?"),
        ("state:x", "state:x: one of ready, reserved, delayed, buried"),
        ("why:luck", "why:luck: one of client, operator, tries, expired"),
        ("state:", "state: needs a value, such as state:buried"),
        ("tries:5", "tries:5: write tries:>=5"),
        ("tries:<5", "tries:<5: only tries:> can be looked for"),
        ("age:2d", "age:2d: write age:>2d or age:<2d"),
        ("age:>soon", "age:>soon: 'soon' is not a length of time"),
        ("since:soon", "since:soon: 'soon' is no moment"),
        ("pri:x", "pri:x: 'x' is not a whole number from 0 to 4294967295"),
        ("pri:<0", "pri:<0: no job can be so"),
        ("pri:>4294967295", "no job can be so"),
        ("id:1,x", "id:1,x: 'x' is not a whole number"),
        ("state:ready state:buried", "state:buried: state is given twice"),
        ("one state:ready two", "two: write the whole text in one place, or in quotes"),
        ("text:one two", "two: text is given twice"),
        ('customer:"x', 'the quote is not closed: "x'),
        ('"a\\d"', "in quotes, \\ is written"),
        ("customer:", 'customer: needs a value; customer:"" is an empty text'),
        ("amount:>5", "amount:>5: amount can't be compared, only age, in-state, pri"),
        ("amount:>5", 'releases; as a text in a body: amount:">5"'),
        ("due:<30min", "in a tube, state:delayed sorted by queue has those first that are due first"),
        ("left:<30min", "left can't be compared, only age, in-state, pri, tries"),
        (
            "holder:web3",
            "holder:web3: a client that has jobs is found by its number or its address, holder:17 or host:",
        ),
        ("http://x", 'a text is in quotes: "http://x"'),
        ("a..b:1", "a..b is no key, and no path in a body"),
        (" ".join(f"a{n}:1" for n in range(9)), "a8:1: only 8 values in the body can be looked for"),
        ("x" * 1001, "a word has 1000 characters at most"),
        ("x " * 13_000, "a filter has 25,000 characters at most"),
        ("id:" + "1," * 1001, "1000 ids at most"),
    ],
)
def test_mistake_names_the_word_and_what_is_meant(line, why):
    with pytest.raises(Misunderstood) as error:
        parse(line, NOW_S)
    assert why in str(error.value)


def test_each_criterion_has_a_key():
    fields = {name for signs in KEYS.values() for name in signs.values()}
    assert CRITERIA.keys() - fields == {"where"}


@pytest.mark.parametrize(("example", "help_"), syntax())
def test_each_example_can_be_looked_for(example, help_):
    assert parse(example, NOW_S)
    assert help_.endswith(".")


@pytest.mark.parametrize(
    ("key", "value"),
    [("a", "1"), ("a", "x y"), ("a", ">5"), ("a", 'say "hi"'), ("a", "//x"), ("a.b", ""), ("a", "b:c")],
)
def test_word_that_is_written_is_read_as_the_same(key, value):
    (condition,) = parse(write(key, value), NOW_S)["where"]
    assert condition in {f"{key}={value}", f"{key}={write('', value)[1:]}"}


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("customer", "customer"), ("items[0].id", "items[0].id"), ("id", '"id"'), ('"id"', '"id"'), ("pri", '"pri"'),
        ("a:b", '"a:b"'), ("a.b:c[1].d", 'a."b:c"[1].d'), ('"a b".c:d', '"a b"."c:d"'), ("a:\\", '"a:\\\\"'),
    ],
)  # fmt: skip
def test_path_becomes_the_key_of_a_word(path, key):
    assert key_of(path) == key
    assert parse(f"{key}:5", NOW_S) == {"where": [f"{key}=5"]}
    assert from_fields({"where": f"{path}=5"}) == f"{key}:5"


def test_older_fields_become_a_line():
    fields = {
        "state": "buried",
        "older": "2d",
        "text": "a:b",
        "where": 'x="1"',
        "ids": "1, 2",
        "up_to_id": "7",
        "pri_max": "3",
    }
    assert from_fields(fields) == 'id:1,2 state:buried age:>2d pri:<=3 "a:b" x:"1"'
    assert parse(from_fields(fields), NOW_S)["text"] == "a:b"


def test_words_with_a_key_are_left_out():
    assert without('one state:buried x:"a  b" state:ready', "state") == 'one x:"a  b"'


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("stat:ready", "stat is looked for in bodies that are JSON; did you mean state:ready?"),
        ("customer:4711 buried", "buried is looked for as a text in bodies; did you mean state:buried?"),
        ("Burried", "did you mean state:buried?"),
        ("expired", "did you mean why:expired?"),
        ("tube=mail", "tube=mail is looked for as a text in bodies; did you mean tube:mail?"),
        ("customer=4711", "did you mean customer:4711?"),
        ("client:web3", "found by its number or its address, holder:17 or host:10.0.0.5, not its name"),
        ('text:buried "a=b" a==b customer:4711 timeout', ""),
    ],
)
def test_condition_that_a_word_is_like_is_told(line, meant):
    assert hint(line).endswith(meant)
    assert bool(hint(line)) == bool(meant)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("st", ["state:"]),
        ("RE", ["reserves:", "releases:"]),
        ("state:", ["state:ready", "state:reserved", "state:delayed", "state:buried"]),
        ("state:re", ["state:ready", "state:reserved"]),
        ("pri:", ["pri:>", "pri:<"]),
        ("pri:>", []),
        ("tube:", []),
        ("x", []),
    ],
)
def test_word_is_completed(word, words):
    assert [each.word for each in complete(word)] == words


def test_value_that_is_cut_or_no_scalar_is_not_looked_for():
    assert [is_cut(value) for value in ("x" * 200, '{"a":1}', "[1]", "[ERROR] x", "x", "4711", "")] == [True] * 3 + [
        False
    ] * 4


def test_end_that_is_still_to_come_is_misunderstood():
    with pytest.raises(Misunderstood, match=r"until:.* is still to come today"):
        parse(f"until:{time.strftime('%H:%M', time.gmtime(NOW_S + 3600))}Z", NOW_S)
