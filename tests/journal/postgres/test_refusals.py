"""Databases that are refused at the start, and the reasons that are given."""

import asyncio

import asyncpg
import pytest

from beanlite.journal.postgres import link, schema
from beanlite.journal.postgres.address import exposed_hosts, public_url, sslmode_of
from beanlite.journal.postgres.lease import _Waiting
from beanlite.journal.postgres.link import TROUBLE, connect
from beanlite.journal.postgres.schema import check
from beanlite.journal.postgres.soundness import verify
from tests.journal.postgres.serving import (
    SOON_S,
    Postgres,
    ServingPostgres,
    made_by_an_older_version,
    refusal,
    served,
    sql,
    until,
)


async def test_a_database_without_a_synchronous_standby_is_refused(database):
    assert "no synchronous standby" in await refusal(database, require_sync=True)


async def test_a_database_that_is_not_ours_is_refused(postgres, database):
    await sql(postgres, database, "CREATE TABLE jobs (id integer)")
    assert "not beanlite's" in await refusal(database)


async def test_schema_version_of_another_program_is_refused(postgres, database):
    await sql(postgres, database, "CREATE TABLE schema_version (installed_rank integer, version text)")
    assert "has a table schema_version that is not beanlite's" in await refusal(database)
    (fault,) = [each for each in await asyncio.to_thread(lambda: list(verify(database))) if not each.sound]
    assert (fault.check, "is not beanlite's" in fault.said) == ("schema", True)


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
    assert "wr0ng" not in public_url(url)
    said = await refusal(url)
    assert "percent-encoded" in said
    assert "wr0ng" not in said


@pytest.mark.parametrize("password", ["wr0ng\udcff", "wr0ng%00\udcff"])
async def test_a_password_that_is_not_utf_8_is_refused(database, password):
    assert "wr0ng" not in await refusal(database.replace("queue@", f"queue:{password}@"))


async def test_a_port_that_can_not_be_is_refused():
    assert "is no address of a database" in await refusal("postgresql://queue@127.0.0.1:99999/queue")
    assert "is no address of a database" in await refusal("postgresql:///queue?host=127.0.0.1&port=99999")


async def test_hosts_that_would_not_be_asked_at_the_same_time_are_refused(postgres):
    url = f"postgresql:///postgres?host=127.0.0.1,127.0.0.1&port=1,{postgres.port}&user=queue"
    assert "have to be named before the database" in await refusal(url)


async def test_hosts_of_the_environment_are_not_tried_one_by_one(monkeypatch):
    """asyncpg would give them two seconds together: a silent one would keep it from the others for ever."""
    monkeypatch.setenv("PGHOST", "127.0.0.1,127.0.0.1")
    assert "have to be named before the database" in await refusal("postgresql://queue@/postgres")


async def test_service_names_the_database(postgres, database, tmp_path, monkeypatch):
    name = database.rpartition("/")[2]
    file = tmp_path / "services"
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    at = f"host=127.0.0.1\nport={postgres.port}\nuser=queue\ndbname={name}\npassword=100%s&@\n"
    file.write_text(f"# ours\n[queue]\n{at}sslmode=disable\n\n[two]\n{at.replace('.1', '.1,db2')}\n[far]\nhost=db2\n")
    serving = await served("postgresql:///?service=queue")
    assert await postgres.asql(f"SELECT FROM pg_stat_activity WHERE datname = '{name}'")
    assert sslmode_of("postgresql://?service=queue") == "disable"
    assert exposed_hosts("postgresql://?service=far") == ["db2"]
    await serving.stop()
    assert "have to be named before the database" in await refusal("postgresql://?service=two")
    assert f"service: {file}: it has no section [three]" in await refusal("postgresql://?service=three")
    file.write_text("host=secret\n")
    said = await refusal("postgresql://?service=queue")
    assert (f"service: {file}: it is no file of services" in said, "secret" in said) == (True, False)
    file.unlink()
    assert f"service: {file}: No such file or directory" in await refusal("postgresql://?service=queue")


async def test_a_file_of_the_address_that_can_not_be_read_is_named(database, tmp_path):
    missing = tmp_path / "root.crt"
    said = await refusal(f"{database}?sslmode=verify-full&sslrootcert={missing}")
    assert f"sslrootcert: {missing}: No such file or directory" in said


async def test_a_host_that_accepts_no_writes_is_awaited(postgres, database, caplog):
    name = database.rpartition("/")[2]
    await postgres.asql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    waiting = asyncio.create_task(served(database))
    await until(lambda: any(record.fields["error"] == "it accepts no writes" for record in caplog.records))
    await postgres.asql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await (await asyncio.wait_for(waiting, SOON_S)).stop()


async def test_an_address_is_shown_without_what_is_secret():
    assert public_url("postgresql://q:secret@[::1]:5432,b/db?password=secret") == "postgresql://q@[::1]:5432,b/db"
    assert public_url("postgresql:///db?host=/run") == "postgresql:///db"


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


async def test_what_the_database_does_not_know_in_an_address_is_refused(database):
    assert 'unrecognized configuration parameter "connect_timeout"' in await refusal(f"{database}?connect_timeout=2")


async def test_pooler_that_ignores_the_settings_of_a_session_is_refused(postgres, database, monkeypatch):
    await postgres.asql(f"ALTER DATABASE {database.rpartition('/')[2]} SET synchronous_commit = off")
    await (await served(database)).stop()
    monkeypatch.setattr(link, "_SESSION", {})
    assert "has synchronous_commit = off" in await refusal(database)
    monkeypatch.setattr(link, "_SESSION", {"synchronous_commit": "on"})
    await postgres.asql(f"ALTER DATABASE {database.rpartition('/')[2]} SET client_min_messages = error")
    assert "has client_min_messages = error" in await refusal(database)


async def test_version_that_is_too_old_is_named(database, monkeypatch):
    """Though it lacks a parameter of ours, and would refuse a session that names it."""
    connecting = asyncpg.connect

    async def connected_to_version_13(*arguments, **others):
        if "idle_session_timeout" in others["server_settings"]:
            raise asyncpg.UndefinedObjectError('unrecognized configuration parameter "idle_session_timeout"')
        return await connecting(*arguments, **others)

    monkeypatch.setattr(asyncpg, "connect", connected_to_version_13)
    monkeypatch.setattr(schema, "_OLDEST", 99)
    assert "which is older than 99" in await refusal(database)


async def test_idle_sessions_are_not_ended(postgres, database):
    await postgres.asql(f"ALTER DATABASE {database.rpartition('/')[2]} SET idle_session_timeout = '7s'")
    made = await connect(database, "beanlite")
    assert await made.connection.fetchval("SHOW idle_session_timeout") == "0"
    made.drop()


async def test_a_limit_that_only_newer_versions_have_is_lifted(postgres, database, monkeypatch):
    monkeypatch.setattr(link, "_NO_LIMIT", link._NO_LIMIT.replace("transaction_timeout", "vacuum_cost_delay"))
    await postgres.asql(f"ALTER DATABASE {database.rpartition('/')[2]} SET vacuum_cost_delay = 7")
    made = await connect(database, "beanlite")
    assert await made.connection.fetchval("SHOW vacuum_cost_delay") == "0"
    made.drop()


async def test_a_schema_that_is_published_is_migrated(postgres, database, caplog):
    caplog.set_level("INFO")
    await made_by_an_older_version(database, 2)
    await sql(postgres, database, "CREATE PUBLICATION everything FOR ALL TABLES")
    serving = await served(database)
    assert await serving.put() == 1
    await serving.stop()
    (row,) = await sql(postgres, database, "UPDATE schema_version SET number = number RETURNING number")
    (told,) = [record.fields for record in caplog.records if record.getMessage() == "migrated"]
    assert (told["from_version"], told["to_version"]) == (2, row["number"])


async def test_a_schema_may_have_a_name_that_needs_quotes(postgres, database):
    await postgres.asql('CREATE SCHEMA "Our Work"', database.rpartition("/")[2])
    await postgres.asql(f'ALTER DATABASE {database.rpartition("/")[2]} SET search_path = "Our Work"')
    for _ in range(2):
        await (await served(database)).stop()


async def test_the_process_is_found_that_a_pooler_has_given_another_number(database, monkeypatch):
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: 0)
    made = await connect(database, "beanlite")
    assert made.pid == 0
    await check(made, "it", require_sync=False)
    assert made.pid == await made.connection.fetchval("SELECT pg_backend_pid()")
    made.drop()


async def test_pooler_of_transactions_is_refused(database, monkeypatch):
    """It has the next statement carried out in another session."""
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: 0)
    await (await served(database)).stop()  # one of sessions is not
    monkeypatch.setattr(schema, "_PID", "SELECT 0 AS pid")
    assert "gives each transaction another session" in await refusal(database)


async def test_a_right_that_is_missing_is_one_line(postgres, database):
    await (await served(database)).stop()
    await postgres.asql("CREATE ROLE poor LOGIN")
    await sql(postgres, database, "GRANT SELECT ON schema_version TO poor")
    assert "permission denied for view lease_now" in await refusal(database.replace("queue@", "poor@"))


TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'beanlite second'"


@pytest.mark.parametrize(
    ("go", "come"),
    [
        ("ALTER TABLE lease_now RENAME TO away", "ALTER TABLE away RENAME TO lease_now"),
        ("ALTER DATABASE {} ALLOW_CONNECTIONS false", "ALTER DATABASE {} ALLOW_CONNECTIONS true"),
    ],
)
async def test_standby_outlasts_what_a_start_would_refuse(postgres, database, monkeypatch, go, come):
    """An operator restores the database, renames it, or sets it up anew."""
    errors = []
    lost = _Waiting.note_loss

    def noted(waiting, error):
        errors.append(error)
        lost(waiting, error)

    monkeypatch.setattr(_Waiting, "note_loss", noted)
    name = database.rpartition("/")[2]
    at = name if "TABLE" in go else "postgres"
    first = await served(database, node="first", lease_s=100)
    second = ServingPostgres(Postgres(database, node="second"))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    await postgres.asql(go.format(name), at)
    await postgres.asql(TERMINATE)
    await until(lambda: waiting.done() or any(not isinstance(error, TROUBLE) for error in errors))
    await postgres.asql(come.format(name), at)
    await first.stop()
    await (await asyncio.wait_for(waiting, SOON_S)).stop()
