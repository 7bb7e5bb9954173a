"""The columns that the migrations make are those of the one table of them."""

from beanlite.journal.columns import JOB, LATER
from tests.journal.postgres.serving import served, sql


async def test_migrations_make_these_columns(postgres, database):
    serving = await served(database)
    types = await sql(
        postgres,
        database,
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = 'jobs'::regclass AND attnum > 0 ORDER BY attnum",
    )
    await serving.stop()
    words = {"bigint": "bigint", "float8": "double precision", "text": "text"}
    ours = [(column.name, words[column.type]) for column in JOB]
    first, later = ours[: len(ours) - len(LATER)], ours[len(ours) - len(LATER) :]
    assert [tuple(row) for row in types] == [
        *first,
        ("crc32", "bigint"),
        ("body", "bytea"),
        *later,
        ("row_crc32", "bigint"),
    ]
