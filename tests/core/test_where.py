"""A value at a path in a JSON body."""

import json

import pytest

from beanlite.core.where import PARSED_MAX, VALUE_MAX, Paths, Where


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("customer=4711", {"customer": 4711}),
        ("customer=4711", {"customer": "4711"}),
        ('customer="4711"', {"customer": "4711"}),
        ("a.b[0].c=x", {"a": {"b": [{"c": "x"}]}}),
        ("[1]=x", [0, "x"]),
        ("a[0][1]=x", {"a": [[0, "x"]]}),
        ('"a.b"."\\u00e4"=x', {"a.b": {"ä": "x"}}),
        ("a-b=x=y", {"a-b": "x=y"}),
        ("a=", {"a": ""}),
        ("a=true", {"a": True}),
        ("a=null", {"a": None}),
        ("a=null", {"a": "null"}),
        ("a=1.5", b'{"a": 1.50}'),
        ("a=ä", {"a": "ä"}),  # with an escape
        ("a=ä", '{"a": "ä"}'.encode()),
        ("a=/", b'{"a": "\\/"}'),
        ("a=[1]", {"a": "[1]"}),
        ("a=NaN", {"a": "NaN"}),
        ("a= 1", {"a": 1}),
        ("a=1e999", b'{"a": 1e400}'),
        ('a="\\ud800"', {"a": "\ud800"}),
    ],
)
def test_body_has_the_value_at_the_path(text, body):
    assert Where([text]).fits(body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ('customer="4711"', {"customer": 4711}),
        ("customer=4711", {"customer": 47110}),
        ("customer=4711", {"other": 4711}),
        ("customer=4711", [4711]),
        ("[0]=1", {"0": 1}),
        ("[1]=1", [1]),
        ("a=1", {"a": True}),
        ("a=true", {"a": 1}),
        ("a=1", b'{"a": 1.0}'),
        ("a=null", {}),
        ("a=NaN", b'{"a": NaN}'),
        ("a=1", b"a=1"),
        ("a=1", b'{"a": 1}\xff'),
        ("a=1", b'{"a": 1'),
        ("a=1", b"[" * 60_000 + b"1"),
    ],
)
def test_body_does_not_have_the_value_at_the_path(text, body):
    assert not Where([text]).fits(body if isinstance(body, bytes) else json.dumps(body).encode())


def test_body_without_the_text_of_the_value_is_not_parsed():
    assert Where(["a=4711"]).looks(b'{"a": 4712}') == 1
    assert Where(["a=4711", "b=5"]).looks(b'{"a": 4711}') == 2
    assert not Where(["a=4711"]).looks(b'{"a": "\\u0034711"}')
    assert not Where(["a=1.5"]).looks(b'{"a": 15e-1}')


def test_long_value_is_compared_to_its_end():
    value = "ä" * 100
    for body, fits in ((value, True), (value + "b", False), (value[:99] + "b", False)):
        assert Where([f"a={value}"]).fits(json.dumps({"a": body}, ensure_ascii=False).encode()) == fits


@pytest.mark.parametrize(
    "text", ["", "a", "=1", ".a=1", "a..b=1", "a.=1", "a[x]=1", "a[0]b=1", '"a"b=1', "a b=1", "a[=1", '"a=1']
)
def test_what_is_no_path_and_value_is_an_error(text):
    with pytest.raises(ValueError, match="is not a path and a value, such as customer=4711"):
        Where([text])


def test_body_has_to_have_all_values():
    both = Where(["a.b=1", "c=x"])
    assert both.fits(b'{"a": {"b": 1}, "c": "x"}')
    assert not both.fits(b'{"a": {"b": 1}, "c": "y x"}')
    assert both.looks(b'{"c": "x"}') == 1


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("a", b'{"a": "x y"}', "x y"),
        ("a", b'{"a": 4711}', "4711"),
        ("a", b'{"a": null}', "null"),
        ("a", b'{"a": -1e400}', "-1e999"),
        ("a", b'{"a": true}', "true"),
        ("a", b'{"a": {"b": [1, "\xc3\xa4"]}}', '{"b":[1,"\xe4"]}'),
        ("a.b[1]", b'{"a": {"b": [1, 2]}}', "2"),
        ('"a.b"', b'{"a.b": 1}', "1"),
        ("a", b'{"a": "\\ud800"}', "?"),
        ("a", b'{"b": 1}', None),
        ("a", b"no JSON", None),
        ("a", b'{"a": "%b"}' % (b"x" * VALUE_MAX), "x" * VALUE_MAX),
        ("a", b'{"a": "%b"}' % (b"x" * (VALUE_MAX + 1)), "x" * (VALUE_MAX - 1) + "\u2026"),
        ("a", b'{"a": 1, "b": "%b"}' % (b"x" * PARSED_MAX), None),
        ("a", b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}", None),
    ],
)
def test_value_at_a_path_is_told_as_text(path, body, text):
    values = Paths([path, path]).values(body)
    assert values == [text, text]
    assert text is None or json.dumps(values, ensure_ascii=False).encode()


@pytest.mark.parametrize("path", ["", "a=1", ".a", "a..b", "a b", "a[x]"])
def test_no_path_is_refused(path):
    with pytest.raises(ValueError, match="is not a path, such as customer"):
        Paths(["a", path])
