"""The records of a file, made by hand as beanstalkd's sources write them, whole and damaged."""

import pytest

from beanlite.binlog.records import FORMATS, Gap, format_of, records
from beanlite.errors import BinlogRefused
from tests.support.binlogs import BURIED, CREATED_S, DELAYED, GONE, READY, RESERVED, STRUCTS, begin, record

VERSIONS = pytest.mark.parametrize("version", [5, 7])
STARTS_AT = 4


def read(data):
    form = format_of(data, "binlog.1")
    assert form is not None
    return list(records(data, form))


@pytest.mark.parametrize(("version", "size"), [(5, 77), (7, 80)])
def test_the_layout_is_the_one_of_the_c_structs(version, size):
    form = FORMATS[version]
    assert form.job.size == size
    counters = {"reserve_ct": 1, "timeout_ct": 2, "release_ct": 3, "bury_ct": 4, "kick_ct": 5}
    data = record(
        1 << 40, b"body", version=version, pri=2**32 - 1, state=DELAYED, delay_s=2**32 - 1, ttr_s=7, due_s=8, **counters
    )
    [found] = read(begin(version) + data)
    assert (found.id, found.state, found.tube) == (1 << 40, DELAYED, b"default")
    job = form.read(found.job)
    assert job._asdict() == {
        "id": 1 << 40,
        "pri": 2**32 - 1,
        "delay": (2**32 - 1) * form.second,
        "ttr": 7 * form.second,
        "body_size": 6,
        "created_at": CREATED_S * form.second,
        "deadline_at": 8 * form.second,
        "reserves": 1,
        "timeouts": 2,
        "releases": 3,
        "buries": 4,
        "kicks": 5,
        "state": DELAYED,
    }


@VERSIONS
def test_the_records_of_a_file_follow_each_other(version):
    parts = [
        record(1, b"", version=version, tube="a"),
        record(2, b"\0" * 300 + b"\r\n", version=version, tube="b" * 200),
        record(1, version=version, state=BURIED),
        record(2, version=version, state=RESERVED),
        record(2, version=version, state=GONE),
    ]
    data = begin(version) + b"".join(parts)
    found = read(data)
    assert [(each.id, each.state, each.tube) for each in found] == [
        (1, READY, b"a"),
        (2, READY, b"b" * 200),
        (1, BURIED, b""),
        (2, RESERVED, b""),
        (2, GONE, b""),
    ]
    assert [each.end for each in found] == [STARTS_AT + len(b"".join(parts[: count + 1])) for count in range(5)]
    assert data[found[1].body_at : found[1].end] == b"\0" * 300 + b"\r\n\r\n"
    assert read(data + bytes(5000)) == found, "zeros are space that was not used"


@pytest.mark.parametrize("data", [b"", b"\0", bytes(3), bytes(4), bytes(8192)])
def test_a_file_of_zeros_has_never_been_written_to(data):
    assert format_of(data, "binlog.1") is None


@pytest.mark.parametrize(
    "data", [begin(6), begin(0) + record(1, b""), b"x", b"SQLite format 3\0", b"\0\0\0\7" + bytes(90)]
)
def test_another_version_is_refused(data):
    with pytest.raises(BinlogRefused, match=r"^binlog\.1 is of version -?\d+, and only 5 and 7 can be read$"):
        format_of(data, "binlog.1")


@VERSIONS
@pytest.mark.parametrize("rest", [b"", bytes(5000)], ids=["cut", "zeros"])
def test_a_last_record_that_was_not_written_to_its_end_is_torn(version, rest):
    whole = begin(version) + record(1, b"kept", version=version)
    full = record(2, b"lost body", version=version)
    update = record(1, version=version, state=BURIED, bury_ct=1)
    # With zeros behind it an update that ends later than this looks like a delete, to beanstalkd as well.
    doubtful = len(update) - FORMATS[version].job.size + STRUCTS[version].created_at.offset if rest else len(update) - 1
    for part in [full[:size] for size in range(1, len(full))] + [update[:size] for size in range(1, doubtful + 1)]:
        first, *others = read(whole + part + rest)
        assert first.id == 1
        content = part.rstrip(b"\0")
        assert others == ([Gap(len(whole), len(whole + content), is_torn=True)] if content else [])


def spoilt(version, **wrong):
    return record(2, b"spoilt", version=version, **wrong)


DAMAGE = {
    "garbage": lambda _: b"\xff" * 300,
    "hole": lambda _: bytes(300),
    "state": lambda version: spoilt(version, state=6),
    "tube": lambda version: spoilt(version, tube="not a tube"),
    "ttr": lambda version: spoilt(version, ttr_s=0),
    "part of a second": lambda version: spoilt(version, ttr_s=60).replace(
        bytes((60 * FORMATS[version].second).to_bytes(8, "little")), b"\1" * 4 + bytes(4)
    ),
    "end of the body": lambda version: spoilt(version)[:-1] + b"x",
    "length of the body": lambda version: spoilt(version)[:-3],
    "id": lambda version: record(0, b"spoilt", version=version),
    "huge id": lambda version: record(1 << 61, b"spoilt", version=version),
    "cut": lambda version: spoilt(version)[:20],
    "deadline": lambda version: spoilt(version, due_s=1 << 33),
    "size of an update": lambda version: record(1, version=version, size=-3),
}


@VERSIONS
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_in_the_middle_is_found_with_what_is_behind_it(version, damage):
    before = begin(version) + record(1, b"before", version=version)
    bad = DAMAGE[damage](version)
    behind = record(3, b"behind", version=version) + record(1, version=version, state=GONE)
    found = read(before + bad + behind + bytes(1000))
    first, gap, *rest = found
    assert first.id == 1
    assert gap == Gap(len(before), len(before + bad), is_torn=False)
    assert [(each.id, each.state) for each in rest] == [(3, READY), (1, GONE)]


@VERSIONS
def test_an_update_is_found_again_behind_damage(version):
    data = begin(version) + b"\xff" * 33 + record(7, version=version, state=GONE)
    gap, update = read(data)
    assert (gap.at, gap.end, gap.is_torn) == (STARTS_AT, STARTS_AT + 33, False)
    assert (update.id, update.state, update.tube) == (7, GONE, b"")


@VERSIONS
def test_more_than_one_record_at_the_end_is_damage(version):
    data = begin(version) + record(1, b"kept", version=version)
    [_, gap] = read(data + b"\xff" * 1000)
    assert gap == Gap(len(data), len(data) + 1000, is_torn=False)
    [_, gap] = read(data + bytes(100) + b"\xff" * 1000)
    assert gap == Gap(len(data), len(data) + 1100, is_torn=False)
