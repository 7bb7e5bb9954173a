"""The past of a queue in PostgreSQL, as commands and the page tell it: the same as that of a file."""

import json
import re
import subprocess

import pytest

from beanlite.cli import main
from tests.support.servers import free_port, start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire, until
from tests.web.test_undeleting import delete, put_again

HISTORY = ("--history", "7d", "--history-bodies")
QUESTIONS = [
    [],
    ["--limit", "0"],
    ["--limit", "2"],
    ["--tube", "mail"],
    ["--by", "\udcff"],
    ["--id", "1"],
    ["--what", "delete", "--what", "put"],
    ["--by", "ann"],
    ["--by", "127.0.0.1"],
    ["--by", "127.0.0"],
    ["--operators"],
    ["--operators", "--by", "ann", "--tube", "mail"],
    ["--where", "customer=4711"],
    ["--where", "customer=4711", "--limit", "1"],
    ["--where", "customer=1"],
    ["--since", "1h"],
    ["--until", "1h"],
]


def live(server):
    """Do a bit of everything; and wait until all of it is stored."""
    with Wire(server.connect()) as wire:
        wire.ask("use mail")
        bodies = [b'{"customer": 4711}', b"plain", b'{"customer": 4711, "more": "' + b"x" * 3000 + b'"}', b"\xff\0"]
        for pri, body in enumerate(bodies):
            wire.put(body, pri=pri)
        wire.ask("watch mail")
        wire.ask("reserve")
        wire.ask("touch 1")
        assert wire.ask("bury 1 3") == "BURIED"
        wire.request("set-policy", pattern="mail", set={"max_tries": 5}, by="ann")
        wire.request("change-jobs", do="kick", ids=[1], by="ann")
        wire.ask("pause-tube mail 60")
        for job_id in (1, 2, 3):
            wire.ask(f"delete {job_id}")


@pytest.fixture(scope="module")
def places(tmp_path_factory, postgres):
    """How commands name the file and the database, in which the same has happened."""
    url = postgres.new_database()
    folder = tmp_path_factory.mktemp("file")
    with start_beanlite(folder, *HISTORY) as on_file:
        live(on_file)
        flags = ("--database", url, "--require-sync", "false", *HISTORY)
        with start_beanlite(tmp_path_factory.mktemp("database"), *flags) as on_database:
            live(on_database)
            yield {"--db": str(folder / "queue.db"), "--database": url}, on_database


def told(capsys, command, option, place, *flags):
    """What a command prints, without what differs each time."""
    code = main([*command, option, place, *flags])
    captured = capsys.readouterr()
    out = re.sub(r'"(at|created_at)": [\d.e+]+', r'"\1": 0', captured.out)
    out = re.sub(r'("number"|"age_s"|"in_state_s"|"left_s"): \d+', r"\1: 0", out)
    out = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", "then", out)
    return (
        code,
        re.sub(r"127\.0\.0\.1:\d+", "somebody", out),
        re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "then", captured.err),
    )


@pytest.mark.parametrize("flags", QUESTIONS, ids=lambda flags: " ".join(flags).encode("ascii", "replace").decode())
def test_history_of_the_database_is_that_of_the_file(places, flags, capsys, clean_environment):  # noqa: ARG001
    for form in ([], ["--json"]):
        of_file, of_database = (told(capsys, ["history"], *place, *flags, *form) for place in places[0].items())
        assert of_database == of_file
    if flags in ([], ["--where", "customer=4711"], ["--by", "127.0.0.1"]):
        assert of_file[1]


@pytest.mark.parametrize("flags", [["1"], ["3", "--json"], ["4", "--json"], ["2", "--body", "raw"]], ids=" ".join)
def test_job_of_the_database_is_that_of_the_file(places, flags, capfdbinary, clean_environment):  # noqa: ARG001
    class Texts:
        @staticmethod
        def readouterr():
            out, err = capfdbinary.readouterr()
            return type("Captured", (), {"out": out.decode(errors="replace"), "err": err.decode()})

    of_file, of_database = (told(Texts, ["job"], *place, *flags) for place in places[0].items())
    assert of_database == of_file
    assert of_file[0] == 0


def test_job_that_never_was_is_not_found(places, capsys, clean_environment):  # noqa: ARG001
    code, _, said = told(capsys, ["job"], "--database", places[0]["--database"], "99")
    assert (code, "there is no job 99" in said) == (1, True)


def test_settings_name_the_database(places, capsys, clean_environment, monkeypatch):  # noqa: ARG001
    monkeypatch.setenv("BEANLITE_DATABASE", places[0]["--database"])
    assert main(["history", "--what", "pause", "--json"]) == 0
    (event,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (event["tube"], event["delay_s"]) == ("mail", 60)


def test_database_that_is_away_is_told_in_one_line(capsys, clean_environment):  # noqa: ARG001
    url = f"postgresql://queue@127.0.0.1:{free_port()}/queue"
    assert main(["history", "--database", url]) == 1
    assert re.fullmatch(r"beanlite: .*can't be read: .*\n", capsys.readouterr().err)


def test_database_without_a_queue_is_refused(postgres, capsys, clean_environment):  # noqa: ARG001
    assert main(["history", "--database", postgres.new_database()]) == 3
    assert "no server has used it yet" in capsys.readouterr().err


def test_deleted_jobs_are_put_again(places, capsys, clean_environment):  # noqa: ARG001
    (_, url), server = list(places[0].items())[1], places[1]
    where = ["--database", url, "--connect", f"127.0.0.1:{server.port}"]
    assert main(["undelete", "2", *where, "--dry-run"]) == 0
    assert capsys.readouterr().out == "1 job would be put again\n"
    assert main(["undelete", "2", *where]) == 0
    assert re.fullmatch(r"job 2 is job \d+ now\n", capsys.readouterr().out)
    assert main(["undelete", "999", *where]) == 1


def test_job_that_was_deleted_twice_is_put_again_once(database, tmp_path, capsys, clean_environment):  # noqa: ARG001
    """An import between the deletions has brought it back."""
    flags = ("--database", database, "--require-sync", "false", *HISTORY)
    exported = str(tmp_path / "exported")
    with start_beanlite(tmp_path, *flags) as server, Wire(server.connect()) as wire:
        wire.put(b"x")
        assert main(["export", exported, "--database", database]) == 0
        assert wire.ask("delete 1") == "DELETED"
    assert main(["import", exported, "--database", database]) == 0
    with start_beanlite(tmp_path, *flags) as server, Wire(server.connect()) as wire:
        assert wire.ask("delete 1") == "DELETED"
        capsys.readouterr()
        assert main(["undelete", "1", "--database", database, "--connect", f"127.0.0.1:{server.port}"]) == 0
        assert re.fullmatch(r"job 1 is job \d+ now\n", capsys.readouterr().out)


@pytest.fixture
def web(places):
    url, server = places[0]["--database"], places[1]
    with Web(f"127.0.0.1:{server.port}", "--database", url, "--user-header", "X-User") as web:
        web.headers = {"x-user": "bob"}
        yield web


def test_page_shows_changes_curves_and_past_jobs(web):
    assert "ann" in web.get("/changes").text
    assert "max_tries" in web.get("/changes?by=ann").text
    page = web.get("/job/1")
    assert page.status == 200
    assert "bury" in page.text
    for span in ("day", "week", "quarter"):
        page = web.get(f"/tube/mail?span={span}")
        assert page.status == 200, (span, page.text)
        assert "can't be read" not in page.text


def test_page_puts_deleted_jobs_again(web, places):
    with Wire(places[1].connect()) as wire:
        wire.ask("use again")
        job_id = wire.put(b"body", pri=7)
        put_again(web, delete(web, [job_id]))
        until(lambda: [job["pri"] for job in wire.request("list-jobs", tube="again", limit=9)["jobs"]] == [7])


def test_page_that_the_server_serves_has_the_database(postgres, tmp_path):
    where = f"127.0.0.1:{free_port()}"
    flags = ("--database", postgres.new_database(), "--require-sync", "false", "--web", where)
    with start_beanlite(tmp_path, *flags) as server, Wire(server.connect()) as wire:
        wire.request("set-policy", pattern="mail", set={"max_tries": 5}, by="ann")
        page = object.__new__(Web)
        page.where, page.headers = where, {}
        until(lambda: _answers(page) and "ann" in page.get("/changes").text)
        at_work = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout
        assert "beanlite.web" in at_work  # its arguments, which everybody can read, don't have the URL
        assert not [line for line in at_work.splitlines() if "beanlite.web" in line and "postgresql://" in line]


def _answers(page):
    try:
        return page.get("/changes").status == 200
    except OSError:
        return False
