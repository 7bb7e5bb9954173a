"""The rows of jobs that are ready since their put: in whatever company they are written, each is what was put."""

from zlib import crc32

from beanlite.host.clock import utc_s
from beanlite.journal.checksum import checksum_of_put, with_id
from beanlite.journal.sqlite.file.rows import IN_TABLE, INLINE_MAX
from beanlite.journal.sqlite.served.batch import batch_of

LENGTHS = (1, 3, 4, 5, 1, 1, 15, 16, 17, 2, 33, 40, 3, 300)
ROWS = "SELECT id, tube, pri, delay_s, ttr_s, created_at, since, row_crc32, crc32, body FROM jobs ORDER BY id"


def test_columns_are_in_the_order_of_the_table(journal):
    names = [name for _, name, *_ in journal._db.execute("PRAGMA table_info(jobs)")]
    assert list(IN_TABLE) == names


def test_runs_of_jobs_put_alike_are_written_as_they_were_put(core, journal):
    client = core.client()
    puts = []
    for run, length in enumerate(LENGTHS):
        tube, pri, ttr_s = b"tube-%d" % (run % 3), run % 2 << 31, 1 + run % 5
        core.send(client, b"use %b\r\n" % tube)
        for number in range(length):
            core.now_ns += number % 3 * 1_000_000_007
            body = b"%d" % number * (INLINE_MAX if number == 7 else 1)
            core.send(client, b"put %d 0 %d %d\r\n%b\r\n" % (pri, ttr_s, len(body), body))
            puts.append((tube, pri, ttr_s, utc_s(core.now_ns), body))
    journal.write(batch_of(core.store(), journal.chronicle.history))
    for job_id, row in enumerate(journal._db.execute(ROWS), 1):
        tube, pri, ttr_s, created_s, body = puts[job_id - 1]
        checksum = with_id(job_id, checksum_of_put(tube, pri, 0, ttr_s, created_s))
        inline = body if len(body) <= INLINE_MAX else None
        assert row == (job_id, tube.decode(), pri, 0, ttr_s, created_s, created_s, checksum, crc32(body), inline)
    assert job_id == len(puts) == sum(LENGTHS)
