"""How the body of a job is shown."""

import pytest

from beanlite.console.bodies import beginning, body_lines
from beanlite.errors import ConfigError

# Indented, it would be a thousand times as long.
DEEP = b"[" + b",".join([b"[" * 900 + b"]" * 900] * 30) + b"]"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"a":[1,"\xc3\xa4"]}', '{\n  "a": [\n    1,\n    "ä"\n  ]\n}'),
        (b"welcome\n\tann \x1b[31m", "welcome\n\tann ·[31m"),
        (b"\x00\xffAB", "00000000  00 ff 41 42                                      ..AB"),
        (b"", ""),
        (b"0", "0"),
        (b"[" * 100_000, "[" * 100_000),  # no parser goes that deep
        (DEEP, DEEP.decode()),
        (b"[1.10, -0.5E3, 12345678901234567890]", "[\n  1.10,\n  -0.5E3,\n  12345678901234567890\n]"),
        (b'{"amount": 12345678901234567.89}', '{\n  "amount": 12345678901234567.89\n}'),
        (b"[1e999, 1e-99999999999999999999]", "[\n  1e999,\n  1e-99999999999999999999\n]"),
        (b'["\xee\x80\x801.5", 2.5]', '["\ue0001.5", 2.5]'),
        (b'["\\uE0001.5"]', '["\\uE0001.5"]'),
        (b'{"to": "ann", "to": "bob"}', '{"to": "ann", "to": "bob"}'),
        (b"[NaN]", "[NaN]"),
    ],
)
def test_the_form_is_chosen_by_what_it_is(body, shown):
    assert body_lines(body, "auto") == shown


def test_hex_has_sixteen_bytes_a_line():
    assert body_lines(bytes(range(60, 80)), "hex").splitlines() == [
        "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK",
        "00000010  4c 4d 4e 4f                                      LMNO",
    ]


def test_a_form_that_was_asked_for():
    assert body_lines(b"[1]", "text") == "[1]"
    assert body_lines(b"\xff", "text") == "\ufffd"
    for body in b"x", DEEP, b'{"a": 1, "a": 2}':
        with pytest.raises(ConfigError, match="the body is not JSON, or can't be shown so: it is nested too deeply"):
            body_lines(body, "json")


@pytest.mark.parametrize(
    ("text", "most", "left"), [("aé", 2, "a"), ("aé", 3, "aé"), ("a€b", 3, "a"), ("a€b", 4, "a€"), ("😀", 3, "")]
)
def test_beginning_of_a_body_ends_with_a_whole_character(text, most, left):
    assert beginning(text.encode(), most).decode() == left


def test_beginning_of_bytes_that_are_no_text_is_not_searched_far():
    assert len(beginning(b"\x80" * 100, 50)) >= 46
