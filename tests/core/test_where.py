"""A value at a path in a JSON body."""

import json

import pytest

from beanlite.core.where import Where


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
        ('a="\\ud800"', {"a": "\ud800"}),
    ],
)
def test_body_has_the_value_at_the_path(text, body):
    assert Where(text).fits(body if isinstance(body, bytes) else json.dumps(body).encode())


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
    assert not Where(text).fits(body if isinstance(body, bytes) else json.dumps(body).encode())


def test_body_without_the_text_of_the_value_is_not_parsed():
    assert not Where("a=4711").may_fit(b'{"a": 4712}')
    assert Where("a=4711").may_fit(b'{"a": "\\u0034711"}')
    assert Where("a=1.5").may_fit(b'{"a": 15e-1}')


@pytest.mark.parametrize(
    "text", ["", "a", "=1", ".a=1", "a..b=1", "a.=1", "a[x]=1", "a[0]b=1", '"a"b=1', "a b=1", "a[=1", '"a=1']
)
def test_what_is_no_path_and_value_is_an_error(text):
    with pytest.raises(ValueError, match="is not a path and a value, such as customer=4711"):
        Where(text)
