"""Export and import are inverse, whatever the jobs; a wrong line is named, and then nothing is imported."""

import io
import json
import sqlite3
from contextlib import closing, suppress

import pytest

from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.tools.dump import export
from beanlite.journal.sqlite.tools.load import load
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import (
    LARGE,
    export_to_file,
    files_of_at_most,
    flip,
    make,
    make_killed,
    put,
    snapshot,
    writer,
)

BODIES = [b"", b"text", 'gr\u00fc\u00df \u2028\x00\n"'.encode(), b"\xff\xfe", bytes(range(256)), LARGE, b"\xff" * 5000]


@pytest.fixture
def target(tmp_path):
    (tmp_path / "target").mkdir()
    return tmp_path / "target" / "queue.db"


def fill(path):
    """Make a file with jobs in all states, with odd bodies and times, and two pauses."""
    database = open_database(path)
    connection = database.connection
    for number, body in enumerate(BODIES, 1):
        put(connection, number, body, large=len(body) > 1024, created_at=1.7e9 + number / 3)
    more = {"reserves": 1, "timeouts": 2, "releases": 3, "buries": 4, "kicks": 5}
    put(connection, 101, tube="a;b", state="delayed", due_at=1.8e9 + 1 / 7, delay_s=(1 << 32) - 1, **more)
    put(connection, 102, state="reserved", due_at=1.8e9, pri=(1 << 32) - 1)
    put(connection, 104, state="buried", buried_seq=2)
    put(connection, 103, state="buried", buried_seq=7)
    connection.execute("INSERT INTO pauses (tube, pause_s, until) VALUES ('z', 3, 1.1), ('a', 60, 1e9)")
    connection.execute("UPDATE meta SET last_id = 1000")
    assert database.close() is None


def exported(path):
    sink = io.BytesIO()
    export(path, sink)
    return sink.getvalue()


def lines_of(path):
    return exported(path).splitlines(keepends=True)


def ids(path):
    return [line["id"] for line in map(json.loads, lines_of(path)) if line["kind"] == "job"]


def test_the_reverse_of_an_export_is_exact(path, target):
    fill(path)
    result = load(lines_of(path), target)
    assert (result.jobs, result.pauses) == (len(BODIES) + 4, 2)
    assert exported(target) == exported(path)
    assert [finding for finding in verify(target) if not finding.sound] == []
    assert [file.name for file in target.parent.iterdir()] == ["queue.db"]


def test_a_live_database_is_never_replaced_by_an_export(path, target):
    fill(path)
    before = path.read_bytes()
    with pytest.raises(BeanliteError, match="it is the database itself"):
        export_to_file(path, path, replace=True)
    assert path.read_bytes() == before
    with writer(target, "idle"), pytest.raises(BeanliteError, match="a server or another command holds it"):
        export_to_file(path, target, replace=True)


def test_all_that_a_job_has_is_exported(path):
    fill(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute("SELECT * FROM jobs ORDER BY id")]
    found = [line for line in map(json.loads, lines_of(path)) if line.pop("kind") == "job"]
    for row, line in zip(rows, found, strict=True):
        del row["row_crc32"], row["crc32"], row["body"]
        assert line.keys() - row.keys() in ({"body"}, {"base64"})
        assert {name: line.get(name) for name in row} == row


def test_a_live_database_is_exported_as_of_one_moment(path):
    with writer(path):
        for _ in range(5):
            lines = [json.loads(line) for line in lines_of(path)]
            jobs = [line["id"] for line in lines if line["kind"] == "job"]
            assert jobs == list(range(jobs[0], lines[0]["last_id"] + 1))


def test_a_killed_servers_file_is_exported_with_its_wal(path):
    make_killed(path, batches=3)
    assert ids(path) == list(range(1, 10))


def test_into_one_that_has_jobs(path, target):
    fill(path)
    make(target, batches=1)
    with pytest.raises(BeanliteError, match="there is a job 1 already; --new-ids"):
        load(lines_of(path), target)
    assert ids(target) == [1, 2, 3]
    load((line for line in lines_of(path) if b'"id": 10' in line), target)
    assert ids(target) == [1, 2, 3, 101, 102, 103, 104]


def test_new_ids_come_behind_all_that_were_given_out(path, target):
    fill(path)
    make(target, batches=1)
    load(lines_of(path), target, new_ids=True)
    count = len(BODIES) + 4
    assert ids(target) == list(range(1, 4 + count))
    assert json.loads(lines_of(target)[0])["last_id"] == 3 + count


def test_buried_jobs_come_behind_those_that_are_buried(path, target):
    fill(path)
    load(lines_of(path), target)
    load(lines_of(path), target, new_ids=True)
    with closing(sqlite3.connect(target)) as connection:
        buried = connection.execute("SELECT id, buried_seq FROM buried").fetchall()
    assert [place for _, place in buried] == [2, 7, 9, 14]
    assert [job_id for job_id, _ in buried] == [104, 103, 1011, 1010]


def test_a_pause_replaces_one_that_is_there(path, target):
    fill(path)
    load(lines_of(path), target)
    line = b'{"kind": "pause", "tube": "z", "pause_s": 9, "until": 2.5}'
    load([line], target)
    assert [json.loads(line)["pause_s"] for line in lines_of(target)[1:3]] == [60, 9]


JOB = {
    "kind": "job", "id": 9, "tube": "t", "state": "ready", "pri": 0, "delay_s": 0, "ttr_s": 60, "created_at": 1.7e9,
    "reserves": 0, "timeouts": 0, "releases": 0, "buries": 0, "kicks": 0, "body": "x",
}  # fmt: skip


def job(**changed):
    return json.dumps({key: value for key, value in (JOB | changed).items() if value is not ...})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", r"it is not JSON: Expecting value \(character 1\)"),
        ("\xff", "it is not UTF-8, and so not JSON"),
        ("[" * 100_000, "it is nested too deeply"),
        ("9" * 5000, "it has a number of too many digits"),
        ("[]", "it is not a JSON object"),
        ("{}", "its kind is None, and none of queue, end, pause, policy, schedule, job"),
        ('{"kind": "tube"}', "its kind is 'tube'"),
        ('{"kind": "queue", "format": 2, "last_id": 1}', "its format is 2, and this beanlite knows 1"),
        ('{"kind": "queue", "format": 1, "last_id": -1}', "its last_id is not a valid number"),
        ('{"kind": "pause", "tube": "a b", "pause_s": 1, "until": 1}', "the pause is not valid"),
        ('{"kind": "pause", "tube": 1, "pause_s": 1, "until": 1}', "the pause is not valid"),
        ('{"kind": "pause", "tube": "a", "pause_s": 1, "until": NaN}', "NaN is not a number"),
        ('{"kind": "pause", "tube": "a", "pause_s": 1, "until": 1795383356500}', "the pause is not valid"),
        ('{"kind": "pause", "tube": "a", "pause_s": 1, "until": 1e300}', "the pause is not valid"),
        (job(body=...), 'a job has either a "body" or a "base64"'),
        (job(base64="eA=="), 'a job has either a "body" or a "base64"'),
        (job(body=1), 'a "body" is a text'),
        (job(body=..., base64="*"), "non-alphabet|Non-base64|base64|padding"),
        (job(colour="red"), "a job has no colour"),
        (job(crc32=1), "a job has no crc32"),
        (job(id=...), "its id is missing or not valid"),
        (job(id="1"), "its id is missing or not valid"),
        (job(id=True), "its id is missing or not valid"),
        (job(ttr_s=0), "its ttr_s is 0, and a job has at least a second"),
        (job(id=1 << 62), "its id is missing or not valid"),
        (job(id=(1 << 62) - 1), "its id is missing or not valid"),
        (job(id=0), "the job has impossible values"),
        (job(tube=...), "its tube is missing"),
        (job(tube="a b"), "the job has impossible values"),
        (job(tube={}), "type 'dict' is not supported|Error binding parameter"),
        (job(state="odd"), "CHECK constraint failed"),
        (job(state="delayed"), "the job has impossible values"),
        (job(state="buried"), "the job has impossible values"),
        (job(due_at=1.0), "the job has impossible values"),
        (job(why="broken"), "the job has impossible values"),
        (job(pri=1 << 32), "the job has impossible values"),
        (job(pri=1 << 70), "too large"),
        (job(pri=-1), "the job has impossible values"),
        (job(pri="high"), "cannot store TEXT value in INTEGER column"),
        (job(created_at=None), "its created_at is missing"),
        (job(created_at=1795383296700), "its created_at is not a valid time"),
        (job(created_at=1.7e9).replace("1700000000.0", "1e999"), "its created_at is not a valid time"),
        (job(created_at="today"), "its created_at is not a valid time"),
        (job(state="delayed", due_at=-1e11), "its due_at is not a valid time"),
        (job(since=1e30), "its since is not a valid time"),
        (job(reserves=1 << 61), "its reserves is not a valid number"),
        (job(kicks=(1 << 62) - 1), "its kicks is not a valid number"),
        (job(kicks=4.6e18), "its kicks is not a valid number"),
        (job(state="buried", buried_seq=1 << 61), "its buried_seq is not a valid number"),
        (job(state="buried", buried_seq=-1), "its buried_seq is not a valid number"),
        (job(body="\ud800"), "surrogates not allowed"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_nothing_is_imported(target, line, said):
    with pytest.raises(BeanliteError, match=rf"^nothing was imported: line 2: .*({said})"):
        load([job(id=50).encode(), line.encode("latin-1")], target)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("ahead_s", [4e9, -4e9])
@pytest.mark.parametrize("line", [job(created_at=at_s, since=at_s) for at_s in (8276687236, -8276687236, -(2**32) + 1)])
def test_a_time_that_is_imported_is_no_damage(target, line, ahead_s):
    with closing(open_database(target)) as database:
        clock = "REPLACE INTO server VALUES (1, '', 0, '', 1e9, 1e9, NULL, ?, NULL, NULL)"
        database.connection.execute(clock, (ahead_s,))
    with suppress(BeanliteError):
        load([line.encode()], target)
    assert [finding for finding in verify(target) if not finding.sound] == []


def test_one_that_has_jobs_has_the_same_after_an_import_that_failed(target):
    make(target, batches=1)
    before = exported(target)
    with pytest.raises(BeanliteError, match="line 2"):
        load([job(id=50).encode(), b"{}"], target)
    assert exported(target) == before


def test_an_export_that_was_cut_short_is_not_imported(path, target):
    fill(path)
    with pytest.raises(BeanliteError, match="the last line is missing, the export was cut short"):
        load(lines_of(path)[:-1], target)
    assert list(target.parent.iterdir()) == []


def test_of_exports_in_a_row_none_may_be_cut_short(path, target):
    fill(path)
    lines = lines_of(path)
    with pytest.raises(BeanliteError, match=f"line {len(lines)}: an export begins here, and the one before it was cut"):
        load([*lines[:-1], *lines], target, new_ids=True)
    assert list(target.parent.iterdir()) == []
    assert load([*lines, *lines], target, new_ids=True).jobs == 2 * len(ids(path))


def test_an_interrupted_export_leaves_nothing(path):
    with closing(open_database(path)) as database:
        for number in range(1, 1002):
            put(database.connection, number)
        database.connection.execute("UPDATE meta SET last_id = 1001")

    def interrupted(_count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(path, io.BytesIO(), interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_to_file(path, path.with_name("lines"), interrupted)
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupted_import_leaves_nothing(path, target):
    def interrupted():
        yield from lines_of(path)[:5]
        raise KeyboardInterrupt

    fill(path)
    with pytest.raises(KeyboardInterrupt):
        load(interrupted(), target)
    assert list(target.parent.iterdir()) == []


def test_a_served_database_is_not_imported_into(path, target):
    fill(path)
    with writer(target, "idle"):
        before = snapshot(target.parent)
        with pytest.raises(JournalRefused, match="a server or another command holds"):
            load(lines_of(path), target)
        assert snapshot(target.parent) == before


def test_a_full_disk(target):
    lines = (job(id=number, body="x" * 50_000).encode() for number in range(1, 1000))
    with (
        files_of_at_most(1_000_000),
        pytest.raises(JournalRefused, match=r"no space left on the disk|disk I/O error"),
    ):
        load(lines, target)
    assert list(target.parent.iterdir()) == []


def test_a_damaged_body_is_not_exported(path, tmp_path):
    make(path, batches=3)
    flip(path, path.read_bytes().index(LARGE[:100]))
    with pytest.raises(JournalRefused, match=r"the body of job .* has changed"):
        export_to_file(path, tmp_path / "queue.jsonl")
    assert not (tmp_path / "queue.jsonl").exists()


def test_progress_is_told_now_and_then(target):
    told = []
    lines = (job(id=number).encode() for number in range(1, 2501))
    load(lines, target, progress=told.append)
    assert told == [1000, 2000]
    export(target, io.BytesIO(), told.append)
    assert told[2:] == [1000, 2000]
