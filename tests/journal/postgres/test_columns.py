"""The columns that the migrations make are those of the one table of them."""

from beanlite.journal.columns import JOB
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
    assert [tuple(row) for row in types] == [*ours, ("crc32", "bigint"), ("body", "bytea")]
