"""Databases that are refused at the start, and the reasons that are given."""

import pytest

from beanlite.journal.postgres.link import connect, shown
from tests.journal.postgres.serving import refusal, served, sql


async def test_a_database_without_a_synchronous_standby_is_refused(database):
    assert "no synchronous standby" in await refusal(database, require_sync=True)


async def test_a_database_that_is_not_ours_is_refused(postgres, database):
    await sql(postgres, database, "CREATE TABLE jobs (id integer)")
    assert "not beanlite's" in await refusal(database)


async def test_a_newer_schema_is_refused(postgres, database):
    await (await served(database)).stop()
    await sql(postgres, database, "UPDATE schema_version SET number = 99")
    assert "use a newer beanlite" in await refusal(database)


async def test_another_encoding_is_refused(postgres):
    await postgres.asql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    assert "has the encoding LATIN1" in await refusal(postgres.url("latin"))


async def test_a_wrong_password_is_refused_and_not_told(postgres, database):
    await postgres.asql("CREATE ROLE stranger LOGIN PASSWORD 'right'")
    said = await refusal(database.replace("queue@", "stranger:wr0ng@"))
    assert "password authentication failed" in said
    assert "wr0ng" not in said


@pytest.mark.parametrize("password", ["wr0ng/1", "wr0ng?1", "wr0ng#1", "wr0ng[1", "wr0ng@1", "0123/wr0ng", "0?wr0ng"])
async def test_a_password_that_is_not_encoded_as_it_should_be_is_not_told(database, password):
    url = database.replace("queue@", f"queue:{password}@")
    assert "wr0ng" not in shown(url)
    said = await refusal(url)
    assert "percent-encoded" in said
    assert "wr0ng" not in said


async def test_an_address_is_shown_without_what_is_secret():
    assert shown("postgresql://q:secret@[::1]:5432,b/db?password=secret") == "postgresql://q@[::1]:5432,b/db"
    assert shown("postgresql:///db?host=/run") == "postgresql:///db"


async def test_a_host_that_refuses_does_not_keep_from_the_others(postgres, database, other):
    await postgres.asql("CREATE ROLE known LOGIN SUPERUSER")
    url = database.replace("queue@", f"known@{other.place},")
    await (await served(url)).stop()
    assert 'role "known" does not exist' in await refusal(url.replace(f",{postgres.place}", ""))
    with pytest.raises(ConnectionError, match='role "known" does not exist'):
        await connect(url.replace(postgres.place, "127.0.0.1:1"), "beanlite")


async def test_a_database_that_does_not_exist_is_refused(postgres):
    assert 'database "nowhere" does not exist' in await refusal(postgres.url("nowhere"))


async def test_a_changed_body_is_refused(postgres, database):
    serving = await served(database)
    await serving.put()
    await serving.stop()
    await sql(postgres, database, "UPDATE jobs SET body = 'other'")
    assert "the body of job 1 has changed" in await refusal(database)
