"""The page of the backups, of a real server with and without some."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beanlite.cli.groups import ServerOption
from beanlite.cli.web import _backups_of
from beanlite.journal.sqlite.file.dated import dated_backups, dated_path
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import make
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire, until

DB = Path("queue.db")
HOUR_S = 3600


@pytest.fixture
def folder(tmp_path):
    """With a backup that was made three hours ago, and some that are none of this database."""
    folder = tmp_path / "backups"
    folder.mkdir()
    make(dated_path(folder, DB, time.time() - 3 * HOUR_S))
    make(dated_path(folder, Path("another.db"), time.time()))
    (folder / "notes.txt").write_text("not a backup")
    return folder


@pytest.fixture
def file(tmp_path, folder):
    """The server's settings."""
    file = tmp_path / "beanlite.toml"
    file.write_text(f'backup_every = "24h"\nbackup_dir = "{folder}"\ndb = "{tmp_path}/q/queue.db"\n')
    return file


@pytest.fixture
def server(tmp_path, file):
    with start_beanlite(tmp_path / "q", "--config", str(file)) as server:
        yield server


@pytest.fixture
def web(server, file):
    with Web(f"127.0.0.1:{server.port}", "--config", file) as web:
        yield web


def page_of(server, number):
    """One of the pages that the server has started, as soon as it is served."""

    def places():
        return re.findall(r"serving the web page at=http://(\S+)/", server.log_text())

    until(lambda: len(places()) >= number)
    web = Web.__new__(Web)
    web.where, web.headers = places()[number - 1], {}
    return web


def rows(page):
    """The name and the age of each that is listed."""
    return re.findall(r'<tr [^>]*><td class="name lead">([^<]*)</td>.*?data-label="Age">([^<]*)</td>', page.html)


def test_the_backups_are_listed_with_age_and_size(web, folder):
    page = web.get("/backups")
    ((file, made_at),) = dated_backups(folder, DB)
    assert (page.status, rows(page)) == (200, [(file.name, "3 h")])
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(made_at))
    assert f"Last one made {made} UTC , 3 h ago" in page.text
    assert f"Folder {folder}" in page.text
    assert "Last one that failed" not in page.text
    assert page.headers["cache-control"] == "no-store"


def test_backup_is_made_by_a_click_and_no_older_one_is_deleted(server, web, folder):
    with Wire(server.connect()) as wire:
        wire.put(b"job")
    for age_h in range(4, 20):
        make(dated_path(folder, DB, time.time() - age_h * HOUR_S))
    before = dated_backups(folder, DB)
    assert "Back up now" in web.get("/backups").text
    web.post("/backups", {})
    until(lambda: len(rows(web.get("/backups"))) == len(before) + 1)
    until(lambda: "A backup is being made" not in web.get("/backups").text)
    *older, (newest, _) = dated_backups(folder, DB)
    assert older == before
    assert rows(web.get("/backups"))[0][0] == newest.name
    assert {finding.check: finding.said for finding in verify(newest)}["jobs"] == "1 ready"


def test_one_backup_is_made_at_a_time(tmp_path, server, file):
    program = tmp_path / "slow"
    program.mkdir()
    # Each backup of this page waits until it is told to go on.
    (program / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "while 'backup' in sys.orig_argv and not os.path.exists(os.environ['GO_ON']):\n"
        "    time.sleep(0.01)\n"
    )
    environment = {"PYTHONPATH": f"{program}:{os.environ.get('PYTHONPATH', '')}", "GO_ON": str(tmp_path / "go-on")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        web = Web(f"127.0.0.1:{server.port}", "--config", file)
    with web:
        assert "A backup is being made" in web.post("/backups", {}).text
        second = web.post("/backups", {})
        assert (second.status, "a backup is being made already" in second.text) == (409, True)
        (tmp_path / "go-on").touch()
        until(lambda: "A backup is being made" not in web.get("/backups").text)
        assert len(rows(web.get("/backups"))) == 2


def test_backup_that_can_not_be_made_says_why(web, folder):
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    web.post("/backups", {})
    until(lambda: "was not made" in web.get("/backups").text)
    page = web.get("/backups")
    assert page.status == 200
    assert f"was not made: {folder}/ is not a folder" in page.text
    assert "The folder can't be read: [Errno 2] No such file or directory" in page.text
    assert not folder.exists()


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """A file with a reader."""
    path = tmp_path_factory.mktemp("users") / "users"
    command = [sys.executable, "-m", "beanlite", "web", "--add-user", "bob:reader"]
    path.write_text(subprocess.run(command, input="battery\n", capture_output=True, text=True, check=True).stdout)
    return path


def test_reader_sees_backups_and_makes_none(server, file, folder, users):
    where = f"127.0.0.1:{server.port}"
    with Web(where, "--config", file, "--password-file", users, user="bob:battery") as web:
        page = web.get("/backups")
        assert len(rows(page)) == 1
        assert "Back up now" not in page.text
        assert "<form" not in page.html
        assert web.post("/backups", {}).status == 403
    assert len(dated_backups(folder, DB)) == 1


def test_page_elsewhere_can_not_have_a_backup_made(web, folder):
    assert web.post("/backups", {}, sec_fetch_site="cross-site").status == 403
    assert len(dated_backups(folder, DB)) == 1


def test_backups_are_shown_of_a_server_that_has_gone(server, web):
    server.kill()
    page = web.get("/backups")
    assert (page.status, len(rows(page))) == (200, 1)


@pytest.fixture
def bare(tmp_path):
    """A server that makes no backups."""
    with start_beanlite(tmp_path / "bare") as server:
        yield f"127.0.0.1:{server.port}"


def test_page_without_configured_backups_says_what_to_do(bare):
    with Web(bare) as web:
        page = web.get("/backups")
        assert "No backups are configured. Set backup_every" in page.text
        assert "Back up now" not in page.text
        refused = web.post("/backups", {})
        assert (refused.status, "no folder for backups is configured" in refused.text) == (400, True)


def test_a_page_that_does_not_know_the_folder_says_so(server):
    with Web(f"127.0.0.1:{server.port}") as web:
        page = web.get("/backups")
        assert "Last one made" in page.text
        assert "this page does not know where" in page.text


def test_nothing_to_back_up(tmp_path, file):
    with (
        start_beanlite(tmp_path / "q", "--no-journal") as server,
        Web(f"127.0.0.1:{server.port}", "--config", file) as web,
    ):
        page = web.get("/backups")
        assert "there is nothing to back up" in page.text
        server_page = web.get("/journal").text
        assert ("There is nothing to back up" in server_page, "-wal" in server_page) == (True, False)
        assert "Back up now" not in page.text


def test_page_that_the_server_starts_follows_a_change_of_the_folder(tmp_path, folder, file):
    with start_beanlite(tmp_path / "q", "--config", str(file), "--web", "127.0.0.1:0") as running:
        assert len(rows(page_of(running, 1).get("/backups"))) == 1
        second = tmp_path / "second"
        second.mkdir()
        file.write_text(file.read_text().replace(str(folder), str(second)))
        running.signal(signal.SIGHUP)
        assert f"Folder {second}" in page_of(running, 2).get("/backups").text
        assert "starting it again" not in running.log_text()
        assert running.stop() == 0


def test_backups_of_another_server_are_not_those_of_the_settings(monkeypatch):
    """The variable for the file of servers names another server as well as an option does."""
    monkeypatch.setenv("BEANLITE_BACKUP_DIR", "backups")
    monkeypatch.setenv("BEANLITE_BACKUP_EVERY", "24h")
    assert _backups_of(ServerOption(), None) is not None
    assert _backups_of(ServerOption(connect=["127.0.0.1:1"]), None) is None
    monkeypatch.setenv("BEANLITE_SERVERS", "servers.toml")
    assert _backups_of(ServerOption(), None) is None
