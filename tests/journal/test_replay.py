"""Reading the state back, and noticing anything that is not as it was written."""

from zlib import crc32

import pytest

from beanlite.core.restore import StoredJob
from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import WHAT_TO_DO
from beanlite.journal.sqlite.file.replay import count_jobs, read_jobs, read_state
from tests.support.journal_files import flip, make, put, snapshot


@pytest.fixture
def database(path):
    database = open_database(path)
    yield database
    database.close()


def test_a_new_file_is_empty(database, path):
    assert read_state(database.connection, path) == (0, 0, [], [], [])
    assert count_jobs(database.connection, path) == 0
    assert list(read_jobs(database.connection, path)) == []


def test_state(database, path):
    database.connection.execute("UPDATE meta SET batch = 7, last_id = 12345678901234")
    database.connection.execute("INSERT INTO pauses VALUES ('a', 60, 1.5), ('b', 4294967295, 2e9)")
    state = read_state(database.connection, path)
    assert (state.batch, state.last_id) == (7, 12345678901234)
    assert sorted(state.pauses) == [
        (b"a", 60, (1_500 - 946_684_800_000) * 10**6),
        (b"b", 4294967295, (2 * 10**9 - 946_684_800) * 10**9),
    ]


def sealed(body):
    return body, crc32(body)


def test_every_field_of_a_job(database, path):
    created_ns = (1_700_000_000 - 946_684_800) * 10**9
    never = (None, None, None, None)
    put(
        database.connection, 9, b"\x00\xff\r\n", tube="t", state="buried", pri=4294967295, delay_s=1, ttr_s=2,
        created_at=946_684_803.5, due_at=946_684_804.5, buried_seq=5, reserves=6, timeouts=7, releases=8,
        buries=9, kicks=10, since=946_684_805.5, holder="unix", holder_conn=11, why="client",
    )  # fmt: skip
    put(database.connection, 3, b"", tube="t", since=None)
    put(database.connection, 18446744073709551615 >> 1, b"x" * 70000, large=True)
    end = StoredJob._fields.index("row_crc32")
    assert [[row[:end] for row in rows] for rows in read_jobs(database.connection, path)] == [
        [
            (3, b"t", None, 0, 0, 60, created_ns, None, 0, 0, 0, 0, 0, *sealed(b""), *never),
            (
                9, b"t", "buried", 2**32 - 1, 1, 2, 3_500_000_000, 5, 6, 7, 8, 9, 10, *sealed(b"\0\xff\r\n"),
                5_500_000_000, "unix", 11, "client",
            ),
            (
                2**63 - 1, b"default", None, 0, 0, 60, created_ns, None, 0, 0, 0, 0, 0, *sealed(b"x" * 70000),
                created_ns, None, None, None,
            ),
        ]
    ]  # fmt: skip


def test_many_jobs_come_in_chunks_in_the_order_of_their_ids(database, path):
    database.connection.execute("BEGIN")
    for number in range(2500, 0, -1):
        put(database.connection, number, b"%d" % number, large=number % 2 == 0)
    database.connection.execute("COMMIT")
    chunks = list(read_jobs(database.connection, path))
    assert [len(chunk) for chunk in chunks] == [1000, 1000, 500]
    assert [(job[0], job[13]) for chunk in chunks for job in chunk] == [(n, b"%d" % n) for n in range(1, 2501)]
    assert count_jobs(database.connection, path) == 2500


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE jobs SET crc32 = crc32 + 1 WHERE id = 2",
        "UPDATE bodies SET body = x'00'",
        "DELETE FROM bodies",
    ],
)
def test_a_body_that_has_changed(database, path, damage):
    put(database.connection, 1)
    put(database.connection, 2, large=True)
    database.connection.execute(damage)
    with pytest.raises(JournalRefused) as caught:
        list(read_jobs(database.connection, path))
    assert str(caught.value) == f"{path} is damaged: the body of job 2 has changed; {WHAT_TO_DO}"


def test_a_byte_that_has_changed_on_the_disk(path):
    database = open_database(path)
    put(database.connection, 1, b"body with a needle in it")
    assert database.close() is None
    flip(path, path.read_bytes().index(b"needle"))
    before = snapshot(path.parent)
    database = open_database(path)
    with pytest.raises(JournalRefused, match="the body of job 1 has changed"):
        list(read_jobs(database.connection, path))
    database.close()
    assert snapshot(path.parent) == before


def test_a_page_that_has_changed_on_the_disk(path):
    make(path, batches=50)
    database = open_database(path)
    (root,) = database.connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'jobs'").fetchone()
    database.close()
    leaf = int.from_bytes(path.read_bytes()[(root - 1) * 4096 :][8:12])
    flip(path, (leaf - 1) * 4096)
    before = snapshot(path.parent)
    database = open_database(path)
    for read in (count_jobs, lambda *file: list(read_jobs(*file))):
        with pytest.raises(JournalRefused, match=r"queue.db is damaged \(.*malformed\); restore a backup"):
            read(database.connection, path)
    database.close()
    assert snapshot(path.parent) == before


def test_a_missing_state(database, path):
    database.connection.execute("DELETE FROM meta")
    with pytest.raises(JournalRefused, match="is damaged: table meta is empty; restore a backup"):
        read_state(database.connection, path)
