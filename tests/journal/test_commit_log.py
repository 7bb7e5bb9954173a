"""The lines that -V logs for commits."""

import logging

import pytest

from tests.support.inside import PUT, ask, connect, serving

pytestmark = pytest.mark.usefixtures("disk")


def commits(caplog):
    return [record.fields for record in caplog.records if record.getMessage() == "commit"]


@pytest.mark.parametrize("fsync", ["always", "never"])
async def test_each_commit_is_one_line(tmp_path, caplog, fsync):
    caplog.set_level(logging.DEBUG, logger="beanlite")
    async with serving(tmp_path / "q.db", fsync=fsync) as (server, _):
        client = await connect(server)
        await ask(client, PUT)
        await ask(client, PUT + PUT)
    first, second, *_ = commits(caplog)
    assert (first["jobs"], second["jobs"]) == (1, 2)
    assert second["batch"] > first["batch"]  # there may be one of totals in between
    assert 0 < first["seconds"] < 60


async def test_without_it_they_are_not_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="beanlite")
    async with serving(tmp_path / "q.db") as (server, _):
        caplog.set_level(logging.DEBUG, logger="beanlite")  # the level is read only once
        await ask(await connect(server), PUT)
    assert commits(caplog) == []
