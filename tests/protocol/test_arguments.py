"""The arguments of commands, malformed ones above all."""

import pytest

from beanlite.protocol import arguments

U32 = 2**32 - 1
U64 = 2**64 - 1


@pytest.mark.parametrize(
    ("args", "put"),
    [
        (b"1 2 3 4", (1, 2, 3, 4, True)),
        (b"  1   2 3  4", (1, 2, 3, 4, True)),
        (b"1 2 0 4", (1, 2, 1, 4, True)),
        (b"1 2 3 4 ", (1, 2, 3, 4, False)),
        (b"1 2 3 4x", (1, 2, 3, 4, False)),
        (b"%d %d %d %d" % (U32, U32, U32, U32), (U32, U32, U32, U32, True)),
        (b"007 2 3 4", (7, 2, 3, 4, True)),
        (b"%d 2 3 4" % (U32 + 1), None),
        (b"1 2 3 %d" % (U32 + 1), None),
        (b"-1 2 3 4", None),
        (b"+1 2 3 4", None),
        (b"1\t2 3 4", None),
        (b"1 2 3", None),
        (b"1 2 3 4\0", None),
        (b"1_0 2 3 4", None),
        (b"", None),
    ],
)
def test_put(args, put):
    line = arguments.parse_put(args)
    assert put == (line and (line.pri, line.delay_s, line.ttr_s, line.size, line.ends_well))


@pytest.mark.parametrize(
    ("args", "job_id"),
    [
        (b"1", 1),
        (b"  12", 12),
        (b"%d" % U64, U64),
        (b"%d" % (U64 + 1), None),
        (b"1 ", None),
        (b"\t1", None),
        (b"+1", None),
        (b"1_0", None),
        (b"", None),
        (b"\xb2", None),
    ],
)
def test_id(args, job_id):
    assert arguments.parse_id(args) == job_id


@pytest.mark.parametrize(
    ("args", "bound"),
    [
        (b"1", 1),
        (b" \t\v+1", 1),
        (b"1x", 1),
        (b"-1", U32),
        (b"-0", 0),
        (b"%d" % U64, U32),
        (b"%d" % (U64 + 1), None),
        (b"x", None),
        (b"1\0", None),
    ],
)
def test_kick_reads_as_strtoul_into_32_bits(args, bound):
    assert arguments.parse_kick(args) == bound


@pytest.mark.parametrize(
    ("args", "timeout_s"),
    [(b"0", 0), (b" 5", 5), (b"5x", 5), (b"%d" % (2**31 - 1), 2**31 - 1), (b"%d" % 2**31, None), (b"-1", None)],
)
def test_timeout(args, timeout_s):
    assert arguments.parse_timeout(args) == timeout_s


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (b"a", b"a"),
        (b"A-z0+/;.$_()", b"A-z0+/;.$_()"),
        (b"x" * 200, b"x" * 200),
        (b"x" * 201, None),
        (b"-a", None),
        (b" a", None),
        (b"a ", None),
        (b"a\n", None),
        (b"", None),
        (b"\xe9", None),
    ],
)
def test_name(args, name):
    assert arguments.parse_name(args) == name


def test_release_bury_and_pause():
    assert arguments.parse_release(b" 1  2 3") == (1, 2, 3)
    assert arguments.parse_release(b"1 2") is None
    assert arguments.parse_release(b"1 2 %d" % (U32 + 1)) is None
    assert arguments.parse_bury(b"1 2") == (1, 2)
    assert arguments.parse_bury(b"1 2 ") is None
    assert arguments.parse_pause(b"  a 3") == (b"a", 3)
    assert arguments.parse_pause(b"a3") is None
    assert arguments.parse_pause(b"-a 3") == (b"-a", 3)
    assert arguments.parse_pause(b"a 3 ") is None
